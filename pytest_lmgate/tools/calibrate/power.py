"""What a limit or a tolerance is worth for a model that gives other numbers in each run.

A gate judges the badness D: the value with a sign such that larger is worse, or the degradation between two runs. The
build fails if ``D > T``, also where the verdict is INCONCLUSIVE. In K runs of the unchanged model cluster c had the
statistics ``x_kc``. The next run takes those of each cluster from one of them, independently: ``Var(D)`` is ``K/(K-1)``
times the variance of such mixed runs, for a mean over N targets ``sum_c var_k(x_kc) / N^2``. D has Student's t with the
degrees of freedom of Satterthwaite (1946, Biometrics Bulletin 2, 110-114), ``(K-1) (sum_c v_c)^2 / sum_c v_c^2``, and
two runs of one model differ by 0 on average. Runs that differ as a whole, as on two kinds of GPU, break the
independence: where ``(K-1) Var_k(D_k) / Var(D)`` is beyond the 99% quantile of chi^2 (by Wilson and Hilferty 1931, PNAS
17, 684-688), the variance is that of the K runs, with K - 1 degrees of freedom.

On other rows of the same kind D has the standard error and skewness k of the value over rows, and with
``z = (D - mean) / se`` the distribution ``F(z) - k (z^2 - 1) phi(z) / 6`` (Edgeworth; Hall 1992, section 2.4), F
Student's or normal. Shares of n rows are judged half a row before the threshold (continuity correction). Damage of
size s makes each right row wrong with the chance ``q = s / right``, for a variance of ``(1-q)^2 Var(D) + s (1-q) / n``.
Other metrics are shifted by s.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.bootstrap import RESAMPLES, SEED
from pytest_lmgate.stats.comparison import POWER
from pytest_lmgate.stats.means import normal_quantile, score_cdf, score_quantile
from pytest_lmgate.stats.sample import Sample

HEALTHY_FAILS = 0.01
"""The largest share of runs in which an unchanged model fails a gate that holds."""
_DRAWS_AT_ONCE = 1 << 20
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Badness:
    """The distribution of a badness, in the metric's unit, or a fraction for a relative tolerance."""

    mean: float  # its mean
    stderr: float  # its standard deviation, if the mean is the true one
    mean_error: float = 0.0  # standard error of `mean`
    df: float | None = None  # degrees of freedom of Student's t; None for the normal distribution
    skewness: float = 0.0  # k
    rows: int = 0  # rows, if each is right or wrong and the badness is the share of wrong ones; 0 for other metrics
    right: float = 1.0  # share of right rows
    unit: float = 1.0  # share of rows that is a badness of 1

    def fails(self, threshold: float, damage: float = 0.0) -> float:
        """Return the probability of a badness above the threshold."""
        stderr = self.stderr
        if self.rows:
            sums = math.floor(self.rows * self.unit * threshold + _ROUNDING * self.rows)
            threshold = (sums + 0.5) / (self.rows * self.unit)
            lost = min(max(0.0, damage * self.unit), self.right)
            kept = 1 - lost / max(self.right, _ROUNDING)
            stderr = math.hypot(kept * stderr, math.sqrt(lost * kept / self.rows) / self.unit)
        above = self.mean + damage - threshold
        if stderr == 0:
            return float(above > _ROUNDING)
        z = above / stderr
        bent = self.skewness * (z * z - 1) * math.exp(-z * z / 2) / math.sqrt(72 * math.pi)
        return min(1.0, max(0.0, score_cdf(z, self.df) + bent))

    def failing_between(self, threshold: float) -> tuple[float, float]:
        """Return the probabilities at the ends of the 90% interval of the mean."""
        away = score_quantile(0.95, self.df) * self.mean_error
        low, high = (replace(self, mean=self.mean + side).fails(threshold) for side in (-away, away))
        return low, high

    @property
    def predicted(self) -> Badness:
        """The same with the error of the mean as noise."""
        return replace(self, stderr=math.hypot(self.stderr, self.mean_error))


