"""Rows that are right or wrong: Wilson's interval of one share, Tango's score test of two.

A share of rows has no noise to be seen where every row is right, or where no row changed: Student's interval of 80
right rows of 80 is [1, 1], Wilson's is [0.954, 1] (Wilson 1927, JASA 22, 209-212).

Of n rows, b were right and are wrong now, c the other way round. Only rows that changed count, and there may be none:
Student's t then sees no noise and passes ten rows as a thousand. The score test asks how likely such rows are if the
loss were just the tolerance (Tango 1998, Statistics in Medicine 17, 891-908, equations 9 and 11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.stats.means import Bounds, Groups, clustered_mean, degrees_of_freedom, merged_rows, score_quantile

MOST_OUTCOMES = 100_000
"""Rows whose outcomes a baseline keeps; with more, Student's bounds on their clusters are as good as Tango's."""


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Which rows are right."""

    right: NDArray[np.bool_]  # shape ``[rows]``
    cluster: Ints  # cluster of each row, from 0, shape ``[rows]``; each row its own if independent
    groups: Groups | None = None  # groups of rows that count alike; None if every row counts alike

    @property
    def n(self) -> int:
        return len(self.right)

    @cached_property
    def sizes(self) -> Ints:
        """Rows of each cluster, shape ``[clusters]``."""
        return np.bincount(self.cluster)

    @property
    def independent(self) -> bool:
        return len(self.sizes) == self.n

    def share(self, marked: Floats) -> float:
        """Return the share of rows that are marked by 1, each row by its weight."""
        return float(marked.mean() if self.groups is None else (marked * self.groups.weights).mean())

    def by_cluster(self) -> tuple[Floats, Ints]:
        """Return the sum of each cluster, and its rows, in at most 512 clusters."""
        if self.groups is not None:
            return self.groups.by_cluster(self.right.astype(np.float64))
        merged = merged_rows(self.sizes)[self.cluster]
        return np.bincount(merged, weights=self.right).astype(np.float64), np.bincount(merged)

    def design_effect(self, values: Floats, variance: float) -> float:
        """Return the factor by which clusters widen the variance of a sum over rows, at least 1.

        The `values` of rows, shape ``[rows]``, are 0 for rows that do not count; `variance` is that of their mean for
        independent rows.

        The ratio of the CR2 variance to that variance says little if few clusters have rows that count: one changed row
        shows no clustering. So it is averaged over the x clusters with such rows and one more that is assumed to be
        fully dependent: ``(x deff + sum n_c^2 / n) / (x + 1)``. Without this, clusters of 20 rows with correlated
        losses pass 8 to 16% of simulations instead of 5%. Weights of groups widen it by Kish's effect at least, which
        is that of rows that are equally likely to count.
        """
        if self.independent and self.groups is None:
            return 1.0
        cluster, weighted, weights, least = self.cluster, values, np.ones(self.n), 1.0
        if (groups := self.groups) is not None:
            cluster, weighted = groups.merged, groups.pseudo_values(values)
            weights, least = groups.weights, groups.design_effect
        sums = np.bincount(cluster, weights=weighted).astype(np.float64)
        stderr = clustered_mean(sums, np.bincount(cluster)).stderr or 0.0
        clusters = int((np.bincount(self.cluster, weights=values != 0) > 0).sum())
        measured = max(least, stderr**2 / variance) if variance > 0 else least
        dependent = float((np.bincount(self.cluster, weights=weights).astype(np.float64) ** 2).sum()) / self.n
        return (clusters * measured + dependent) / (clusters + 1)

    @cached_property
    def df(self) -> float | None:
        """Bell-McCaffrey degrees of freedom; None if rows are independent and have one weight."""
        if self.independent and self.groups is None:
            return None
        return degrees_of_freedom(self.sizes if self.groups is None else self.groups.cluster_weights)


