"""Standard errors of a ratio of sums over clusters, with small-sample degrees of freedom.

Tokens of one document are not independent, so the noise is judged between clusters: CR2 residual scaling and
Bell-McCaffrey degrees of freedom (Bell and McCaffrey 2002, Survey Methodology 28(2)), under the working model that the
cluster's own effect dominates. See docs/noise.md for why nothing simpler holds its level.
"""

from __future__ import annotations

__all__ = ["MAX_CLUSTERS", "ClusteredMean", "block_clusters", "clustered_mean"]

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.metrics.student import t_quantile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_CLUSTERS = 512


@dataclass(frozen=True)
class ClusteredMean:
    """A mean over targets with its cluster-robust noise.

    Attributes:
        mean: ``m = sum s_c / N``.
        n: N, targets.
        clusters: C, clusters with at least one target.
        stderr: CR2 standard error of `mean`; None with fewer than two clusters.
        df: Bell-McCaffrey degrees of freedom; None likewise.
    """

    mean: float
    n: int
    clusters: int
    stderr: float | None
    df: float | None

    def margin(self, confidence: float = 0.95) -> float | None:
        """Half the width of the two-sided interval: ``t_df se``."""
        if self.stderr is None or self.df is None:
            return None
        return t_quantile(0.5 + confidence / 2, self.df) * self.stderr


def clustered_mean(sums: Floats, counts: Ints) -> ClusteredMean:
    """Return the mean of a sum over clusters and its noise.

    ``se^2 = sum_c e_c^2 / (1 - h_c) / N^2`` with ``e_c = s_c - m n_c`` and ``h_c = n_c / N``;
    ``df = tr(M)^2 / tr(M M)``, ``M = G G'``, ``G = diag((1 - h)^-1/2) (I - n 1'/N) diag(n)``.

    Args:
        sums: ``s_c``, shape ``[clusters]``.
        counts: ``n_c``, shape ``[clusters]``; clusters without targets are left out.

    Raises:
        ValueError: There is no target at all.
    """
    kept = counts > 0
    s, n = sums[kept].astype(np.float64), counts[kept].astype(np.float64)
    total = float(n.sum())
    if total == 0:
        raise ValueError("expected at least one target, got none")
    mean = float(s.sum()) / total
    if len(n) < 2:
        return ClusteredMean(mean, int(total), len(n), None, None)
    h = n / total
    residuals = s - mean * n
    stderr = float(np.sqrt((residuals**2 / (1 - h)).sum())) / total
    return ClusteredMean(mean, int(total), len(n), stderr, _bell_mccaffrey(n, h))


def _bell_mccaffrey(n: Floats, h: Floats) -> float:
    """``tr(M)^2 / tr(M M)``, from ``B = diag(n) - n n'/N`` and ``M = diag(a) B B' diag(a)``, ``a = (1 - h)^-1/2``."""
    square = n**2
    total, squares = n.sum(), square.sum()
    product = np.diag(square) - (np.outer(square, n) + np.outer(n, square)) / total
    product += np.outer(n, n) * (squares / total**2)
    weight = 1 / np.sqrt(1 - h)
    m = product * np.outer(weight, weight)
    return float(np.trace(m) ** 2 / (m * m).sum())


def block_clusters(documents: Ints, targets: Ints, *, running_text: bool) -> Ints:
    """Assign windows to clusters: documents, or blocks of consecutive windows in running text.

    A document that holds more than a quarter of all targets is itself running text. Where there would be more than
    512 clusters, neighbours are merged until each holds its share of the targets: whole documents with each other, the
    windows of a running text among themselves.

    Args:
        documents: Document of each window, shape ``[windows]``, not decreasing.
        targets: Targets of each window, shape ``[windows]``.
        running_text: Whether document boundaries mean nothing.

    Returns:
        Cluster of each window, shape ``[windows]``, from 0, not decreasing; at most 512 clusters.
    """
    total = int(targets.sum())
    long = running_text | (np.bincount(documents, weights=targets)[documents] > total / 4)
    new_document = np.diff(documents, prepend=-1) != 0
    if running_text:
        new_document[1:] = False
    # A unit ends where the document does, or in running text with every window.
    begins = np.flatnonzero(new_document | long)
    units = np.repeat(np.arange(len(begins), dtype=np.int64), np.diff(begins, append=len(documents)))
    if len(begins) <= MAX_CLUSTERS:
        return units
    sizes = np.add.reduceat(targets, begins)
    # At most three documents hold more than a quarter each, so at most four stretches of others lie between them, of
    # which each can be less than a share and yet a cluster.
    share = -(-total // (MAX_CLUSTERS - 4))
    stretch_begins = np.flatnonzero((new_document & (long | np.roll(long, 1)))[begins][1:]) + 1
    merged = [_merged(stretch, share) for stretch in np.split(sizes, stretch_begins)]
    offsets = np.cumsum([0, *(stretch[-1] + 1 for stretch in merged[:-1])])
    clusters: Ints = np.concatenate([stretch + offset for stretch, offset in zip(merged, offsets, strict=True)])
    return clusters[units]


def _merged(sizes: Ints, share: int) -> Ints:
    """Merge neighbours until each cluster holds at least `share`; what is left over at the end joins the last."""
    clusters = np.zeros(len(sizes), dtype=np.int64)
    cluster, held = 0, 0
    for unit, size in enumerate(sizes):
        if held >= share:
            cluster, held = cluster + 1, 0
        clusters[unit] = cluster
        held += int(size)
    if held < share:
        clusters[clusters == cluster] = max(cluster - 1, 0)
    return clusters