class Calibration(NamedTuple):
    """What is known of a gate."""

    badness: Badness  # that of the next run, on the same rows
    # that of a run on other rows; None if unknown, and for a tolerance, whose two sides have the same
    other_rows: Badness | None
    threshold: float  # t, above which the build fails
    changed: float = 0.0  # share of rows whose score changes between two runs
    between_runs: float = 0.0  # standard deviation of the value over runs, on the same rows
    as_a_whole: bool = False  # whether the runs differ by more than their rows explain

    @property
    def fails(self) -> float:
        """The share of runs in which an unchanged model fails the build."""
        return self.badness.fails(self.threshold)

    def fails_by_bound(self, bounded: Sequence[tuple[float, float]]) -> float:
        """Return the share of runs in which a bound is above the threshold.

        Of some runs, `bounded` has the badness and its upper bound, which is taken as linear in it.
        """
        values, bounds = np.array(bounded).T
        spread = float(values.var())
        slope = float(np.cov(values, bounds, bias=True)[0, 1]) / spread if spread > 0 else 1.0
        largest = values + (self.threshold - bounds) / min(2.0, max(0.5, slope))
        return float(np.mean([self.badness.fails(value) for value in largest.tolist()]))

    def seen(self, threshold: float | None = None) -> float:
        """Return the smallest damage that fails the build in 80% of runs."""
        at = self.threshold if threshold is None else threshold
        wide = abs(at - self.badness.mean) + 10 * self.badness.stderr + 1.0
        return _first(lambda damage: self.badness.fails(at, damage) >= POWER, 0.0, wide)

    def holding(self, badness: Badness | None = None) -> float:
        """Return the smallest threshold that an unchanged model fails in 1% of runs at most."""
        of = (badness or self.badness).predicted
        wide = 40 * of.stderr + 2 / of.rows / of.unit if of.rows else 40 * of.stderr + _ROUNDING
        return _first(lambda threshold: of.fails(threshold) <= HEALTHY_FAILS, of.mean - wide, of.mean + wide)

    def times(self, badness: Badness) -> float | None:
        """Return how many times the rows, or the texts of each row, make the threshold hold.

        The variance falls as their inverse; None where the mean is beyond the threshold.
        """
        of, distance = badness.predicted, self.threshold - badness.mean
        return (score_quantile(1 - HEALTHY_FAILS, of.df) * of.stderr / distance) ** 2 if distance > 0 else None


def calibrate_limit(runs: Sequence[Sample], limit: float, between_rows: float) -> Calibration:
    """Calibrate a limit, the worst value that passes, by two or more runs of the unchanged model on the same rows.

    The value's standard error over rows is `between_rows`.
    """
    one, n = runs[0], len(runs)
    sign = 1.0 if one.direction == "lower" else -1.0
    values = _values(runs)
    variance, df, whole = _variance(values, _mixed(runs, np.random.default_rng(SEED)), runs)
    badness = _of_rows(one, sign * float(values.mean()), math.sqrt(variance), df)
    badness = replace(badness, mean_error=math.sqrt(variance / n))
    other = None
    if between_rows > 0:
        noise = one.noise() if one.scale is not None else None
        stderr = math.hypot(between_rows, math.sqrt(variance) if whole else 0.0)
        df = None if noise is None or one.outcomes is not None else noise.df
        other = replace(
            badness, stderr=stderr, mean_error=0.0, df=df, skewness=0.0 if noise is None else sign * noise.skewness
        )
    return Calibration(badness, other, sign * limit, changed_rows(runs), math.sqrt(variance), whole)


def calibrate_floor(rows: int, limit: float, share: float) -> Calibration:
    """Calibrate a minimum accuracy on independent rows, for a model that has the given accuracy on all such rows."""
    stderr = math.sqrt(share * (1 - share) / rows)
    skewness = (2 * share - 1) / (rows * stderr) if stderr else 0.0
    return Calibration(Badness(-share, stderr, skewness=skewness, rows=rows, right=share), None, -limit)


