"""Three ways to the same NLLs in one process: the plugin's engine, the published loop, and the floor under both.

The floor computes no NLL: it is the work that no exact method can leave out, done as fast as torch does it.
"""

from __future__ import annotations

__all__ = ["Floor", "Job", "job", "ours", "published_loop"]

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.engines.tokenizers import tokenizer_facts
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.measure import loop
from pytest_lmgate.measure.loop import score_requests
from pytest_lmgate.settings.gate_options import WindowProtocol
from pytest_lmgate.windows.protocols import WindowPlan, plan_windows, tokenize
from pytest_lmgate.windows.requests import window_requests
from pytest_lmgate.windows.tokens import Streams

_BATCHES = (1, 2, 4, 8)
_TILES = ((1024, 512), (1024, 1024), (2048, 256), (512, 1024), (2048, 2048))
_CALIBRATION_WINDOWS, _CALIBRATION_REPEATS = 8, 4


@dataclass(frozen=True)
class Job:
    """A model, the token stream of a text and its windows."""

    loaded: Any
    streams: Streams
    plan: WindowPlan
    max_length: int
    stride: int


def job(loaded: Any, text: str, *, max_length: int, stride: int, protocol: str = "sliding") -> Job:
    """Plan the windows of a text, as a gate does; only `sliding` has a stride."""
    asked = WindowProtocol(protocol, max_length=max_length, stride=stride if protocol == "sliding" else None)
    windowing = asked.windowing(max_length, model=loaded.name)
    facts = tokenizer_facts(loaded.tokenizer)
    streams = tokenize(Corpus("text", (text,), is_one_text=True), windowing, facts, model=loaded.name)
    plan = plan_windows(windowing, streams.lengths, adds_bos=facts.adds_bos)
    return Job(loaded, streams, plan, max_length, stride)


def ours(what: Job, proofs: dict[str, Any] | None = None, **how: Any) -> np.ndarray:
    """Measure with the plugin's engine, the trials of the model included.

    Args:
        what: What to measure.
        proofs: What an earlier session proved of the model, which is only checked; those of this run are added.
        how: Fields of `loop.Job`.

    Returns:
        NLLs in nats, shape ``[targets]``.
    """
    runner, requests = TransformersRunner(what.loaded, None), window_requests(what.streams, what.plan, "text")
    runner.proofs = proofs or {}
    found = score_requests(runner, requests, loop.Job(model=what.loaded.name, dataset="text", **how)).nll
    if proofs is not None:
        proofs.update(runner.proofs)
    return found


def published_loop(what: Job) -> list[float]:
    """Run the loop of Hugging Face's page "Perplexity of fixed-length models", one window at a time.

    Source: https://huggingface.co/docs/transformers/perplexity, without its progress bar and its final sum.

    Returns:
        Mean NLL in nats of each window.
    """
    model = what.loaded.model
    ids = torch.from_numpy(what.streams.ids[0])[None].to(what.loaded.device)
    seq_len = ids.size(1)
    losses = []
    prev_end_loc = 0
    for begin_loc in range(0, seq_len, what.stride):
        end_loc = min(begin_loc + what.max_length, seq_len)
        trg_len = end_loc - prev_end_loc
        input_ids = ids[:, begin_loc:end_loc]
        target_ids = input_ids.clone()
        target_ids[:, :-trg_len] = -100
        with torch.no_grad():
            outputs = model(input_ids, labels=target_ids)
        losses.append(outputs.loss.item())
        prev_end_loc = end_loc
        if end_loc == seq_len:
            break
    return losses


class Floor:
    """Hidden states of all windows by the base model; for the scored targets all logits, and their exponentials' sums.

    Batch size and tile are tried out on this machine, and the fastest are used, not the plugin's own.
    """

    def __init__(self, what: Job) -> None:
        self._body = what.loaded.model.base_model
        self._weight = what.loaded.model.get_output_embeddings().weight.detach()
        self._job = what
        some = _by_length(what.plan)[:_CALIBRATION_WINDOWS]
        self.batch = _fastest(_BATCHES, lambda size: self._hidden(self._inputs(some, size)))
        self.tile = _fastest(_TILES, self._product_on_noise)
        self._batches = self._inputs(_by_length(what.plan), self.batch)

    def run(self) -> None:
        """Do the work once."""
        with torch.inference_mode():
            for ids, rows, columns in self._batches:
                hidden = self._body(input_ids=ids, use_cache=False).last_hidden_state
                self._product(hidden[rows, columns], self.tile)

    def _hidden(self, batches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
        for ids, _, _ in batches:
            self._body(input_ids=ids, use_cache=False)

    def _product_on_noise(self, tile: tuple[int, int]) -> None:
        self._product(torch.zeros(2048, self._weight.shape[1]), tile)

    def _product(self, hidden: Tensor, tile: tuple[int, int]) -> None:
        height, width = tile
        buffer = torch.empty(height * width)
        for block in hidden.split(height):
            for part in self._weight.split(width):
                out = buffer[: len(block) * len(part)].view(len(block), len(part))
                torch.mm(block, part.t(), out=out).exp_().sum(-1)

    def _inputs(self, windows: Sequence[int], size: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Batches of token ids and, as index pairs, of the positions whose successors are scored."""
        plan, stream = self._job.plan, self._job.streams.ids[0]
        batches = []
        for begin in range(0, len(windows), size):
            batch = windows[begin : begin + size]
            ids = torch.zeros(len(batch), max(int(plan.reads[window]) for window in batch), dtype=torch.long)
            rows, columns = [], []
            for row, window in enumerate(batch):
                first, start, end = (int(array[window]) for array in (plan.begin, plan.first, plan.end))
                ids[row, : end - 1 - first] = torch.from_numpy(stream[first : end - 1])
                rows.append(torch.full((end - start,), row))
                columns.append(torch.arange(start - 1 - first, end - 1 - first))
            batches.append((ids, torch.cat(rows), torch.cat(columns)))
        return batches


def _by_length(plan: WindowPlan) -> list[int]:
    """Windows, longest first, so that a batch has little padding."""
    return [int(window) for window in np.argsort(-plan.reads, kind="stable")]


def _fastest(choices: Sequence[Any], run: Callable[[Any], None]) -> Any:
    """The choice with the shortest of a few interleaved runs."""
    best: dict[Any, float] = {}
    with torch.inference_mode():
        for _, choice in itertools.product(range(_CALIBRATION_REPEATS), choices):
            begun = time.perf_counter()
            run(choice)
            best[choice] = min(best.get(choice, float("inf")), time.perf_counter() - begun)
    return min(best, key=best.__getitem__)
