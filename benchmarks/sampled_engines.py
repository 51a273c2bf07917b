"""Coverage and bias of a KL divergence by sampling through an engine, judged by the exact one of transformers.

A small Llama draws continuations through the engine and reads them, and so do rounded and damaged copies of it. The
exact divergence is the mean over all tokens of the pool, by transformers, from whole distributions. Each split draws
rows from the pool, and `pytest_lmgate.metrics.divergence` makes the estimate and its interval. See README.md::

    make install-gguf && .venv-gguf/bin/python benchmarks/sampled_engines.py llama.cpp --model FOLDER --text FILE
    make install-vllm && .venv-vllm/bin/python benchmarks/sampled_engines.py vllm      # or: server
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sampled_kl import ROOT, damaged, prompts_of, rounded

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.engines.base import COLUMNS, Entry, Model
from pytest_lmgate.engines.registry import backend_of
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.measure.divergence import ModelPair, compare
from pytest_lmgate.measure.loop import Job
from pytest_lmgate.measure.measurement import MeasurementContext
from pytest_lmgate.measure.sampled import SelfDivergences, requests_of
from pytest_lmgate.measure.scoring import score
from pytest_lmgate.metrics.divergence import SampledStatistics, WrittenStatistics, kl
from pytest_lmgate.metrics.targets import TargetLayout
from pytest_lmgate.settings.entries import ModelSpec, ServerSpec
from pytest_lmgate.settings.requests import SelfDivergenceRequest, Signature
from pytest_lmgate.windows.tokens import PromptIds, TokenizerFacts

CONTEXT = 128
JOB = Job(model="m", dataset="d")
CANDIDATES: dict[str, Callable[[Any], Any]] = {
    "8 bits": lambda model: rounded(model, 8),
    "4 bits": lambda model: rounded(model, 4),
    "3 bits": lambda model: rounded(model, 3),
    "one layer, noise 1": lambda model: damaged(model, 1.0),
}


def described(**entry: Any) -> Model:
    spec = ModelSpec(**entry)
    known: dict[str, Any] = {"path": Path, "hub_id": lambda _: None, "digest": str, "device": "cpu"}
    return backend_of(spec, "m", {}).describe(Entry(name="m", spec=spec, **known))


@contextmanager
def opened(engine: str, checkpoint: Path) -> Iterator[Any]:
    """Open a checkpoint in an engine; close it at the end."""
    if engine == "llama.cpp":
        sys.path.insert(0, str(ROOT / "example_project"))
        import gguf
        from to_gguf import write

        file = checkpoint / "model.gguf"
        write(checkpoint, file, gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32)
        entry: dict[str, Any] = {"path": str(file)}
    elif engine == "vllm":
        entry = {"path": str(checkpoint), "backend": "vllm", "dtype": "float32", "load": {"max_model_len": CONTEXT}}
    else:
        command = f"{sys.executable} -m vllm.entrypoints.openai.api_server --model {checkpoint} --served-model-name m"
        command += f" --host 127.0.0.1 --port {{port}} --dtype float32 --max-model-len {CONTEXT} --enforce-eager"
        server = ServerSpec(command=f"{command} --kv-cache-memory-bytes {2**28}", wait=300)
        entry = {"server": server, "model": "m", "tokenizer": str(checkpoint), "load": {"context": CONTEXT}}
    runner = described(**entry).open()
    try:
        with runner.measuring():
            yield runner
    finally:
        runner.close()


@dataclass(frozen=True)
class OfIds(SelfDivergences):
    """Continuations of prompts that are token ids, so that no engine needs the model's own tokenizer."""

    ids: tuple[tuple[int, ...], ...] = ()

    def prompts(self, tokenizer: TokenizerFacts) -> list[PromptIds]:
        return [PromptIds(row, "", each) for row, each in enumerate(self.ids)]


def written(runner: Any, prompts: torch.Tensor, tokens: int) -> WrittenStatistics:
    """Have an engine draw a continuation of each prompt, and read it."""
    model = Model("m", lambda: runner, context=CONTEXT, offers=frozenset({"score", "sample"}))
    context = MeasurementContext(Path(), lambda _: runner, lambda *_: True, lambda *_: JOB, None, lambda _: None)
    ids = tuple(map(tuple, prompts.tolist()))
    corpus = Corpus("d", tuple(map(str, ids)))  # a row for each prompt
    return OfIds("self_kl", model, corpus, SelfDivergenceRequest(tokens), ids).measure(context)


