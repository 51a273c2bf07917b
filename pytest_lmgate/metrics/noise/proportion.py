"""Rows that are right or wrong: Wilson's interval of one proportion, and how much clusters of rows widen it.

A share of rows has no noise to be seen where every row is right, or where no row changed: Student's interval of 80
right rows of 80 is [1, 1], Wilson's is [0.954, 1] (Wilson 1927, JASA 22, 209-212).
"""

from __future__ import annotations

__all__ = ["MOST_OUTCOMES", "Outcomes", "wilson_bounds"]

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.metrics.noise.means import Bounds, clustered_mean
from pytest_lmgate.metrics.noise.student import score_quantile

MOST_OUTCOMES = 100_000
"""Rows whose outcomes a baseline keeps; with more, Student's bounds on their clusters are as good as Tango's."""


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Which rows are right.

    Attributes:
        right: Shape ``[rows]``.
        cluster: Cluster of each row, from 0, shape ``[rows]``; each row its own where rows are independent.
    """

    right: NDArray[np.bool_]
    cluster: Ints

    @property
    def n(self) -> int:
        """Rows."""
        return len(self.right)

    @cached_property
    def sizes(self) -> Ints:
        """Rows of each cluster, shape ``[clusters]``."""
        return np.bincount(self.cluster)

    @property
    def independent(self) -> bool:
        """Whether each row is a cluster of its own."""
        return len(self.sizes) == self.n

    def design_effect(self, values: Floats, variance: float) -> float:
        """Return by how much clusters widen the variance of a sum over rows, at least 1.

        The `values` of rows, shape ``[rows]``, are 0 where a row does not count; `variance` is that of their mean if
        rows were independent.

        The CR2 variance over that variance says little where few clusters have rows that count: one changed row shows
        no clustering at all. So it is averaged over the x clusters that have such rows and one more that is taken as
        wholly dependent: ``(x deff + sum n_c^2 / n) / (x + 1)``. Without it clusters of 20 rows whose losses come
        together pass 8 to 16 % of simulations in place of 5 %.
        """
        if self.independent:
            return 1.0
        sums = np.bincount(self.cluster, weights=values).astype(np.float64)
        clusters = int((np.bincount(self.cluster, weights=values != 0) > 0).sum())
        stderr = clustered_mean(sums, self.sizes).stderr or 0.0
        measured = max(1.0, stderr**2 / variance) if variance > 0 else 1.0
        dependent = float((self.sizes.astype(np.float64) ** 2).sum()) / self.n
        return (clusters * measured + dependent) / (clusters + 1)

    @cached_property
    def df(self) -> float | None:
        """Bell-McCaffrey degrees of freedom of clusters of rows; None where rows are independent."""
        return None if self.independent else clustered_mean(np.zeros(len(self.sizes)), self.sizes).df


def wilson_bounds(outcomes: Outcomes, confidence: float) -> Bounds | None:
    """Return one-sided score bounds of the share of right rows, each at `confidence`; None with fewer than 2 clusters.

    ``(p + z^2/2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2/n)``, n divided by the design effect of clusters.
    """
    if len(outcomes.sizes) < 2:
        return None
    p = float(outcomes.right.mean())
    # The rarer outcome: clusters show where it is, not where the usual one is.
    rare = outcomes.right if p <= 0.5 else ~outcomes.right
    n = outcomes.n / outcomes.design_effect(rare.astype(np.float64), p * (1 - p) / outcomes.n)
    z = score_quantile(confidence, outcomes.df)
    centre, spread = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    # At 0 and 1 the bound on that side is the share itself, but for rounding.
    lower = (centre - spread) / (1 + z**2 / n) if p > 0 else 0.0
    upper = (centre + spread) / (1 + z**2 / n) if p < 1 else 1.0
    return Bounds(lower, upper, "wilson", "wilson")
