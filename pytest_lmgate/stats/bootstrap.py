"""Bootstrap over rows on additive statistics: resampled sums without reading a text again, bounds, the paired test.

The indices are those of sacrebleu's `significance` module, drawn from the same generator with the same seed by the same
call, so that intervals and paired tests are its own (Koehn 2004; Post 2018). Each resample is turned into how often
it took each row; its sums are then one matrix product.

With C clusters percentiles are too narrow by ``sqrt((C - 1) / C)``, and take the normal's quantile where Student's
belongs; so they are cut at ``Phi(-sqrt(C / (C - 1)) t_{C-1})`` instead of 5% (the expanded percentile interval of
Hesterberg 2015, The American Statistician 69(4), section 5.3). A thousand resamples have no such percentile at a high
level, and those of a few clusters lie within the extremes of these. So bounds are no narrower than those of Student's t
with the resamples' standard error, ``d -+ t_{C-1} sqrt(C / (C - 1)) sd``, nor than Hall's correction of these by the
resamples' skewness (see `means`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.settings.metrics import Direction
from pytest_lmgate.stats.means import (
    Bounds,
    normal_cdf,
    normal_quantile,
    skewness,
    student_or_hall,
    t_cdf,
    t_quantile,
    tail,
)

RESAMPLES = 1000
SEED = 12345

_DRAWS_AT_ONCE = 1 << 20  # 8 MiB of indices


class Statistic(Protocol):
    """A number computed from summed statistics, such as a metric of texts."""

    @property
    def name(self) -> str: ...
    @property
    def direction(self) -> Direction: ...
    @property
    def lowest(self) -> float: ...
    @property
    def highest(self) -> float: ...
    # From statistics summed over rows, shape ``[k]``, to the number.
    @property
    def value(self) -> Callable[[Floats], float]: ...
    # From the statistics of one row to that row's own number; `value` if None.
    @property
    def row_value(self) -> Callable[[Floats], float] | None: ...


def cluster_sums(statistics: Floats, clusters: Ints) -> Floats:
    """Sum statistics ``[rows, k]`` by the cluster of each row; shape ``[clusters, k]``."""
    sums = np.zeros((int(clusters.max()) + 1, statistics.shape[1]))
    np.add.at(sums, clusters, statistics)
    return sums


def resampled_sums(statistics: Floats) -> Floats:
    """Resample rows or clusters, ``[rows, k]``, with replacement, and sum their statistics: shape ``[1000, k]``."""
    generator = np.random.default_rng(SEED)
    rows = len(statistics)
    at_once = max(1, _DRAWS_AT_ONCE // rows)
    sums = np.empty((RESAMPLES, statistics.shape[1]))
    for begin in range(0, RESAMPLES, at_once):
        batch = min(at_once, RESAMPLES - begin)
        # The generator keeps its half-used words, so that batches give the numbers that one call would.
        drawn = generator.choice(rows, size=(batch, rows), replace=True)
        drawn += np.arange(batch)[:, None] * rows
        taken = np.bincount(drawn.ravel(), minlength=batch * rows).reshape(batch, rows)
        sums[begin : begin + batch] = taken.astype(np.float64) @ statistics
    return sums


def resampled_scores(metric: Statistic, sums: Floats) -> Floats:
    """Return the score of each resample, shape ``[resamples]``, from its sums, shape ``[resamples, k]``."""
    scores = np.array([metric.value(of_one) for of_one in sums], dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise MetricInputError(
            f"text metric {metric.name!r}: expected a finite value for every resample of the rows, "
            f"got {scores[bad[0]]} for {len(bad)} of {len(scores)}, the first from the sums {sums[bad[0]].tolist()}: "
            "let its `value` return a finite number for them"
        )
    return scores


def percentile_interval(scores: Floats) -> tuple[float, float]:
    """Two-sided 95% interval of resampled scores: one in forty cut off at each end, as in sacrebleu."""
    ordered = np.sort(scores)
    cut = len(ordered) // 40
    return float(ordered[cut]), float(ordered[len(ordered) - cut - 1])


@dataclass(frozen=True, eq=False)
class Resamples:
    """A value in each resample; a bound is the T whose p-value equals the level."""

    ordered: Floats  # ascending, shape ``[resamples]``; may be infinite
    measured: float  # the measured value
    clusters: int  # c, the number of resampled rows or clusters, at least 2

    @property
    def df(self) -> float:
        return self.clusters - 1.0

    @cached_property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.ordered).all())

    @property
    def expansion(self) -> float:
        """By how much percentiles of C clusters are too narrow."""
        return math.sqrt(self.clusters / (self.clusters - 1))

    @cached_property
    def stderr(self) -> float:
        """Standard error, corrected by `expansion`."""
        return float(self.ordered.std(ddof=1)) * self.expansion if self.is_finite else math.inf

    @cached_property
    def skewness(self) -> float:
        """Third standardized moment of the resamples; 0 if they do not vary."""
        return skewness(self.ordered - self.ordered.mean()) if self.is_finite else 0.0

    def bounds(self, confidence: float, lowest: float = -math.inf, highest: float = math.inf) -> Bounds:
        """Return one-sided bounds, each at `confidence`: percentiles, Student's or Hall's, whichever is widest.

        Bounds stay within `lowest` and `highest`.
        """
        t = t_quantile(confidence, self.df)
        resamples = len(self.ordered)
        cut = max(0, math.floor(normal_cdf(-self.expansion * t) * (resamples + 1)) - 1)
        lower, upper = float(self.ordered[cut]), float(self.ordered[resamples - 1 - cut])
        if not self.is_finite:
            return Bounds(lower, upper, "bootstrap", "bootstrap")
        closed = student_or_hall(self.measured, self.stderr, t, self.skewness)
        return Bounds(
            max(lowest, min(lower, closed.lower)),
            min(highest, max(upper, closed.upper)),
            "bootstrap" if lower < closed.lower else closed.lower_rule,
            "bootstrap" if upper > closed.upper else closed.upper_rule,
        )

    def p_values(self, size: float) -> tuple[float, float]:
        """``(p_pass, p_fail)``: of a value above `size`, and of one at most `size`."""
        if self.stderr == 0:
            return float(self.measured > size), float(self.measured <= size)
        beyond = (self.measured - size) / self.stderr if self.is_finite else math.nan
        above, below = int((self.ordered > size).sum()), int((self.ordered <= size).sum())
        return self._p_value(above, beyond, self.skewness), self._p_value(below, -beyond, -self.skewness)

    def _p_value(self, hits: int, x: float, skewness: float) -> float:
        """The largest of the three; without hits, percentiles only show that p is small."""
        closed = tail(x, self.df, skewness) if self.is_finite else 0.0
        if hits == 0 and self.is_finite:
            return closed
        share = (hits + 1) / (len(self.ordered) + 1)
        return max(closed, t_cdf(normal_quantile(share) / self.expansion, self.df))


def resampled_value(metric: Statistic, sums: Floats) -> Resamples:
    """Return a metric's value in each resample of its clusters, from their sums, ``[clusters, k]``."""
    scores = resampled_scores(metric, resampled_sums(sums))
    return Resamples(np.sort(scores), float(metric.value(sums.sum(axis=0))), len(sums))


