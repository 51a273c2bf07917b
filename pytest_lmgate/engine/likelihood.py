"""Running planned windows through a model: batches by a budget of tokens, each window's hidden states read once.

Windows are right-padded and no attention mask is passed: a causal model's states do not depend on what comes after (see
`causality.require_causal`), so padding cannot change a number, and the fast attention kernels stay available. What a
batch holds is a matter of speed alone.
"""

from __future__ import annotations

__all__ = ["Checkpointing", "Progress", "Stopped", "check_finite", "measure_nll"]

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pytest_lmgate.data.tokens import Streams
from pytest_lmgate.data.windows import WindowPlan
from pytest_lmgate.engine.forward import evaluation_mode
from pytest_lmgate.engine.halving import run_halving
from pytest_lmgate.engine.loading import LoadedModel, quiet
from pytest_lmgate.engine.memory import token_budget
from pytest_lmgate.engine.reading import WindowReader, where
from pytest_lmgate.engine.scoring import Scorer
from pytest_lmgate.errors import NonFiniteError

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
        measure: ``ppl``, or the name of what `nll` is the sum of in its place.
    """

    model: str
    dataset: str
    targets: int
    of: int
    nll: float
    seconds: float
    read: int
    resumed: int = 0
    measure: str = "ppl"

    @property
    def line(self) -> str:
        """In words, for people who wait: share, running perplexity, speed, time left."""
        speed = self.read / self.seconds if self.seconds > 0 else 0.0
        fresh = self.targets - self.resumed
        mean = self.nll / self.targets
        value = math.exp(min(700.0, mean)) if self.measure == "ppl" else mean
        left = round(self.seconds * (self.of - self.targets) / fresh) if fresh else 0
        return (
            f"{self.model} on {self.dataset}: {self.targets / self.of:.0%}, "
            f"{self.measure} {value:.4g} so far, {speed:,.0f} tokens/s, "
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
    remark: Callable[[str], None] = lambda _: None,
) -> Floats:
    """Score every planned target; windows that read and score the same tokens are read once.

    Args:
        loaded: The model.
        streams: Token streams that the plan refers to.
        plan: Windows.
        dataset: Name of the dataset, for messages.
        batch_size: Windows per batch, or ``auto`` for a budget of tokens that memory allows.
        report: Called after each batch.
        stop_when: Called after each batch with the NLL summed so far, which can only grow.
        checkpointing: Where interrupted work is kept.
        remark: Told in one sentence what the session's summary should say of the model.

    Returns:
        NLLs in nats, shape ``[targets]``, in the order of the plan; float32, or float64 for a model in float64.

    Raises:
        ModelError: The model is not causal or not deterministic, or a token id is beyond its vocabulary.
        NonFiniteError: A log-likelihood is NaN or infinite.
        EngineError: Out of memory with a single window, or the model itself failed.
        Stopped: `stop_when` said so.
    """
    checkpointing = checkpointing or Checkpointing()
    offsets = np.concatenate([[0], np.cumsum(plan.targets)])
    scored, todo = _resumable(checkpointing.known, offsets)
    resumed = int(np.isfinite(scored).sum())
    total = float(np.nansum(scored, dtype=np.float64))
    targets, read, started, saved = resumed, 0, time.monotonic(), time.monotonic()
    with torch.inference_mode(), evaluation_mode(loaded.model), quiet():
        runner = _Runner(loaded, streams, plan, batch_size, remark)
        for batch in runner.reader.batches(todo):
            values = runner.nll(batch)
            check_finite(values, batch, plan, loaded.name, dataset)
            ends = np.cumsum(plan.targets[batch])
            for window, nll in zip(batch.tolist(), np.split(values, ends[:-1]), strict=True):
                for equal in runner.reader.equal(window):
                    scored[offsets[equal] : offsets[equal + 1]] = nll
                    total += float(nll.sum(dtype=np.float64))
                    targets += len(nll)
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

    def __init__(
        self,
        loaded: LoadedModel,
        streams: Streams,
        plan: WindowPlan,
        batch_size: int | str,
        remark: Callable[[str], None],
    ) -> None:
        self._loaded = loaded
        self.reader = WindowReader(streams, plan, batch_size)
        self.reader.check_vocabulary(loaded)
        self._scorer = Scorer.causal(loaded, self.reader.longest, what="a window")
        self.is_double = self._scorer.dtype(loaded) == torch.float64
        budget = token_budget(loaded.device, self._scorer.plain_vocabulary(loaded))
        self.reader.allow(budget)
        self.reader.company = self.reader.find_company(loaded, self._scorer, budget, remark)

    def nll(self, windows: Ints) -> NDArray[np.float64]:
        """Return the NLLs of the windows' targets, one window after the other."""
        parts = run_halving(
            windows.tolist(),
            lambda some: self._run(np.array(some)).cpu().numpy(),
            device=self._loaded.device,
            name=self._loaded.name,
            what=lambda some: self.reader.describe(np.array(some)),
            shrink=lambda count: self.reader.shrink(windows, count),
        )
        return np.concatenate(parts)

    def _run(self, windows: Ints) -> Tensor:
        batch = self.reader.batch(windows)
        inputs = batch.ids.to(self._loaded.device)
        return self._scorer.nll(self._loaded.model, inputs, batch.rows, batch.columns, batch.targets)


def _resumable(known: Floats | None, offsets: Ints) -> tuple[NDArray[np.float64], Ints]:
    """Return the NLLs known so far, NaN elsewhere, and the windows still to score; each is known whole or not."""
    scored = np.full(int(offsets[-1]), np.nan)
    if known is None or known.shape != scored.shape:
        return scored, np.arange(len(offsets) - 1)
    whole = np.logical_and.reduceat(np.isfinite(known), offsets[:-1])
    kept = np.repeat(whole, np.diff(offsets))
    scored[kept] = known[kept]
    return scored, np.flatnonzero(~whole)


def check_finite(values: NDArray[np.float64], windows: Ints, plan: WindowPlan, model: str, dataset: str) -> None:
    """Refuse NLLs of the targets of some windows of which one is NaN or infinite.

    Raises:
        NonFiniteError: There is one.
    """
    bad = np.flatnonzero(~np.isfinite(values))
    if not len(bad):
        return
    kind = "NaN" if np.isnan(values[bad[0]]) else "infinite"
    raise NonFiniteError(
        f"model {model!r}: {kind} log-likelihood of {where(plan, windows, int(bad[0]), dataset)} "
        f"({len(bad)} of {len(values)} in this batch); the weights are damaged, or the dtype overflows (try "
        "dtype: float32)"
    )
