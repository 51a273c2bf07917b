"""Which targets belong to one cluster: rows wherever rows are known, else 20 blocks of consecutive windows.

Targets of one document are not independent, and a document must not be cut: cut at a quarter of the text, a model at
the tolerance passed in 10 to 23 % of simulations where 5 % are promised. A text without rows may hide documents of any
length, so it is cut into few long blocks (batch means; Schmeiser 1982, Operations Research 30(3), advises 10 to 30).
"""

from __future__ import annotations

__all__ = ["BLOCKS", "MAX_CLUSTERS", "former_clusters", "merged_rows", "window_blocks"]

import numpy as np

from pytest_lmgate.arrays import Ints

MAX_CLUSTERS = 512
BLOCKS = 20


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
    return _merged_to(counts, -(-int(counts.sum()) // 508))


def _merged_to(counts: Ints, share: int) -> Ints:
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
        targets: Targets of each window, shape ``[windows]``.

    Returns:
        Block of each window, shape ``[windows]``, from 0, not decreasing; fewer than 20 where windows are few.
    """
    # A window belongs to the block that its middle lies in.
    middle = np.cumsum(targets) - targets / 2
    blocks = np.minimum((BLOCKS * middle / targets.sum()).astype(np.int64), BLOCKS - 1)
    return np.unique(blocks, return_inverse=True)[1].astype(np.int64)


def former_clusters(documents: Ints, targets: Ints, *, running_text: bool) -> Ints:
    """Assign windows to clusters as before rows were never cut and texts without rows became 20 blocks.

    A baseline holds sums by cluster, so a candidate pairs with an old entry only if it is clustered the same way.
    Running text had a cluster for each window, up to 512; a document that held more than a quarter of the targets was
    cut into its windows.

    Args:
        documents: Document of each window, shape ``[windows]``, not decreasing.
        targets: Targets of each window, shape ``[windows]``.
        running_text: Whether the rows were read as one text.

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
    merged = [_merged_to(stretch, share) for stretch in np.split(sizes, stretch_begins)]
    offsets = np.cumsum([0, *(stretch[-1] + 1 for stretch in merged[:-1])])
    clusters: Ints = np.concatenate([stretch + offset for stretch, offset in zip(merged, offsets, strict=True)])
    return clusters[units]
