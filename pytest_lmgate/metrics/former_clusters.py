"""The clusters that baseline files kept before rows were never cut and texts without rows became 20 blocks.

A baseline holds sums by cluster, so a candidate pairs with an old entry only if it is clustered the same way. Running
text had a cluster for each window, up to 512; a document that held more than a quarter of the targets was cut into its
windows.
"""

from __future__ import annotations

__all__ = ["former_clusters"]

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.metrics.clusters import MAX_CLUSTERS, merged_to

Ints = NDArray[np.int64]


def former_clusters(documents: Ints, targets: Ints, *, running_text: bool) -> Ints:
    """Assign windows to clusters as earlier versions did.

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
    merged = [merged_to(stretch, share) for stretch in np.split(sizes, stretch_begins)]
    offsets = np.cumsum([0, *(stretch[-1] + 1 for stretch in merged[:-1])])
    clusters: Ints = np.concatenate([stretch + offset for stretch, offset in zip(merged, offsets, strict=True)])
    return clusters[units]
