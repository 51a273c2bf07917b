"""The noise of a mean over clusters: standard error, degrees of freedom, skewness, and the bounds made of them.

Tokens of one document are not independent, so the noise is judged between clusters (see `clusters`). Rows: CR2 residual
scaling and Bell-McCaffrey degrees of freedom (Bell and McCaffrey 2002, Survey Methodology 28(2)), under the working
model that the cluster's own effect dominates. Blocks of a text without rows depend on their neighbours: the
equal-weighted cosine estimator (Lazarus, Lewis, Stock and Watson 2018, JBES 36(4), 541-559). Student's bound is too
narrow where a few clusters lose much, so each bound is the wider of Student's and of Hall's cubic correction of it
(Hall 1992, JRSS B 54, 221-228). docs/noise.md has the reasons and benchmarks/decisions.py the simulation.
"""

from __future__ import annotations

__all__ = [
    "COSINES",
    "Bounds",
    "ClusteredMean",
    "Rule",
    "clustered_mean",
    "cosine_variance",
    "hall",
    "hall_inverse",
    "mean_of_blocks",
    "noisy_mean",
    "skewness",
    "student_or_hall",
    "tail",
]

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.metrics.noise.clusters import MIN_BLOCKS
from pytest_lmgate.metrics.noise.student import t_cdf, t_quantile

COSINES = 6
"""nu, of which the variance of a text without rows is the mean: 0.4 M^(2/3) with 64 blocks, as its authors advise.

Simulated, 6 hold the level where hidden documents are long better than 8, for a t quantile that is 4 % larger.
"""
Rule = Literal["student", "hall", "tango", "wilson", "bootstrap", "unchanged"]


class Bounds(NamedTuple):
    """One-sided bounds of a value, each at the level it was asked for, and the rule that made each of them."""

    lower: float
    upper: float
    lower_rule: Rule
    upper_rule: Rule


@dataclass(frozen=True)
class ClusteredMean:
    """A mean over targets with its cluster-robust noise.

    Attributes:
        mean: ``m = sum s_c / N``.
        n: N, targets.
        clusters: C, clusters with at least one target.
        stderr: Standard error of `mean`; None where there are too few clusters.
        df: Degrees of freedom of Student's t; None where there are too few clusters.
        skewness: k, of the residuals ``a_c``; ``sum a_c^3 / (sum a_c^2)^(3/2)`` where clusters are of equal size.
    """

    mean: float
    n: int
    clusters: int
    stderr: float | None
    df: float | None
    skewness: float = 0.0

    def bounds(self, confidence: float) -> Bounds | None:
        """Return one-sided bounds of the mean, each at `confidence`; None where there are too few clusters."""
        if self.stderr is None or self.df is None:
            return None
        return student_or_hall(self.mean, self.stderr, t_quantile(confidence, self.df), self.skewness)


def student_or_hall(value: float, stderr: float, t: float, skewness: float) -> Bounds:
    """Return on each side the wider of Student's bound ``value -+ t se`` and Hall's ``value - H(+-t) se``.

    Here t is the quantile of Student's t at the level of each bound, and the skewness is as `ClusteredMean` has it.
    """
    above, below = -hall(-t, skewness), hall(t, skewness)
    return Bounds(
        value - max(t, below) * stderr,
        value + max(t, above) * stderr,
        "hall" if below > t else "student",
        "hall" if above > t else "student",
    )


def tail(x: float, df: float, skewness: float) -> float:
    """Return the one-sided p-value that a value `x` standard errors above a bound belongs to, by the wider rule.

    The upper bound at level ``1 - p`` lies just at the value less ``x`` standard errors.
    """
    return max(t_cdf(x, df), t_cdf(hall_inverse(x, skewness), df))


def hall(y: float, skewness: float) -> float:
    """Hall's transformation ``H(y) = (3/k) (cbrt(1 + k (y - k/6)) - 1)``; ``y`` where the skewness k is 0."""
    if abs(skewness) < 1e-9:
        return y
    return 3 / skewness * (float(np.cbrt(1 + skewness * (y - skewness / 6))) - 1)


def hall_inverse(x: float, skewness: float) -> float:
    """The y whose transform is `x`: ``H(y) = x``, so ``y = ((1 + k x / 3)^3 - 1) / k + k / 6``."""
    if abs(skewness) < 1e-9:
        return x
    return x + skewness * x**2 / 3 + skewness**2 * x**3 / 27 + skewness / 6


def noisy_mean(sums: Floats, counts: Ints, *, rows: bool) -> ClusteredMean:
    """Return the mean of a sum over clusters and its noise: of rows, or of the blocks of a text without rows."""
    return clustered_mean(sums, counts) if rows else mean_of_blocks(sums, counts)