class PairedBootstrap(NamedTuple):
    """Result of a paired bootstrap."""

    p_value: float  # Two-sided, sacrebleu's
    differences: Floats  # d_b of each resample, candidate minus baseline, shape ``[resamples]``
    baselines: Floats  # the baseline's score in each resample, shape ``[resamples]``


def paired_bootstrap(metric: Statistic, baseline: Floats, candidate: Floats) -> PairedBootstrap:
    """Compare two systems on the same rows, by statistics of rows or clusters ``[clusters, k]`` in the same order.

    The p-value is that of ``sacrebleu --paired-bs`` (Koehn 2004, as in Moses'
    ``bootstrap-hypothesis-difference-significance.pl``): ``(#{|d_b| - mean |d| > |D|} + 1) / (B + 1)``, D the
    difference of the systems, d_b that of resample b. We score resamples in double precision and sacrebleu in single
    precision, so the two can differ if a resample is at the threshold.
    """
    width = baseline.shape[1]
    sums = resampled_sums(np.hstack([baseline, candidate]))
    baselines = resampled_scores(metric, sums[:, :width])
    differences = resampled_scores(metric, sums[:, width:]) - baselines
    difference = float(metric.value(candidate.sum(axis=0)) - metric.value(baseline.sum(axis=0)))
    sizes = np.abs(differences)
    beyond = int((sizes - sizes.mean() > abs(difference)).sum())
    return PairedBootstrap((beyond + 1) / (RESAMPLES + 1), differences, baselines)
