"""Running planned windows through a model: batches by a budget of tokens, each window's hidden states read once.

Windows are right-padded and no attention mask is passed: a causal model's states do not depend on what comes after (see
`forward.require_causal`), so padding cannot change a number, and the fast attention kernels stay available. What a
batch holds is a matter of speed alone.
"""

from __future__ import annotations

__all__ = ["Checkpointing", "Progress", "Stopped", "measure_nll"]

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pytest_lmgate.data.tokens import Streams
from pytest_lmgate.data.windows import WindowPlan
from pytest_lmgate.engine.forward import evaluation_mode, logits_of, require_causal, run
from pytest_lmgate.engine.halving import failure, run_halving
from pytest_lmgate.engine.head import capture_hidden, prove_head
from pytest_lmgate.engine.loading import LoadedModel, quiet
from pytest_lmgate.engine.memory import token_budget
from pytest_lmgate.engine.streaming import streamed_nll
from pytest_lmgate.errors import LmgateError, ModelError, NonFiniteError

Floats = NDArray[np.float32] | NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Progress:
    """How far a measurement is.

    Attributes:
        model: Name of the model.
        dataset: Name of the dataset.
        targets: Targets scored so far.
        of: Targets there are.
        nll: Their NLL in nats, summed.
        seconds: Time since the measurement began.
        read: Tokens read in that time.
        resumed: Targets that an earlier, interrupted run had scored.
    """

    model: str
    dataset: str
    targets: int
    of: int
    nll: float
    seconds: float
    read: int
    resumed: int = 0

    @property
    def line(self) -> str:
        """In words, for people who wait: share, running perplexity, speed, time left."""
        speed = self.read / self.seconds if self.seconds > 0 else 0.0
        fresh = self.targets - self.resumed
        left = round(self.seconds * (self.of - self.targets) / fresh) if fresh else 0
        return (
            f"{self.model} on {self.dataset}: {self.targets / self.of:.0%}, "
            f"ppl {math.exp(min(700.0, self.nll / self.targets)):.4g} so far, {speed:,.0f} tokens/s, "
            f"{timedelta(seconds=left)} left"
        )