def with_wide_heads(model: Any, width: int = 32) -> Any:
    """Return the same Llama with zeros in its heads: vLLM for the CPU takes none below 32.

    A number moves from place i to i times the factor, where the wider head rotates it by the same angle.
    """
    old = model.config.head_dim
    if old >= width:
        return model
    config = copy.deepcopy(model.config)
    config.head_dim = width
    found, state = type(model)(config).eval(), model.state_dict()
    for name, weight in state.items():
        if "_proj" not in name or "self_attn" not in name:
            continue
        across = weight.T if "o_proj" in name else weight
        wide = across.new_zeros(len(across) // old, width, across.shape[1])
        wide[:, :: width // old] = across.view(-1, old, across.shape[1])
        wide = wide.flatten(0, 1) * (math.sqrt(width / old) if "q_proj" in name else 1.0)
        state[name] = wide.T.contiguous() if "o_proj" in name else wide
    found.load_state_dict(state)
    return found


def judged(found: WrittenStatistics, nll_q: np.ndarray, exact: np.ndarray, rows: int, splits: int) -> str:
    """Return coverage, half width and bias over the exact divergence, and the bias in standard errors, in words."""
    truth, rng = exact.mean(), np.random.default_rng(rows)
    begins = np.cumsum(found.window_targets) - found.window_targets
    covered, widths, means = [], [], []
    for _ in range(splits):
        some = np.sort(rng.choice(len(begins), rows, replace=False))
        counts = found.window_targets[some]
        at = np.concatenate([np.arange(begins[each], begins[each] + found.window_targets[each]) for each in some])
        layout = TargetLayout(
            window_targets=counts, window_document=np.arange(rows), running_text=False, row_targets=counts
        )
        statistics = SampledStatistics(nll_p=found.nll_q[at], nll_q=nll_q[at], **vars(layout))
        estimate = kl(statistics, signature=Signature([]))
        assert estimate.interval is not None
        covered.append(estimate.interval[0] <= truth <= estimate.interval[1])
        widths.append((estimate.interval[1] - estimate.interval[0]) / 2)
        means.append(estimate.value)
    # Splits share the rows of one pool, so that their mean has the noise of the pool at least.
    bias, error = np.mean(means) - truth, np.std(means) / math.sqrt(min(splits, len(begins) / rows))
    return f"{np.mean(covered):.1%} ±{np.mean(widths) / truth:.2g} {bias / truth:+.1%} ({bias / error:+.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["llama.cpp", "vllm", "server"])
    parser.add_argument("--model", type=Path, default=ROOT / "example_project/models/float", help="folder of a Llama")
    parser.add_argument("--text", type=Path, default=ROOT / "example_project/data/bulletins.jsonl")
    parser.add_argument("--rows", type=int, default=2000, help="prompts in the pool")
    parser.add_argument("--tokens", type=int, default=64, help="tokens that the reference writes for each, at most")
    parser.add_argument("--splits", type=int, default=500)
    asked = parser.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    os.environ["OMP_NUM_THREADS"] = "1"  # of an engine in another process
    torch.set_num_threads(1)
    source = asked.model
    model = AutoModelForCausalLM.from_pretrained(source).float().eval()
    if model.config.pad_token_id is None:
        model.config.pad_token_id = model.config.eos_token_id  # to_gguf.py wants one
    if asked.engine != "llama.cpp":
        model = with_wide_heads(model)
    tokenizer = AutoTokenizer.from_pretrained(source)
    prompts = prompts_of(tokenizer, asked.text.read_text(encoding="utf-8"), asked.rows)
    print("| candidate (exact KL) | 20 rows | 50 rows | 100 rows |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = saved(model, source, Path(folder) / "p")
        reference = described(path=str(checkpoint)).open()
        with opened(asked.engine, checkpoint) as runner:
            found = written(runner, prompts, asked.tokens)
        texts = np.split(found.ids, np.cumsum(found.prompt_tokens + found.window_targets)[:-1])
        requests = requests_of(texts, found.prompt_tokens, reference.tokenizer, "d")
        for name, make in CANDIDATES.items():
            candidate = make(model)
            with opened(asked.engine, saved(candidate, source, Path(folder) / name.replace(" ", "-"))) as runner:
                nll_q = score(runner, requests, JOB).nll
            q = TransformersRunner(replace(reference.loaded, model=candidate), CONTEXT)
            pair = ModelPair(("p", "q"), lambda: reference, lambda q=q: q)
            exact = compare(pair, requests, JOB)[:, COLUMNS.index("kl")]
            cells = [judged(found, nll_q, exact, rows, asked.splits) for rows in (20, 50, 100)]
            print(f"| {name} ({exact.mean():.2g}) | {' | '.join(cells)} |", flush=True)


def saved(model: Any, source: Path, folder: Path) -> Path:
    """Save a model with the tokenizer of another folder."""
    model.save_pretrained(folder)
    for file in source.glob("*token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
