"""What a score is made of, cluster by cluster: enough to compare it with another score on the same targets or rows.

A share of right rows has no noise to be seen where every row is right: Student's interval of 80 right rows of 80 is
[1, 1], Wilson's is [0.954, 1] (Wilson 1927, JASA 22, 209-212).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.settings.metrics import Direction
from pytest_lmgate.stats.bootstrap import Statistic, resampled_value
from pytest_lmgate.stats.means import (
    MAX_CLUSTERS,
    Bounds,
    ClusteredMean,
    Groups,
    clustered_mean,
    degrees_of_freedom,
    merged_rows,
    noisy_mean,
    score_quantile,
)

Flags = NDArray[np.bool_]
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
class Scale:
    """How a metric's value is computed from the mean over targets."""

    direction: Direction  # ``lower`` if smaller values are better
    exponential: bool = False  # whether the value is ``exp(factor * mean)``, as perplexity's, or ``factor * mean``
    # Targets per unit: 1 for tokens and rows, N / words for a perplexity per word, N / (ln 2 * bytes) for bits per
    # byte. A property of the text, above 0 and the same for both models.
    factor: float = 1.0
    lowest: float = -math.inf  # the lowest possible value; no bound is below it
    highest: float = math.inf  # the highest possible value; no bound is above it
    of_rows: bool = False  # whether the mean is over rows rather than tokens

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"expected a factor above 0, got {self.factor!r}")
        if self.exponential and self.direction == "higher":
            raise ValueError("expected direction 'lower' of an exponential scale, got 'higher'")

    def value(self, mean: float) -> float:
        """Return the metric's value for a mean; infinite if the exponential overflows."""
        if not self.exponential:
            return self.factor * mean
        return math.exp(self.factor * mean) if self.factor * mean < 709 else math.inf

    def within(self, bounds: Bounds) -> Bounds:
        """Convert bounds of a mean into bounds of the value, within its range."""
        lower, upper = (min(max(self.value(bound), self.lowest), self.highest) for bound in bounds[:2])
        return Bounds(lower, upper, bounds.lower_rule, bounds.upper_rule)


@dataclass(frozen=True, eq=False)
class ByRow:
    """Statistics of each row."""

    sums: Floats  # shape ``[rows, k]``, as in `Sample`
    counts: Ints | Floats  # targets, or other units, of each row, shape ``[rows]``; possibly 0
    clusters: Ints  # cluster of each row, shape ``[rows]``, not necessarily without gaps
    sizes: Ints | None = None  # sizes of the rows, by which neighbours are merged; None for their counts

    def of_rows(self, kept: Flags) -> ByRow:
        clusters = np.unique(self.clusters[kept], return_inverse=True)[1].reshape(-1).astype(np.int64)
        return ByRow(self.sums[kept], self.counts[kept], clusters, None if self.sizes is None else self.sizes[kept])

    def by_cluster(self) -> tuple[Floats, Ints | Floats]:
        columns = [np.bincount(self.clusters, weights=column) for column in self.sums.T]
        counts: Any = np.bincount(self.clusters, weights=self.counts).astype(self.counts.dtype)
        return np.stack(columns, axis=1, dtype=np.float64), counts