def wilson_bounds(outcomes: Outcomes, confidence: float) -> Bounds | None:
    """Return one-sided score bounds of the share of right rows, each at `confidence`; None with fewer than 2 clusters.

    ``(p + z^2/2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2/n)``, n divided by the design effect of clusters.
    """
    if len(outcomes.sizes) < 2:
        return None
    p = outcomes.share(outcomes.right.astype(np.float64))
    # The rarer outcome: clusters show where it is, not where the usual one is.
    rare = outcomes.right if p <= 0.5 else ~outcomes.right
    n = outcomes.n / outcomes.design_effect(rare.astype(np.float64), p * (1 - p) / outcomes.n)
    z = score_quantile(confidence, outcomes.df)
    centre, spread = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    # At 0 and 1 the bound on that side is the share itself, but for rounding.
    lower = (centre - spread) / (1 + z**2 / n) if p > 0 else 0.0
    upper = (centre + spread) / (1 + z**2 / n) if p < 1 else 1.0
    return Bounds(lower, upper, "wilson", "wilson")


@dataclass(frozen=True)
class Changes:
    """Rows that changed; with clusters, all three are divided by the design effect of the changes."""

    n: float  # rows
    lost: float  # b, right under the reference and wrong under the candidate
    gained: float  # c, wrong under the reference and right under the candidate

    @classmethod
    def of(cls, candidate: Outcomes, reference: Outcomes) -> Changes:
        change = reference.right.astype(np.float64) - candidate.right
        n = candidate.n
        lost, gained = (n * candidate.share((sign * change > 0).astype(np.float64)) for sign in (1, -1))
        variance = (lost + gained - (lost - gained) ** 2 / n) / n**2
        effect = candidate.design_effect(change, variance)
        return cls(n / effect, lost / effect, gained / effect)

    @property
    def loss(self) -> float:
        return (self.lost - self.gained) / self.n


def tango_z(changes: Changes, loss: float) -> float:
    """Return ``Z = (b - c - n T) / sqrt(n (2 q + T (1 - T)))``, the loss above T in standard errors under T."""
    n, b, c = changes.n, changes.lost, changes.gained
    first, second, third = 2 * n, -b - c + (2 * n - b + c) * loss, -c * loss * (1 - loss)
    # q and q + T are probabilities; of tiny numbers rounding may leave less than nothing.
    q = max(0.0, -loss, (math.sqrt(max(0.0, second**2 - 4 * first * third)) - second) / (2 * first))
    distance, variance = b - c - n * loss, n * (2 * q + loss * (1 - loss))
    if variance <= 0:  # at T = 0 without a changed row, or at an end of the range
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)


def tango_bounds(changes: Changes, z: float) -> tuple[float, float]:
    """Return the losses at which Z is `z` and ``-z``: the one-sided lower and upper bound."""
    return _at(changes, z, -1.0, changes.loss), _at(changes, -z, changes.loss, 1.0)


def rows_without_change(tolerance: float, z: float) -> int:
    """Return the number of unchanged rows that show a loss of at most the tolerance: ``z^2 (1 - T) / T``."""
    return math.ceil(z**2 * (1 - tolerance) / tolerance)


def _at(changes: Changes, z: float, low: float, high: float) -> float:
    """Solve ``Z(T) = z`` by bisection; Z falls as T rises."""
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if tango_z(changes, middle) > z else (low, middle)
    return middle


def mcnemar(lost: int, gained: int) -> float:
    """Return the exact two-sided p-value of "a row is lost as often as gained": ``2 P(X <= min)``, X ~ B(b + c, 1/2).

    McNemar 1947, Psychometrika 12, 153-157; Liddell 1976 for the exact form.
    """
    n, term, total = lost + gained, 1, 0
    for k in range(min(lost, gained) + 1):
        total += term
        term = term * (n - k) // (k + 1)
    share: float = 2 * total / 2**n
    return min(1.0, share)
