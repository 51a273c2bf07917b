"""`TargetLayout`: where the targets of a measurement lie, from which its numbers per target are added up by cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.stats.means import ClusteredMean, merged_rows, noisy_mean, window_blocks
from pytest_lmgate.stats.sample import ByRow, Sample, Scale

_AT_ONCE = 2**20  # targets that are copied at a time


@dataclass(frozen=True, kw_only=True)
class TargetLayout:
    """The places of a measurement's targets, window after window."""

    window_targets: Ints  # targets of each window, shape ``[windows]``
    window_document: Ints  # document of each window, shape ``[windows]``, not decreasing
    running_text: bool  # whether the rows were read as one text
    # Targets of each row in the order of the text, shape ``[rows]``, with the same total as the windows'. None if the
    # text has no rows.
    row_targets: Ints | None = None
    targets: str = ""  # digest of the targets: measurements with the same digest are of the same tokens

    @property
    def has_rows(self) -> bool:
        """Whether at least two rows have targets; a single row is a text without rows."""
        return self._sizes_of_rows(by_window=False) is not None

    @property
    def clusters(self) -> tuple[int, str]:
        """The number of clusters for the noise, and their kind: ``rows`` or ``blocks``."""
        counts = self.of_targets(np.zeros(int(self.window_targets.sum())))[1]
        return int((counts > 0).sum()), "rows" if self.has_rows else "blocks"

    def window_sums(self, values: NDArray[np.floating]) -> Floats:
        """Sum a number per target in each window, in float64; shape ``[windows]``."""
        return _run_sums(values, self.window_targets)

    def mean(self, values: Floats) -> ClusteredMean:
        """Return the mean of a number per target, and its noise between clusters."""
        return noisy_mean(*self.of_targets(values), rows=self.has_rows)

    def sample(self, values: NDArray[np.floating], scale: Scale, *, by_window: bool = False) -> Sample:
        """Return the sums by cluster of a number per target, ``[targets]``, or of its mean in each window."""
        windows, rows = self.window_targets, self._sizes_of_rows(by_window=by_window)
        if by_window:
            values, windows = self.window_sums(values) / windows, np.ones_like(windows)
        sums, counts = _summed(values, windows, rows)
        by_row = None if rows is None else _by_row(values, rows)
        identity = {"targets": self.targets}
        return Sample(sums[:, None], counts, scale, identity=identity, rows=by_row is not None, by_row=by_row)

    def rows_of(self) -> Ints | None:
        """Return the row of each target, shape ``[targets]``; None if the text has no rows."""
        if not self.has_rows or self.row_targets is None:
            return None
        return np.repeat(np.arange(len(self.row_targets), dtype=np.int64), self.row_targets)

    def of_targets(self, values: NDArray[np.floating]) -> tuple[Floats, Ints]:
        """Sum a number per target, ``[targets]``, by cluster, at most 512; return the sums and numbers of targets."""
        return _summed(values, self.window_targets, self._sizes_of_rows(by_window=False))

    def _sizes_of_rows(self, *, by_window: bool) -> Ints | None:
        """Return the number of targets (or windows) of each row; None if fewer than two rows have any.

        A window belongs to the row of its first target.
        """
        sizes = self.row_targets
        if sizes is not None and by_window:
            first = np.cumsum(self.window_targets) - self.window_targets
            rows = np.searchsorted(np.cumsum(sizes), first, side="right")
            sizes = np.bincount(rows, minlength=len(sizes)).astype(np.int64)
        return None if sizes is None or int((sizes > 0).sum()) < 2 else sizes


def _by_row(values: NDArray[np.floating], sizes: Ints) -> ByRow:
    sums = np.zeros(len(sizes))
    for some, within in _in_groups(sizes):
        rows = np.repeat(np.arange(some.stop - some.start), sizes[some])
        sums[some] = np.bincount(rows, weights=values[within], minlength=some.stop - some.start)
    return ByRow(sums[:, None], sizes, np.arange(len(sizes), dtype=np.int64))


def _summed(values: NDArray[np.floating], windows: Ints, rows: Ints | None) -> tuple[Floats, Ints]:
    """Sum numbers by clusters of rows, or else by blocks of windows, given the size of each row or window."""
    if rows is None:
        return _grouped(_run_sums(values, windows), windows, window_blocks(windows))
    rows = rows[rows > 0]
    return _grouped(_run_sums(values, rows), rows, merged_rows(rows))


def _run_sums(values: NDArray[np.floating], lengths: Ints) -> Floats:
    """Sum consecutive non-empty runs of values, in float64."""
    sums = np.empty(len(lengths))
    for runs, within in _in_groups(lengths):
        begins = np.cumsum(lengths[runs]) - lengths[runs]
        sums[runs] = np.add.reduceat(values[within].astype(np.float64), begins)
    return sums


def _in_groups(lengths: Ints) -> Iterator[tuple[slice, slice]]:
    """Return slices of consecutive runs and of their values, a few at a time."""
    ends = np.cumsum(lengths)
    group = ends // _AT_ONCE
    runs = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(lengths)]
    for first, last in pairwise(runs):
        yield slice(first, last), slice(int(ends[first] - lengths[first]), int(ends[last - 1]))


def _grouped(sums: Floats, counts: Ints, clusters: Ints) -> tuple[Floats, Ints]:
    total = np.bincount(clusters, weights=sums).astype(np.float64)
    return total, np.bincount(clusters, weights=counts).astype(np.int64)