class Stopped(Exception):
    """Raised where `stop_when` said that a partial sum decides; no error, and so not named one."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self.progress = progress


@dataclass
class Checkpointing:
    """Where interrupted work is kept.

    Attributes:
        known: NLLs of an earlier run in the plan's order, NaN where not yet scored; None to begin afresh.
        save: Called with such an array now and then.
        every: Seconds between two calls.
    """

    known: Floats | None = None
    save: Callable[[Floats], None] = field(default=lambda _: None)
    every: float = 10.0


def measure_nll(
    loaded: LoadedModel,
    streams: Streams,
    plan: WindowPlan,
    *,
    dataset: str,
    batch_size: int | str = "auto",
    report: Callable[[Progress], None] = lambda _: None,
    stop_when: Callable[[float], bool] = lambda _: False,
    checkpointing: Checkpointing | None = None,
) -> Floats:
    """Score every planned target.

    Args:
        loaded: The model.
        streams: Token streams that the plan refers to.
        plan: Windows.
        dataset: Name of the dataset, for messages.
        batch_size: Windows per batch, or ``auto`` for a budget of tokens that memory allows.
        report: Called after each batch.
        stop_when: Called after each batch with the NLL summed so far, which can only grow.
        checkpointing: Where interrupted work is kept.

    Returns:
        NLLs in nats, shape ``[targets]``, in the order of the plan; float32, or float64 for a model in float64.

    Raises:
        ModelError: The model is not causal, or a token id is beyond its vocabulary.
        NonFiniteError: A log-likelihood is NaN or infinite.
        EngineError: Out of memory with a single window, or the model itself failed.
        Stopped: `stop_when` said so.
    """
    checkpointing = checkpointing or Checkpointing()
    _check_vocabulary(loaded, streams)
    offsets = np.concatenate([[0], np.cumsum(plan.targets)])
    scored, todo = _resumable(checkpointing.known, offsets)
    resumed = int(np.isfinite(scored).sum())
    total = float(np.nansum(scored, dtype=np.float64))
    targets, read, started, saved = resumed, 0, time.monotonic(), time.monotonic()
    with torch.inference_mode(), evaluation_mode(loaded.model), quiet():
        runner = _Runner(loaded, streams, plan, batch_size)
        for batch in _batches(todo, plan, batch_size, runner):
            values = runner.nll(batch)
            begin = 0
            for window in batch:
                length = int(plan.targets[window])
                scored[offsets[window] : offsets[window] + length] = values[begin : begin + length]
                begin += length
            _check_finite(values, batch, plan, loaded.name, dataset)
            total += float(values.sum(dtype=np.float64))
            targets += len(values)
            read += int(plan.reads[batch].sum())
            now = time.monotonic()
            progress = Progress(loaded.name, dataset, targets, len(scored), total, now - started, read, resumed)
            report(progress)
            if targets < len(scored):
                if stop_when(total):
                    checkpointing.save(scored)
                    raise Stopped(progress)
                if now - saved >= checkpointing.every:
                    checkpointing.save(scored)
                    saved = now
    return scored if runner.is_double else scored.astype(np.float32)


class _Runner:
    """One model on one set of windows: runs batches, smaller ones where memory does not suffice."""

    def __init__(self, loaded: LoadedModel, streams: Streams, plan: WindowPlan, batch_size: int | str) -> None:
        self._loaded, self._streams, self._plan = loaded, streams, plan
        # The longest window: it has the most to prove with.
        ids = torch.from_numpy(self._read(int(plan.reads.argmax()))).to(loaded.device)
        try:
            require_causal(loaded.model, ids, name=loaded.name)
            self._split = prove_head(loaded.model, ids)
        except LmgateError:
            raise
        except Exception as error:
            what = f"a window of {len(ids):,} tokens"
            raise failure(error, device=loaded.device, name=loaded.name, what=what) from error
        dtype = getattr(loaded.model, "dtype", torch.float32) if self._split is None else self._split[0].dtype
        self.is_double = dtype == torch.float64
        vocabulary = (loaded.vocabulary_size or 0) if self._split is None else 0
        if isinstance(batch_size, int):
            self.budget = batch_size * max(1, int(plan.reads.max()))
        else:
            self.budget = token_budget(loaded.device, vocabulary)

    def nll(self, windows: Ints) -> NDArray[np.float64]:
        """Return the NLLs of the windows' targets, one window after the other."""
        longest = int(self._plan.reads[windows].max())

        def shrink(count: int) -> None:
            self.budget = max(1, min(self.budget, count * longest))

        parts = run_halving(
            windows.tolist(),
            lambda some: self._run(np.array(some)).cpu().numpy(),
            device=self._loaded.device,
            name=self._loaded.name,
            what=lambda some: f"a window of {self._plan.reads[list(some)].max():,} tokens",
            shrink=shrink,
        )
        return np.concatenate(parts)

    def _run(self, windows: Ints) -> Tensor:
        plan, model, name = self._plan, self._loaded.model, self._loaded.name
        reads, counts = plan.reads[windows], plan.targets[windows]
        ids = np.zeros((len(windows), int(reads.max())), dtype=np.int64)
        for row, window in enumerate(windows):
            ids[row, : reads[row]] = self._read(int(window))
        inputs = torch.from_numpy(ids).to(self._loaded.device)
        # The state at a position predicts the next token: the targets' states are the last ones of each window.
        rows = torch.from_numpy(np.repeat(np.arange(len(windows)), counts))
        columns = torch.from_numpy(np.concatenate([np.arange(a - b, a) for a, b in zip(reads, counts, strict=True)]))
        targets = torch.from_numpy(np.concatenate([self._targets(int(window)) for window in windows]))
        if self._split is None:
            logits = logits_of(model, inputs)
            _check_ids(int(targets.max()), logits.shape[-1], name)
            return _plain_nll(logits, rows, columns, targets)
        head, module = self._split
        _check_ids(int(targets.max()), head.vocabulary_size, name)
        with capture_hidden(module) as captured:
            run(model, inputs)
        hidden = captured.pop()
        return streamed_nll(hidden[rows.to(hidden.device), columns.to(hidden.device)], targets, head)

    def _targets(self, window: int) -> Ints:
        plan = self._plan
        targets: Ints = self._streams.ids[plan.document[window]][plan.first[window] : plan.end[window]]
        return targets

    def _read(self, window: int) -> Ints:
        """Token ids that the model is fed: the last target needs no state of its own."""
        plan = self._plan
        ids = self._streams.ids[plan.document[window]][plan.begin[window] : plan.end[window] - 1]
        return np.concatenate([[self._streams.prefix], ids]).astype(np.int64) if plan.prefix[window] else ids