@dataclass(frozen=True, eq=False)
class Sample:
    """Additive statistics of each cluster, and how their sum becomes a value."""

    sums: Floats  # shape ``[clusters, k]``; k is 1 with a scale
    counts: Ints | Floats  # targets, rows or other units of each cluster, shape ``[clusters]``
    scale: Scale | None = None  # of a metric that is a mean over targets or rows, or the exponential of one
    metric: Statistic | None = None  # of the others: computes a value from summed statistics
    # What was measured, part by part (``data``, ``targets``, ``protocol``, ``reference``): samples are comparable if
    # every part is the same.
    identity: Mapping[str, str] = field(default_factory=dict)
    outcomes: Outcomes | None = None  # of right-or-wrong metrics, which rows are right
    rows: bool = True  # whether the clusters are rows or groups of rows; else blocks of a text
    by_row: ByRow | None = None  # the same statistics row by row, if known
    weights: Floats | None = None  # of a mean over groups, whose sums are `Groups.pseudo_values`: of each cluster
    # whether the counts are of the text that is scored: another tokenizer leaves other beginnings of the rows unscored
    of_text: bool = False

    @property
    def clusters(self) -> int:
        """The number of clusters with a target, or of clusters of right-or-wrong rows."""
        return len(self.outcomes.sizes) if self.outcomes is not None else int((self.counts > 0).sum())

    @property
    def clustered_by(self) -> str:
        """What a cluster is: ``rows``, or ``blocks`` of a text without rows."""
        return "rows" if self.rows else "blocks"

    @property
    def span(self) -> float:
        """The highest possible value of a metric of rows minus its lowest; infinite if unbounded, or over tokens."""
        if self.scale is not None and not self.scale.of_rows:
            return math.inf
        return self._rule.highest - self._rule.lowest

    @property
    def unseen(self) -> float | None:
        """The share of rows of which a sample of n rows holds none with a chance of 5%: ``3 / n``, 1 at most.

        No bound on a mean of unbounded losses holds for damage that sits in fewer rows. None for a metric with a finite
        range, and for a text without rows.
        """
        if not self.rows or math.isfinite(self.span):
            return None
        rows = self.clusters
        if self.by_row is not None:
            rows = len(np.unique(self.by_row.clusters[self.by_row.counts > 0]))
        return min(1.0, 3 / max(1, rows))

    @property
    def direction(self) -> Direction:
        return self._rule.direction

    @property
    def lowest(self) -> float:
        """The lowest possible value."""
        return self._rule.lowest

    @property
    def _rule(self) -> Scale | Statistic:
        rule = self.scale or self.metric
        assert rule is not None
        return rule

    def value(self, total: Floats | None = None) -> float:
        """Return the value of the sample, or of clusters with other sums in all."""
        sums = (self.sums if total is None else total[None]).sum(axis=0)
        if self.scale is not None:
            return self.scale.value(float(sums[0]) / float(self.counts.sum()))
        return float(self._rule.value(sums))

    def noise(self) -> ClusteredMean:
        """Return the mean of a metric with a scale, and its noise."""
        return self.noise_of(self.sums[:, 0])

    def noise_of(self, sums: Floats) -> ClusteredMean:
        """Return the mean of other sums of the same clusters, and its noise."""
        mean = noisy_mean(sums, self.counts, rows=self.rows)
        return mean if self.weights is None else replace(mean, df=degrees_of_freedom(self.weights))

    @classmethod
    def of_means(
        cls, by_row: ByRow, scale: Scale, *, right_or_wrong: bool = False, groups: Sequence[Hashable] | None = None
    ) -> Sample:
        """Make the sample of a mean over rows, or of one over labelled groups of rows that count alike."""
        made = None if groups is None else Groups.of(groups, by_row.clusters)
        outcomes = Outcomes(by_row.sums[:, 0] > 0, by_row.clusters, made) if right_or_wrong else None
        if made is None:
            return cls(*by_row.by_cluster(), scale, outcomes=outcomes, by_row=by_row).merged()
        sums, counts = made.by_cluster(by_row.sums[:, 0])
        return cls(sums[:, None], counts, scale, outcomes=outcomes, by_row=by_row, weights=made.cluster_weights)

    def bounds(self, confidence: float) -> Bounds | None:
        """Return one-sided bounds of the value, each at `confidence`; None with too few clusters.

        Right-or-wrong rows have Wilson's, a mean or the exponential of one the wider of Student's and Hall's, every
        other metric those of its resamples.
        """
        if self.outcomes is not None:
            return wilson_bounds(self.outcomes, confidence)
        if self.scale is None:
            assert self.metric is not None
            if len(self.counts) < 2:
                return None
            resamples = resampled_value(self.metric, self.sums)
            return resamples.bounds(confidence, self.metric.lowest, self.metric.highest)
        bounds = self.noise().bounds(confidence)
        return None if bounds is None else self.scale.within(bounds)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The two-sided 95% interval of the value; None with too few clusters."""
        bounds = self.bounds(0.975)
        return None if bounds is None else (bounds.lower, bounds.upper)

    def identified(self, *, signature: Signature, **parts: str) -> Sample:
        """Return the sample with the identity of its measurement, without versions of programs."""
        return replace(self, identity={**self.identity, **parts, "protocol": signature.compared})

    def of_rows(self, kept: Flags) -> Sample | None:
        """Return the sample of the rows that are kept, without its identity; None if their targets are unknown."""
        if self.by_row is None or not self.by_row.counts[kept].any():
            return None
        part = self.by_row.of_rows(kept)
        sums, counts = part.by_cluster()
        outcomes = None if self.outcomes is None else Outcomes(self.outcomes.right[kept], part.clusters)
        sample = replace(self, sums=sums, counts=counts, outcomes=outcomes, identity={}, by_row=part, weights=None)
        return sample if self.scale is None else sample.merged(part.sizes)

    def merged(self, sizes: Ints | None = None) -> Sample:
        """Return the sample in at most 512 clusters, with neighbours merged evenly by their sizes or else counts."""
        if len(self.counts) <= MAX_CLUSTERS:
            return self
        groups = merged_rows(self.counts if sizes is None else sizes)
        begins = np.flatnonzero(np.diff(groups, prepend=-1))
        return replace(
            self, sums=np.add.reduceat(self.sums, begins, axis=0), counts=np.add.reduceat(self.counts, begins)
        )

    def carried(self, counts: Floats) -> Sample:
        """Return the sample of a mean on other counts of the same clusters: with its mean, and noise in proportion.

        ``s'_c = m n'_c + (s_c - m n_c) N' / N``: a mean is a ratio of two sums, and this keeps its linear terms.
        """
        total, mean = self.counts.sum(), self.sums.sum(0) / self.counts.sum()
        residuals = self.sums - mean * self.counts[:, None]
        return replace(self, sums=mean * counts[:, None] + residuals * (counts.sum() / total), counts=counts)


def cluster_numbers(clusters: Sequence[Hashable] | None, count: int) -> Ints:
    """Return the cluster of each of `count` rows, shape ``[rows]``, from 0 in order of appearance of the labels.

    By default each row is its own cluster.
    """
    if clusters is None:
        return np.arange(count, dtype=np.int64)
    labels = [] if isinstance(clusters, str | bytes) else list(clusters)
    if len(labels) != count:
        raise MetricInputError(f"expected a list with a cluster label for each of {count} rows, got {clusters!r:.60}")
    numbers: dict[Hashable, int] = {}
    for row, label in enumerate(labels):
        if label is None or not isinstance(label, Hashable):
            raise MetricInputError(
                f"row {row}: expected a cluster label such as a string or an integer, got {label!r:.60}"
            )
        numbers.setdefault(label, len(numbers))
    return np.array([numbers[label] for label in labels], dtype=np.int64)