def clustered_mean(sums: Floats, counts: Ints) -> ClusteredMean:
    """Return the mean of a sum over rows, or clusters of them, and its noise; they are taken as independent.

    ``se^2 = sum_c e_c^2 / (1 - h_c) / N^2`` with ``e_c = s_c - m n_c`` and ``h_c = n_c / N``;
    ``df = tr(M)^2 / tr(M M)``, ``M = G G'``, ``G = diag((1 - h)^-1/2) (I - n 1'/N) diag(n)``.

    Args:
        sums: ``s_c``, shape ``[clusters]``.
        counts: ``n_c``, shape ``[clusters]``; clusters without targets are left out.

    Raises:
        ValueError: There is no target at all.
    """
    plain, residuals, n = _without_noise(sums, counts)
    if plain.clusters < 2:
        return plain
    h = n / plain.n
    residuals = residuals / np.sqrt(1 - h)
    stderr = math.sqrt(float((residuals**2).sum())) / plain.n
    return replace(plain, stderr=stderr, df=_bell_mccaffrey(n, h), skewness=_skewness_of_mean(residuals, n))


def mean_of_blocks(sums: Floats, counts: Ints) -> ClusteredMean:
    """Return the mean of a sum over the blocks of a text without rows and its noise.

    ``se^2 = mean_j L_j^2 / N^2`` of the residuals ``e_b = s_b - m n_b`` (see `cosine_variance`), with Student's t of
    `COSINES` degrees of freedom; no noise is known with fewer than 8 blocks.

    Args:
        sums: ``s_b``, in the order of the text, shape ``[blocks]``.
        counts: ``n_b``, shape ``[blocks]``; blocks without targets are left out.

    Raises:
        ValueError: There is no target at all.
    """
    plain, residuals, n = _without_noise(sums, counts)
    if plain.clusters < MIN_BLOCKS:
        return plain
    stderr = math.sqrt(cosine_variance(residuals, n)) / plain.n
    return replace(plain, stderr=stderr, df=float(COSINES), skewness=_skewness_of_mean(residuals, n))


def cosine_variance(residuals: Floats, n: Floats) -> float:
    """Return the variance of the sum of residuals of blocks: ``mean_j L_j^2``, j from 1 to `COSINES`.

    ``L_j = sqrt(2) sum_b e_b cos(pi j t_b)``, where ``t_b`` is the middle of block b as a share of all targets. Cosines
    this slow weigh the parts of a document nearly alike, wherever blocks cut it.

    Args:
        residuals: ``e_b``, in the order of the text, shape ``[blocks]``.
        n: Targets of each block, shape ``[blocks]``.
    """
    middles = (np.cumsum(n) - n / 2) / n.sum()
    weighted = math.sqrt(2) * np.cos(np.pi * np.outer(np.arange(1, COSINES + 1), middles)) @ residuals
    return float((weighted**2).mean())


def _without_noise(sums: Floats, counts: Ints) -> tuple[ClusteredMean, Floats, Floats]:
    """Return the mean, the residuals ``s_c - m n_c`` and the counts of the clusters that have targets."""
    kept = counts > 0
    s, n = sums[kept].astype(np.float64), counts[kept].astype(np.float64)
    total = float(n.sum())
    if total == 0:
        raise ValueError("expected at least one target, got none")
    mean = float(s.sum()) / total
    return ClusteredMean(mean, int(total), len(n), None, None), s - mean * n, n


def _skewness_of_mean(residuals: Floats, n: Floats) -> float:
    """Return the skewness of the mean, ``sum a_c^3 / (sum a_c^2)^(3/2)`` for clusters of equal size.

    Of uneven clusters one large residual alone makes that sum skewed, and bounds that follow it lose up to 18 points of
    power where the noise is not skewed at all. So the same is estimated twice more from residuals that weigh clusters
    alike, ``a_c / n_c^q`` with q 1/2 and 1, whose skewness is carried to the mean by ``sum n^3 / (sum n^2)^(3/2)``.
    Where all three agree in sign the smallest counts, else none: at most 3 points are lost, and skewed damage is still
    seen (benchmarks/decisions.py).
    """
    carried = float((n**3).sum() / (n**2).sum() ** 1.5)
    estimates = [skewness(residuals) / math.sqrt(len(n)), *(carried * skewness(residuals / n**q) for q in (0.5, 1.0))]
    if min(estimates) <= 0 <= max(estimates):
        return 0.0
    return min(estimates, key=abs)


def skewness(x: Floats) -> float:
    """``mean(x^3) / mean(x^2)^(3/2)`` of numbers about 0; 0 where all are 0."""
    largest = np.abs(x).max()
    if largest == 0:
        return 0.0
    unit = x / largest  # cubes of tiny numbers would underflow
    return float((unit**3).mean() / (unit**2).mean() ** 1.5)


def _bell_mccaffrey(n: Floats, h: Floats) -> float:
    """``tr(M)^2 / tr(M M)``, from ``B = diag(n) - n n'/N`` and ``M = diag(a) B B' diag(a)``, ``a = (1 - h)^-1/2``."""
    square = n**2
    total, squares = n.sum(), square.sum()
    product = np.diag(square) - (np.outer(square, n) + np.outer(n, square)) / total
    product += np.outer(n, n) * (squares / total**2)
    weight = 1 / np.sqrt(1 - h)
    m = product * np.outer(weight, weight)
    return float(np.trace(m) ** 2 / (m * m).sum())