def _plain_nll(logits: Tensor, rows: Tensor, columns: Tensor, targets: Tensor) -> Tensor:
    """NLLs from the model's own logits, a few positions upcast at a time."""
    parts = []
    step = max(1, 2**24 // logits.shape[-1])
    for row, column, target in zip(rows.split(step), columns.split(step), targets.split(step), strict=True):
        some = logits[row.to(logits.device), column.to(logits.device)].double()
        some = torch.log_softmax(some, -1)
        parts.append(-some.gather(-1, target.to(logits.device)[:, None])[:, 0])
    return torch.cat(parts)


def _batches(todo: Ints, plan: WindowPlan, batch_size: int | str, runner: _Runner) -> Iterator[Ints]:
    """Windows of like length together, as many as the budget holds; the budget may shrink on the way."""
    order = todo[np.argsort(-plan.reads[todo], kind="stable")]
    begin = 0
    while begin < len(order):
        longest = max(1, int(plan.reads[order[begin]]))
        fits = max(1, runner.budget // longest)
        size = min(batch_size, fits) if isinstance(batch_size, int) else fits
        yield order[begin : begin + size]
        begin += size


def _resumable(known: Floats | None, offsets: Ints) -> tuple[NDArray[np.float64], Ints]:
    """Return the NLLs known so far, NaN elsewhere, and the windows still to score; each is known whole or not."""
    scored = np.full(int(offsets[-1]), np.nan)
    if known is None or known.shape != scored.shape:
        return scored, np.arange(len(offsets) - 1)
    whole = np.logical_and.reduceat(np.isfinite(known), offsets[:-1])
    kept = np.repeat(whole, np.diff(offsets))
    scored[kept] = known[kept]
    return scored, np.flatnonzero(~whole)


def _check_vocabulary(loaded: LoadedModel, streams: Streams) -> None:
    highest = max((int(ids.max()) for ids in streams.ids if len(ids)), default=0)
    if loaded.vocabulary_size is not None:
        _check_ids(max(highest, streams.prefix or 0), loaded.vocabulary_size, loaded.name)


def _check_ids(highest: int, size: int, model: str) -> None:
    if highest >= size:
        raise ModelError(
            f"model {model!r}: its tokenizer gives token id {highest}, but its vocabulary has {size} entries; the "
            "tokenizer belongs to another model, or tokens were added without resizing the embeddings"
        )


def _check_finite(values: NDArray[np.float64], batch: Ints, plan: WindowPlan, model: str, dataset: str) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if not len(bad):
        return
    ends = np.cumsum(plan.targets[batch])
    row = int(np.searchsorted(ends, bad[0], side="right"))
    window = batch[row]
    token = int(plan.end[window] - (ends[row] - bad[0]))
    kind = "NaN" if np.isnan(values[bad[0]]) else "infinite"
    raise NonFiniteError(
        f"model {model!r}: {kind} log-likelihood of token {token:,} in document {plan.document[window]} of {dataset!r} "
        f"({len(bad)} of {len(values)} in this batch); the weights are damaged, or the dtype overflows (try "
        "dtype: float32)"
    )
