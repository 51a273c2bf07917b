"""NLLs as they come in: what an interrupted run left, what is still to do, progress, and what is kept now and then."""

from __future__ import annotations

__all__ = ["Scoreboard"]

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.engine.likelihood import Checkpointing, Progress
from pytest_lmgate.errors import NonFiniteError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Scoreboard:
    """The NLLs of a measurement, in nats, shape ``[targets]``; NaN where not yet scored.

    Where more than one number is measured of each target, the shape is ``[targets, columns]``.

    Args:
        count: Targets there are.
        model: Name of the model, for messages.
        dataset: Name of the dataset, likewise.
        describe: Where a target is, in words.
        report: Told how far the measurement is.
        checkpointing: Where interrupted work is kept.
        columns: Numbers measured of each target; the first is what progress tells the mean of.
        measure: What the mean of the first is called there.
    """

    def __init__(
        self,
        count: int,
        *,
        model: str,
        dataset: str,
        describe: Callable[[int], str],
        report: Callable[[Progress], None] = lambda _: None,
        checkpointing: Checkpointing | None = None,
        columns: int = 1,
        measure: str = "ppl",
    ) -> None:
        self._measure = measure
        self._model, self._dataset, self._describe, self._report = model, dataset, describe, report
        self._keep = checkpointing or Checkpointing()
        known = self._keep.known
        shape = (count,) if columns == 1 else (count, columns)
        fits = known is not None and known.shape == shape
        self.nll: Floats = np.array(known if fits else np.full(shape, np.nan), dtype=np.float64)
        self._resumed = self._done = int(np.isfinite(self._first(self.nll)).sum())
        self._total = float(np.nansum(self._first(self.nll)))
        self._read = 0
        self._started = self._saved = time.monotonic()

    def is_scored(self, target: int) -> bool:
        """Whether a target is."""
        return bool(np.isfinite(self.nll[target]).all())

    def put(self, at: Ints, nll: Floats, *, read: int) -> None:
        """Take the NLLs of some targets that were not scored yet.

        Args:
            at: Which, shape ``[some]``.
            nll: Likewise, or ``[some, columns]``.
            read: Tokens read for them.

        Raises:
            NonFiniteError: One is NaN or infinite.
        """
        bad = np.flatnonzero(~np.isfinite(self._first(nll)))
        if len(bad):
            kind = "NaN" if np.isnan(self._first(nll)[bad[0]]) else "infinite"
            raise NonFiniteError(
                f"model {self._model!r}: {kind} log-likelihood of {self._describe(int(at[bad[0]]))} of "
                f"{self._dataset!r} ({len(bad)} of {len(nll)} in this batch); the weights are damaged, or the dtype "
                "overflows (try dtype: float32)"
            )
        self.nll[at] = nll
        self._done += len(at)
        self._total += float(self._first(nll).sum())
        self._read += read
        now = time.monotonic()
        self._report(
            Progress(
                self._model,
                self._dataset,
                self._done,
                len(self.nll),
                self._total,
                now - self._started,
                self._read,
                self._resumed,
                self._measure,
            )
        )
        if now - self._saved >= self._keep.every and self._done < len(self.nll):
            self._keep.save(self.nll)
            self._saved = now

    @staticmethod
    def _first(values: Floats) -> Floats:
        """The first column, which is the only one of NLLs."""
        return values if values.ndim == 1 else values[:, 0]
