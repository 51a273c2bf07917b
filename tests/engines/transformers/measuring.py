"""The loop on models in memory: what a measurement does, without cache and files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pytest_lmgate.cache.store import StoredResult
from pytest_lmgate.engines.base import Batching
from pytest_lmgate.engines.checkpoints import TokenizerFolder, open_checkpoint
from pytest_lmgate.engines.tokenizers import quiet, tokenizer_facts
from pytest_lmgate.engines.transformers.head import Scorer, prove_head
from pytest_lmgate.engines.transformers.loading import LoadedModel, load_checkpoint
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.errors import ModelError
from pytest_lmgate.measure.divergence import ModelPair, compare
from pytest_lmgate.measure.loop import Job, Log, ScoringResult, score_requests
from pytest_lmgate.measure.texts import generate
from pytest_lmgate.measure.trials import try_out
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.protocols import WindowPlan
from pytest_lmgate.windows.requests import Pair, Piece, Requests, masked_requests, pair_requests, window_requests
from pytest_lmgate.windows.tokens import Chats, Streams
from tests.models.zoo import documents
from tests.models.zoo import loaded as loaded_model

Floats = NDArray[Any]
IDS = torch.from_numpy(documents(30).ids[0])


def load(folder: Path, **options: Any) -> LoadedModel:
    """Load a checkpoint as an entry without options does."""
    known = {
        "tokenizer_folder": TokenizerFolder(folder.name, folder), "adapter_folder": None, "load": {}, "dtype": "auto",
        "device": "cpu", "trust_remote_code": False, "pickle_weights": False,
    }  # fmt: skip
    return load_checkpoint(open_checkpoint(folder, name=folder.name), **(known | options))


def prove_causal(model: Any, ids: Tensor = IDS) -> None:
    """Prove it by the head, split off where that can be, and by the model's own logits; the verdicts must be equal."""
    refusals: list[ModelError] = []
    with torch.inference_mode(), quiet():
        ways = dict.fromkeys((prove_head(model, ids), None))
        for split in ways:
            runner = TransformersRunner(loaded_model(model), None)
            runner._scorer = Scorer("m", split)
            try:
                try_out(runner, ids.numpy(), Batching(), "m")
            except ModelError as refusal:
                refusals.append(refusal)
    assert len(refusals) in (0, len(ways))
    if refusals:
        raise refusals[0]


def job_of(known: Floats | None = None, save: Callable[[Floats], None] = lambda _: None, **how: Any) -> Job:
    """Make a job of its own fields and those of its log, that goes on from what is `known` and saves what it knows."""
    log = Log(**{name: how.pop(name) for name in ("progress", "note", "remark") if name in how})
    partial = None if known is None else StoredResult({"measured": known})
    return Job(log=log, **{"partial": partial, "keep": lambda entry: save(entry.arrays["measured"]), **how})


def scored(loaded: LoadedModel, requests: Requests, **how: Any) -> ScoringResult:
    """Score requests; `how` is of `job_of`."""
    return score_requests(TransformersRunner(loaded, None), requests, job_of(model=loaded.name, **how))


def measure_nll(loaded: LoadedModel, streams: Streams, plan: WindowPlan, *, dataset: str = "d", **how: Any) -> Floats:
    """Score windows in the dtype that is kept."""
    found = scored(loaded, window_requests(streams, plan, dataset), dataset=dataset, **how)
    return found.nll if found.is_double else found.nll.astype(np.float32)


def measure_pseudo_nll(loaded: LoadedModel, pieces: Sequence[Piece], *, dataset: str = "d", **how: Any) -> Floats:
    """Score the tokens of pieces, each masked."""
    tokenizer = tokenizer_facts(loaded.tokenizer)
    return scored(loaded, masked_requests(pieces, tokenizer, dataset), dataset=dataset, **how).nll


def measure_conditional_nll(loaded: LoadedModel, pairs: Sequence[Pair], *, dataset: str = "d", **how: Any) -> Floats:
    return scored(loaded, pair_requests(pairs, dataset), dataset=dataset, **how).nll


def pair_of(p: LoadedModel, q: LoadedModel, **options: Any) -> ModelPair:
    """Return the reference p and the candidate q, in memory."""
    return ModelPair(("p", "q"), lambda: TransformersRunner(p, None), lambda: TransformersRunner(q, None), **options)


def measure_divergence(
    pair: ModelPair, streams: Streams, plan: WindowPlan, *, dataset: str = "d", **how: Any
) -> Floats:
    return compare(pair, window_requests(streams, plan, dataset), job_of(model="q against p", dataset=dataset, **how))


def generate_texts(
    loaded: LoadedModel,
    prompts: Sequence[Any],
    settings: GenerationSettings,
    *,
    dataset: str,
    context: int | None,
    known: dict[int, str] | None = None,
    save: Callable[[dict[int, str]], None] = lambda _: None,
    **how: Any,
) -> list[str]:
    partial = StoredResult({}, {"texts": {str(row): (text, None) for row, text in (known or {}).items()}})
    keep: Callable[[StoredResult], None] = lambda entry: save(  # noqa: E731
        {int(row): text for row, (text, _) in entry.facts["texts"].items()}
    )
    job = job_of(model=loaded.name, dataset=dataset, partial=partial, keep=keep, **how)
    runner, has_encoder = TransformersRunner(loaded, context), loaded.is_encoder_decoder
    chats = Chats.of(prompts, runner.tokenizer, {}, model=loaded.name)
    return generate(runner, prompts, settings, job, context=context, chats=chats, has_encoder=has_encoder).texts
