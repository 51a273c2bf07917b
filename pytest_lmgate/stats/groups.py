"""Averages over groups of rows that count alike however many rows each has, as a benchmark's average over its tasks.

With n_g rows and the mean m_g in each of G groups the average is ``M = sum_g m_g / G``, and its noise that of a
stratified sample, ``se^2 = sum_g s_g^2 / n_g / G^2``, because the groups are the same for every model (Cochran 1977,
*Sampling Techniques*, equation 5.6; `unweighted_mean_stderr` of lm-evaluation-harness 0.4.13). Each row stands in by
``M + f w (x - m_g)`` with its weight ``w = n / (G n_g)``. The mean of these is M, their standard error that of M, and
the difference of two models' is that of their difference, so that all that is made for rows of equal weight serves.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.stats.means import MAX_CLUSTERS


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of rows."""

    number: Ints  # group of each row, from 0, shape ``[rows]``
    cluster: Ints  # cluster of each row, from 0, shape ``[rows]``; each row its own if independent

    @classmethod
    def of(cls, labels: Sequence[Hashable], cluster: Ints) -> Groups:
        """Make the groups of rows with these labels; a group with a single row or cluster shows no noise."""
        numbers: dict[Hashable, int] = {}
        groups = cls(np.array([numbers.setdefault(label, len(numbers)) for label in labels]), cluster)
        if len(numbers) < 2:
            raise MetricInputError(
                f"average_by: expected two groups or more, got {len(numbers)} ({', '.join(map(str, numbers))}): remove "
                "average_by:, or let more rows be read"
            )
        if len(alone := np.flatnonzero(groups._clusters < 2)):
            unit = "row" if len(np.unique(cluster)) == len(cluster) else "cluster"
            raise MetricInputError(
                f"average_by: the group {list(numbers)[alone[0]]!r} has a single {unit}, which shows no noise: "
                "expected two or more in each group"
            )
        return groups

    @cached_property
    def weights(self) -> Floats:
        """The weight of each row, 1 in the mean, shape ``[rows]``."""
        sizes = np.bincount(self.number)
        weights: Floats = (len(self.number) / (len(sizes) * sizes))[self.number]
        return weights

    @property
    def cluster_weights(self) -> Floats:
        """The sum of the weights of each of the `merged` clusters."""
        return np.bincount(self.merged, weights=self.weights).astype(np.float64)

    @cached_property
    def design_effect(self) -> float:
        """How much more noise the weights give rows of equal noise (Kish 1965): at least 1."""
        return float((self.weights**2).mean())

    def pseudo_values(self, values: Floats) -> Floats:
        """Return the values that stand in for those of the rows, shape ``[rows]``."""
        means = np.bincount(self.number, weights=values) / np.bincount(self.number)
        of, clusters = self._clusters, int(self.cluster.max()) + 1
        # As in a group's own variance; the mean over all rows already has the factor (clusters - 1) / clusters.
        factor = np.sqrt(of / (of - 1) * (clusters - 1) / clusters)[self.number] * self.weights
        pseudo_values: Floats = means.mean() + factor * (values - means[self.number])
        return pseudo_values

    def by_cluster(self, values: Floats) -> tuple[Floats, Ints]:
        """Return the sum of the stand-ins of each cluster, in at most 512, and its rows."""
        return np.bincount(self.merged, weights=self.pseudo_values(values)).astype(np.float64), np.bincount(self.merged)

    @property
    def merged(self) -> Ints:
        """The cluster of each row among at most 512, never one for neighbours: a whole group shows no noise."""
        return self.cluster % MAX_CLUSTERS

    @cached_property
    def _clusters(self) -> Ints:
        """The clusters of each group, shape ``[groups]``."""
        pairs = np.unique(np.stack([self.number, self.cluster], 1), axis=0)
        return np.bincount(pairs[:, 0])
