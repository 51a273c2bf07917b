"""What a score is made of, cluster by cluster: enough to compare it with another score on the same targets or rows."""

from __future__ import annotations

__all__ = ["Sample", "Scale"]

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.metrics.by_row import ByRow, Flags
from pytest_lmgate.metrics.noise.clusters import MAX_CLUSTERS, merged_rows
from pytest_lmgate.metrics.noise.means import Bounds, ClusteredMean, noisy_mean
from pytest_lmgate.metrics.noise.proportion import Outcomes, wilson_bounds
from pytest_lmgate.metrics.score import Direction

if TYPE_CHECKING:
    from pytest_lmgate.metrics.texts import TextMetric


@dataclass(frozen=True)
class Scale:
    """How a metric's value comes from the mean over targets.

    Attributes:
        direction: ``lower`` if smaller values are better.
        exponential: Whether the value is ``exp(factor * mean)``, as perplexity's, or ``factor * mean``.
        factor: Targets per unit: 1 for tokens and rows, N / words for a perplexity per word, N / (ln 2 * bytes) for
            bits per byte. A property of the text, above 0 and the same for both models.
        lowest: The lowest value there can be; no bound of a value is below it.
        highest: The highest value there can be; no bound is above it.
        of_rows: Whether the mean is over rows rather than tokens.

    Raises:
        ValueError: `factor` is not above 0, or larger values of an exponential scale are better.
    """

    direction: Direction
    exponential: bool = False
    factor: float = 1.0
    lowest: float = -math.inf
    highest: float = math.inf
    of_rows: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"expected a factor above 0, got {self.factor!r}")
        if self.exponential and self.direction == "higher":
            raise ValueError("expected direction 'lower' of an exponential scale, got 'higher'")

    def value(self, mean: float) -> float:
        """Return the metric's value for a mean; infinite where the exponential overflows."""
        if not self.exponential:
            return self.factor * mean
        return math.exp(self.factor * mean) if self.factor * mean < 709 else math.inf

    def within(self, bounds: Bounds) -> Bounds:
        """Turn bounds of a mean into bounds of the value, and keep them within its range."""
        lower, upper = (min(max(self.value(each), self.lowest), self.highest) for each in bounds[:2])
        return Bounds(lower, upper, bounds.lower_rule, bounds.upper_rule)


@dataclass(frozen=True, eq=False)
class Sample:
    """Additive statistics of each cluster, and how a value is made of their sum.

    Attributes:
        sums: Shape ``[clusters, k]``; k is 1 where there is a scale.
        counts: Targets or rows of each cluster, shape ``[clusters]``.
        scale: Of a metric that is a mean over targets or rows, or the exponential of one; None for others.
        metric: Of the others: makes a value of summed statistics.
        identity: What was measured, part by part (``data``, ``targets``, ``protocol``, ``reference``): samples are
            comparable where every part is the same.
        outcomes: Of a metric whose rows are right or wrong, which rows are right.
        rows: Whether the clusters are rows, or clusters of rows that the data names; else blocks of a text.
        by_row: The same statistics row by row; None where no row's share of them is known.
    """

    sums: Floats
    counts: Ints
    scale: Scale | None = None
    metric: TextMetric | None = None
    identity: Mapping[str, str] = field(default_factory=dict)
    outcomes: Outcomes | None = None
    rows: bool = True
    by_row: ByRow | None = None

    @property
    def clusters(self) -> int:
        """What the noise is judged between: clusters with a target, or clusters of right-or-wrong rows."""
        return len(self.outcomes.sizes) if self.outcomes is not None else int((self.counts > 0).sum())

    @property
    def clustered_by(self) -> str:
        """What a cluster is: ``rows``, or ``blocks`` of a text without rows."""
        return "rows" if self.rows else "blocks"

    @property
    def span(self) -> float:
        """The highest value of a metric of rows less its lowest; infinite where it has no end, or counts tokens."""
        if self.scale is not None and not self.scale.of_rows:
            return math.inf
        return self._rule.highest - self._rule.lowest

    @property
    def direction(self) -> Direction:
        """``lower`` if smaller values are better."""
        return self._rule.direction

    @property
    def _rule(self) -> Scale | TextMetric:
        rule = self.scale or self.metric
        assert rule is not None
        return rule

    def value(self) -> float:
        """Return the metric's value."""
        total = self.sums.sum(axis=0)
        if self.scale is not None:
            return self.scale.value(float(total[0]) / int(self.counts.sum()))
        return float(self._rule.value(total))

    def noise(self) -> ClusteredMean:
        """Return the mean over targets or rows of a metric with a scale, and its noise."""
        return noisy_mean(self.sums[:, 0], self.counts, rows=self.rows)

    def bounds(self, confidence: float) -> Bounds | None:
        """Return one-sided bounds of the value, each at `confidence`; None where there are too few clusters.

        Right-or-wrong rows have Wilson's, a mean or the exponential of one the wider of Student's and Hall's, every
        other metric those of its resamples.
        """
        if self.outcomes is not None:
            return wilson_bounds(self.outcomes, confidence)
        if self.scale is None:
            from pytest_lmgate.metrics.texts.bootstrap import resampled_value

            assert self.metric is not None
            if len(self.counts) < 2:
                return None
            found = resampled_value(self.metric, self.sums)
            return found.bounds(confidence, self.metric.lowest, self.metric.highest)
        bounds = self.noise().bounds(confidence)
        return None if bounds is None else self.scale.within(bounds)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The two-sided 95 % interval of the value; None where there are too few clusters."""
        bounds = self.bounds(0.975)
        return None if bounds is None else (bounds.lower, bounds.upper)

    def identified(self, *, signature: Signature, **parts: str) -> Sample:
        """Return the sample with what its score was measured on and by; versions of programs are left out."""
        return replace(self, identity={**self.identity, **parts, "protocol": signature.compared})

    def of_rows(self, kept: Flags) -> Sample | None:
        """Return the sample of some rows, without its identity; None where no target of theirs is known.

        Args:
            kept: Marks the rows, shape ``[rows]``.
        """
        if self.by_row is None or not self.by_row.counts[kept].any():
            return None
        part = self.by_row.of_rows(kept)
        sums, counts = part.by_cluster()
        outcomes = None if self.outcomes is None else Outcomes(self.outcomes.right[kept], part.clusters)
        found = replace(self, sums=sums, counts=counts, outcomes=outcomes, identity={}, by_row=part)
        return found if self.scale is None else found.merged()

    def merged(self) -> Sample:
        """Return the sample in at most 512 clusters: neighbours are merged, as even in size as they allow."""
        if len(self.counts) <= MAX_CLUSTERS:
            return self
        groups = merged_rows(self.counts)
        begins = np.flatnonzero(np.diff(groups, prepend=-1))
        return replace(
            self, sums=np.add.reduceat(self.sums, begins, axis=0), counts=np.add.reduceat(self.counts, begins)
        )
