"""Bounds and p-values of a value that was resampled, as BLEU, chrF, TER and users' metrics are.

With C clusters percentiles are too narrow by ``sqrt((C - 1) / C)``, and take the normal's quantile where Student's
belongs; so they are cut at ``Phi(-sqrt(C / (C - 1)) t_{C-1})`` in place of 5 % (the expanded percentile interval of
Hesterberg 2015, The American Statistician 69(4), section 5.3). A thousand resamples have no such percentile at a high
level, and those of a few clusters lie within the extremes of these. So bounds are no narrower than those of Student's t
with the resamples' standard error, ``d -+ t_{C-1} sqrt(C / (C - 1)) sd``, nor than Hall's correction of these by the
resamples' skewness (see `metrics.noise`).
"""

from __future__ import annotations

__all__ = ["Resamples"]

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pytest_lmgate.metrics.noise import Bounds, student_or_hall, tail
from pytest_lmgate.metrics.student import normal_cdf, normal_quantile, t_cdf, t_quantile
from pytest_lmgate.metrics.texts.text_metric import Floats


@dataclass(frozen=True, eq=False)
class Resamples:
    """A value in each resample; a bound is at T just where its p-value is the level.

    Attributes:
        ordered: Ascending, shape ``[resamples]``; may be infinite.
        measured: The value itself.
        clusters: C, the number of things that were resampled, at least 2.
    """

    ordered: Floats
    measured: float
    clusters: int

    @property
    def df(self) -> float:
        """Degrees of freedom."""
        return self.clusters - 1.0

    @cached_property
    def is_finite(self) -> bool:
        """Whether every resample has a value."""
        return bool(np.isfinite(self.ordered).all())

    @property
    def expansion(self) -> float:
        """By how much percentiles of C clusters are too narrow."""
        return math.sqrt(self.clusters / (self.clusters - 1))

    @cached_property
    def stderr(self) -> float:
        """Standard error, without that narrowness."""
        return float(self.ordered.std(ddof=1)) * self.expansion if self.is_finite else math.inf

    @cached_property
    def skewness(self) -> float:
        """Third standardized moment of the resamples; 0 where they do not vary."""
        centred = self.ordered - self.ordered.mean() if self.is_finite else np.zeros(1)
        largest = float(np.abs(centred).max())
        if largest == 0:
            return 0.0
        unit = centred / largest
        return float((unit**3).mean() / (unit**2).mean() ** 1.5)

    def bounds(self, confidence: float, lowest: float = -math.inf, highest: float = math.inf) -> Bounds:
        """Return one-sided bounds, each at `confidence`: percentiles, Student's or Hall's, whichever is widest.

        Args:
            confidence: Level of each bound.
            lowest: The lowest value there can be.
            highest: The highest value there can be.
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
        """``(p_pass, p_fail)``: of a value above `size`, and of one of at most that."""
        if self.stderr == 0:
            return float(self.measured > size), float(self.measured <= size)
        beyond = (self.measured - size) / self.stderr if self.is_finite else math.nan
        above, below = int((self.ordered > size).sum()), int((self.ordered <= size).sum())
        return self._p_value(above, beyond, self.skewness), self._p_value(below, -beyond, -self.skewness)

    def _p_value(self, hits: int, x: float, skewness: float) -> float:
        """The largest of the three; where no resample is a hit, percentiles tell no more than that p is small."""
        closed = tail(x, self.df, skewness) if self.is_finite else 0.0
        if hits == 0 and self.is_finite:
            return closed
        share = (hits + 1) / (len(self.ordered) + 1)
        return max(closed, t_cdf(normal_quantile(share) / self.expansion, self.df))
