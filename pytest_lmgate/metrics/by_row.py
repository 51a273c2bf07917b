"""`ByRow`: a sample's statistics row by row, from which the sample of some rows alone can be made."""

from __future__ import annotations

__all__ = ["ByRow"]

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats, Ints

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ByRow:
    """Statistics of each row.

    Attributes:
        sums: Shape ``[rows, k]``, as in `Sample`.
        counts: Targets, or other units, of each row, shape ``[rows]``; 0 where a row has none.
        clusters: Cluster of each row, shape ``[rows]``, not necessarily without gaps.
    """

    sums: Floats
    counts: Ints
    clusters: Ints

    def of_rows(self, kept: Flags) -> ByRow:
        """Return the statistics of the rows that `kept` marks, shape ``[rows]``; clusters count from 0 without gaps."""
        clusters = np.unique(self.clusters[kept], return_inverse=True)[1].reshape(-1).astype(np.int64)
        return ByRow(self.sums[kept], self.counts[kept], clusters)

    def by_cluster(self) -> tuple[Floats, Ints]:
        """Return sums and counts of each cluster, shape ``[clusters, k]`` and ``[clusters]``."""
        columns = [np.bincount(self.clusters, weights=column) for column in self.sums.T]
        return np.stack(columns, axis=1), np.bincount(self.clusters, weights=self.counts).astype(np.int64)
