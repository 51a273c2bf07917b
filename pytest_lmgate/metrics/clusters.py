"""Which targets belong to one cluster: rows wherever rows are known, else 20 blocks of consecutive windows.

Targets of one document are not independent, and a document must not be cut: cut at a quarter of the text, a model at
the tolerance passed in 10 to 23 % of simulations where 5 % are promised. A text without rows may hide documents of any
length, so it is cut into few long blocks (batch means; Schmeiser 1982, Operations Research 30(3), advises 10 to 30).
"""

from __future__ import annotations

__all__ = ["BLOCKS", "MAX_CLUSTERS", "TargetLayout", "merged_rows", "window_blocks"]

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_CLUSTERS = 512
BLOCKS = 20


@dataclass(frozen=True)
class TargetLayout:
    """Where the targets of a measurement lie, window after window.

    Attributes:
        window_targets: Targets of each window, shape ``[windows]``.
        row_targets: Targets of each row in the order of the text, shape ``[rows]``; they add up to those of the
            windows. None where the text has no rows.
    """

    window_targets: Ints
    row_targets: Ints | None

    @property
    def has_rows(self) -> bool:
        """Whether at least two rows hold targets; a single row is a text without rows."""
        return self.row_targets is not None and int((self.row_targets > 0).sum()) > 1

    def of_targets(self, values: Floats) -> tuple[Floats, Ints]:
        """Add up a number per target.

        Args:
            values: Shape ``[targets]``, in the order of the windows.

        Returns:
            The sum and the number of targets of each cluster, shape ``[clusters]`` each; at most 512 clusters.
        """
        if self.has_rows:
            assert self.row_targets is not None
            rows = self.row_targets[self.row_targets > 0]
            return _grouped(_run_sums(values, rows), rows, merged_rows(rows))
        windows = self.window_targets
        return _grouped(_run_sums(values, windows), windows, window_blocks(windows))

    def of_windows(self, values: Floats) -> tuple[Floats, Ints]:
        """Add up a number per window; a window belongs to the row that its first target belongs to.

        Args:
            values: Shape ``[windows]``.

        Returns:
            The sum and the number of windows of each cluster, shape ``[clusters]`` each; at most 512 clusters.
        """
        ones = np.ones(len(values), dtype=np.int64)
        if self.has_rows:
            assert self.row_targets is not None
            first = np.cumsum(self.window_targets) - self.window_targets
            row = np.searchsorted(np.cumsum(self.row_targets), first, side="right")
            windows = np.bincount(row)
            windows = windows[windows > 0]
            if len(windows) > 1:
                return _grouped(_run_sums(values, windows), windows, merged_rows(windows))
        return _grouped(values, ones, window_blocks(ones))


def merged_rows(counts: Ints) -> Ints:
    """Assign rows to clusters: each its own, neighbours merged where there would be more than 512.

    Args:
        counts: Targets of each row, shape ``[rows]``.

    Returns:
        Cluster of each row, shape ``[rows]``, from 0, not decreasing; each of more than 512 rows joins its neighbours
        until a cluster holds its share of the targets.
    """
    if len(counts) <= MAX_CLUSTERS:
        return np.arange(len(counts), dtype=np.int64)
    # Not 512: committed baselines of more rows were merged to this share, and pair only with the same clusters.
    return merged_to(counts, -(-int(counts.sum()) // 508))


def merged_to(counts: Ints, share: int) -> Ints:
    """Merge neighbours until each cluster holds at least `share`; what is left over at the end joins the last."""
    clusters = np.zeros(len(counts), dtype=np.int64)
    cluster, held = 0, 0
    for index, count in enumerate(counts.tolist()):
        if held >= share:
            cluster, held = cluster + 1, 0
        clusters[index] = cluster
        held += count
    if held < share:
        clusters[clusters == cluster] = max(cluster - 1, 0)
    return clusters


def window_blocks(targets: Ints) -> Ints:
    """Assign the windows of a text without rows to 20 blocks, as even in targets as whole windows can be.

    Args:
        targets: Of each window, shape ``[windows]``.

    Returns:
        Block of each window, shape ``[windows]``, from 0, not decreasing; fewer than 20 where windows are few.
    """
    # A window belongs to the block that its middle lies in.
    middle = np.cumsum(targets) - targets / 2
    blocks = np.minimum((BLOCKS * middle / targets.sum()).astype(np.int64), BLOCKS - 1)
    return np.unique(blocks, return_inverse=True)[1].astype(np.int64)


def _run_sums(values: Floats, lengths: Ints) -> Floats:
    """Add up consecutive runs of at least one value, in float64."""
    begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    sums: Floats = np.add.reduceat(values.astype(np.float64), begins)
    return sums


def _grouped(sums: Floats, counts: Ints, clusters: Ints) -> tuple[Floats, Ints]:
    total = np.bincount(clusters, weights=sums).astype(np.float64)
    return total, np.bincount(clusters, weights=counts).astype(np.int64)
