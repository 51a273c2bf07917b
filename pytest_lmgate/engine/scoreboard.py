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

    Args:
        count: Targets there are.
        model: Name of the model, for messages.
        dataset: Name of the dataset, likewise.
        describe: Where a target is, in words.
        report: Told how far the measurement is.
        checkpointing: Where interrupted work is kept.
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
    ) -> None:
        self._model, self._dataset, self._describe, self._report = model, dataset, describe, report
        self._keep = checkpointing or Checkpointing()
        known = self._keep.known
        fits = known is not None and known.shape == (count,)
        self.nll: Floats = np.array(known if fits else np.full(count, np.nan), dtype=np.float64)
        self._resumed = self._done = int(np.isfinite(self.nll).sum())
        self._total = float(np.nansum(self.nll))
        self._read = 0
        self._started = self._saved = time.monotonic()

    def is_scored(self, target: int) -> bool:
        """Whether a target is."""
        return bool(np.isfinite(self.nll[target]))

    def put(self, at: Ints, nll: Floats, *, read: int) -> None:
        """Take the NLLs of some targets that were not scored yet.

        Args:
            at: Which, shape ``[some]``.
            nll: Likewise.
            read: Tokens read for them.

        Raises:
            NonFiniteError: One is NaN or infinite.
        """
        bad = np.flatnonzero(~np.isfinite(nll))
        if len(bad):
            kind = "NaN" if np.isnan(nll[bad[0]]) else "infinite"
            raise NonFiniteError(
                f"model {self._model!r}: {kind} log-likelihood of {self._describe(int(at[bad[0]]))} of "
                f"{self._dataset!r} ({len(bad)} of {len(nll)} in this batch); the weights are damaged, or the dtype "
                "overflows (try dtype: float32)"
            )
        self.nll[at] = nll
        self._done += len(at)
        self._total += float(nll.sum())
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
            )
        )
        if now - self._saved >= self._keep.every and self._done < len(self.nll):
            self._keep.save(self.nll)
            self._saved = now
