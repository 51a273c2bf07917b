"""Which targets belong to one cluster: rows wherever rows are known, else 64 blocks of consecutive windows.

Targets of one document are not independent, and a document must not be cut: cut at a quarter of the text, a model at
the tolerance passed in 10 to 23 % of simulations where 5 % are promised. A text without rows may hide documents of any
length that begin anywhere. Its blocks cut them, so `means.mean_of_blocks` does not take blocks for independent.
"""

from __future__ import annotations

__all__ = ["BLOCKS", "INTERVAL_NEEDS", "MAX_CLUSTERS", "MIN_BLOCKS", "merged_rows", "window_blocks"]

import numpy as np

from pytest_lmgate.arrays import Ints

MAX_CLUSTERS = 512
BLOCKS = 64
MIN_BLOCKS = 8
"""Blocks below which a text without rows has no interval."""
INTERVAL_NEEDS = f"at least two rows, or {MIN_BLOCKS} windows of a text without rows"


def merged_rows(counts: Ints) -> Ints:
    """Assign rows to clusters: each its own, neighbours merged where there would be more than 512.

    Args:
        counts: Targets of each row, shape ``[rows]``.

    Returns:
        Cluster of each row, shape ``[rows]``, from 0, not decreasing.
    """
    if len(counts) <= MAX_CLUSTERS:
        return np.arange(len(counts), dtype=np.int64)
    # Not 512: committed baselines of more rows were merged to this share, and pair only with the same clusters.
    share = -(-int(counts.sum()) // 508)
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
    """Assign the windows of a text without rows to 64 blocks, as even in targets as whole windows can be.

    Args:
        targets: Targets of each window, shape ``[windows]``.

    Returns:
        Block of each window, shape ``[windows]``, from 0, not decreasing; fewer than 64 where windows are few.
    """
    # A window belongs to the block that its middle lies in.
    middle = np.cumsum(targets) - targets / 2
    blocks = np.minimum((BLOCKS * middle / targets.sum()).astype(np.int64), BLOCKS - 1)
    return np.unique(blocks, return_inverse=True)[1].astype(np.int64)
