"""Scoring requests: their targets' NLLs, each checked to be finite."""

from __future__ import annotations

__all__ = ["Scored", "TargetBoard", "require_finite", "score"]

import math
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.backends.base import Runner
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.data.requests.joining import read_once
from pytest_lmgate.data.requests.requests import Requests
from pytest_lmgate.engine.loop import Job, prepared, run_batches
from pytest_lmgate.engine.trials import checked, prepared_to_score, require_ids
from pytest_lmgate.errors import EngineError, NonFiniteError, UnreliableError

_LOWEST = -1e-3  # rounding may put the NLL of a certain token below 0


class Scored(NamedTuple):
    """The NLLs of a measurement.

    Attributes:
        nll: In nats, shape ``[targets]``, float64; NaN where not scored.
        total: The sum of the scored ones.
        is_whole: Whether all were scored; False where `Job.stop_when` ended the measurement.
        is_double: Whether the model computed in float64.
    """

    nll: Floats
    total: float
    is_whole: bool
    is_double: bool


def score(runner: Runner, requests: Requests, job: Job) -> Scored:
    """Score every target; requests that read and score the same are run once.

    Raises:
        ModelError: The model cannot be scored, as one that sees the tokens that it has to predict.
        NonFiniteError: A log-likelihood is NaN or infinite.
        EngineError: Out of memory with a single request, or the model itself failed.
    """
    try:
        return _score(runner, requests, job)
    except UnreliableError:
        if job.keep is not None:
            job.keep(Entry({}))  # in place of partial results, of which nobody knows which are right
        raise


def _score(runner: Runner, requests: Requests, job: Job) -> Scored:
    board = TargetBoard(requests, job, lambda index, nll: require_finite(nll, requests, index, job.model))
    with runner.measuring():
        batching = prepared(job.model, requests, lambda: prepared_to_score(runner, requests, job.model), job)

        def begin(some: Sequence[int]) -> Callable[[], list[Floats]]:
            made = [requests.make(each) for each in some]
            require_ids((ids for each in made for ids in (each.ids, each.targets)), job.model)
            joined, parted = read_once(made) if batching.reads_once else (made, list)
            if batching.is_ahead:
                wait = runner.begin(joined)
                return lambda: parted(checked(wait(), job.model))
            found = parted(checked(runner.score(joined), job.model))
            return lambda: found

        is_whole = run_batches(requests, begin, board, batching, job)
    return Scored(board.values, board.total, is_whole, batching.is_double)


class TargetBoard:
    """The numbers of each target as they come in, NaN before; see `engine.loop.Board`.

    Args:
        requests: What is read; a request is done whole or not at all.
        job: The measurement, which may begin with the results of an interrupted run.
        check: Given the number and the results of a request, raises where they are not finite.
        columns: Numbers of each target; progress shows the first.
        passes: How often each token is read.
        show: Says in words what the mean of the first column means.
    """

    def __init__(
        self,
        requests: Requests,
        job: Job,
        check: Callable[[int, Floats], None],
        *,
        columns: int = 1,
        passes: int = 1,
        show: Callable[[float], str] = lambda mean: f"ppl {math.exp(min(700.0, mean)):.4g}",
    ) -> None:
        self._requests, self._model, self._check, self._passes, self._show = requests, job.model, check, passes, show
        self.only: Container[int] | None = None  # the requests that can be run now, where not all can
        self.of, self.tokens = int(requests.counts.sum()), 0
        shape = (self.of,) if columns == 1 else (self.of, columns)
        self.values: Floats = np.full(shape, np.nan)
        known = None if job.partial is None else job.partial.arrays.get("measured")
        if known is not None and known.shape == shape:
            finite = np.isfinite(known) if columns == 1 else np.isfinite(known).all(1)
            whole = np.logical_and.reduceat(finite, requests.offsets[:-1])
            kept = np.repeat(whole, requests.counts)
            self.values[kept] = known[kept]
        self.done = int(np.isfinite(self._first).sum())
        job.say_resumed(self.done, self.of)
        self.total = float(np.nansum(self._first, dtype=np.float64)) if self.done else 0.0

    @property
    def so_far(self) -> str:
        """The share of the targets, and the mean of the first column in words."""
        return f"{self.done / self.of:.0%}, {self._show(self.total / self.done)} so far"

    @property
    def entry(self) -> Entry:
        """The numbers so far."""
        return Entry({"measured": self.values})

    def is_done(self, item: int) -> bool:
        """Return whether a request need not be run now."""
        can_run = self.only is None or item in self.only
        return not can_run or bool(np.isfinite(self._first[self._requests.offsets[item]]))

    def put(self, items: Sequence[int], results: Sequence[Floats]) -> None:
        """Take the results of some requests, for all equal ones too."""
        offsets = self._requests.offsets
        for item, values in zip(items, results, strict=True):
            if values.shape != self.values[: self._requests.counts[item]].shape:
                raise EngineError(
                    f"model {self._model!r}: expected {self._requests.counts[item]:,} numbers of "
                    f"{self._requests.describe([item])}, got an array of shape {list(values.shape)}"
                )
            self._check(item, values)
            first = values if values.ndim == 1 else values[:, 0]
            for equal in self._requests.repeats[item]:
                self.values[offsets[equal] : offsets[equal + 1]] = values
                self.done += len(values)
                self.total += float(first.sum(dtype=np.float64))
            self.tokens += self._passes * int(self._requests.lengths[item])

    @property
    def _first(self) -> Floats:
        return self.values if self.values.ndim == 1 else self.values[:, 0]


def require_finite(values: Floats, requests: Requests, index: int, model: str) -> None:
    """Refuse the NLLs of a request's targets of which one is NaN, infinite or that of no probability.

    Raises:
        NonFiniteError: One is NaN or infinite.
        EngineError: One is below 0.
    """
    if (lowest := float(values.min(initial=0.0))) < _LOWEST:
        raise EngineError(
            f"model {model!r}: a negative log-likelihood of {lowest:.4g} nats in {requests.describe([index])}: "
            "expected 0 or more, since a probability is at most 1; does its engine give log-likelihoods?"
        )
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        kind = "NaN" if np.isnan(values[bad[0]]) else "infinite"
        raise NonFiniteError(
            f"model {model!r}: {kind} log-likelihood of {requests.where(index, int(bad[0]))} ({len(bad)} of "
            f"{len(values)} targets there); the weights are damaged, or the dtype overflows (try dtype: float32)"
        )