def calibrate_tolerance(
    runs: Sequence[Sample], tolerance: Tolerance, references: Sequence[Sample] | None = None
) -> Calibration:
    """Calibrate a tolerance by two or more runs of the unchanged model on the same rows.

    The `references` are as many runs of the model that it is compared with; None for the model's own baseline.
    """
    one, n, generator = runs[0], len(runs), np.random.default_rng(SEED)
    sign = 1.0 if one.direction == "lower" else -1.0
    values, mixed = _values(runs), _mixed(runs, generator)
    between, _, _ = _variance(values, mixed, runs)
    reference = np.full(n, values.mean()) if references is None else _values(references)
    mixed_reference = float(values.mean()) if references is None else _mixed(references, generator)
    unit = float(reference.mean()) if tolerance.relative else 1.0
    damages = sign * (values - reference) / (reference if tolerance.relative else 1.0)
    drawn = sign * (mixed - mixed_reference) / (mixed_reference if tolerance.relative else 1.0)
    variance, df, whole = _variance(damages, drawn, runs, references or ())
    if references is None:
        badness = _of_rows(one, 0.0, math.sqrt(2 * variance), df)
    else:
        badness = _of_rows(one, float(damages.mean()), math.sqrt(variance), df)
        badness = replace(badness, mean_error=math.sqrt(variance / n))
    badness = replace(badness, unit=unit)
    return Calibration(badness, None, tolerance.size, changed_rows(runs), math.sqrt(between), whole)


def changed_rows(runs: Sequence[Sample]) -> float:
    """Return the share of rows whose score changes between two runs, the mean over all pairs of runs."""
    sums = [sample.sums if sample.by_row is None else sample.by_row.sums for sample in runs]
    pairs = itertools.combinations(sums, 2)
    return float(np.mean([(~np.isclose(one, other, rtol=1e-5, atol=1e-8).all(1)).mean() for one, other in pairs]))


def _of_rows(sample: Sample, mean: float, stderr: float, df: float | None) -> Badness:
    if sample.outcomes is None or sample.outcomes.groups is not None:
        return Badness(mean, stderr, df=df)
    share = sample.value()
    right = share if sample.direction == "higher" else 1 - share
    return Badness(mean, stderr, df=df, rows=sample.outcomes.n, right=max(right, _ROUNDING))


def _values(runs: Sequence[Sample]) -> Floats:
    return np.array([sample.value() for sample in runs])


def _variance(
    values: Floats, mixed: Floats, runs: Sequence[Sample], others: Sequence[Sample] = ()
) -> tuple[float, float | None, bool]:
    """Return the variance over runs, its degrees of freedom, and whether it was taken between whole runs."""
    n = len(values)
    # Less the first, equal numbers have exactly no variance.
    pooled, direct = float((mixed - mixed[0]).var()) * n / (n - 1), float((values - values[0]).var(ddof=1))
    spread = 2 / (9 * (n - 1))
    whole = (
        direct > 0
        if pooled == 0
        else (((direct / pooled) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) > normal_quantile(0.99))
    )
    if whole:
        return direct, n - 1.0, True
    if runs[0].scale is None or pooled == 0:
        return pooled, None, False
    of_clusters = np.concatenate([np.stack([one.sums[:, 0] for one in side]).var(0) for side in (runs, others) if side])
    return pooled, (n - 1) * float(of_clusters.sum() ** 2 / (of_clusters**2).sum()), False


def _mixed(runs: Sequence[Sample], generator: np.random.Generator) -> Floats:
    """Return the values of 1,000 runs that take each cluster's statistics from one of the runs."""
    one, sums = runs[0], np.stack([sample.sums for sample in runs])
    clusters = np.arange(len(one.sums))
    at_once = max(1, _DRAWS_AT_ONCE // one.sums.size)
    if not (sums != sums[0]).any():
        return np.full(RESAMPLES, one.value())
    values: list[float] = []
    for begin in range(0, RESAMPLES, at_once):
        drawn = generator.integers(len(runs), size=(min(at_once, RESAMPLES - begin), len(clusters)))
        values += map(one.value, sums[drawn, clusters].sum(axis=1))
    return np.array(values)


def _first(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest number for which something holds that holds for all larger ones; infinity if none does."""
    if not holds(high):
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
