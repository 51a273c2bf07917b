"""The noise of a mean over clusters: standard error, degrees of freedom, skewness, and the bounds made of them.

Tokens of one document are not independent, so the noise is judged between clusters: rows if there are rows, else 64
blocks of consecutive windows. Rows: CR2 residual scaling and Bell-McCaffrey degrees of freedom (Bell and McCaffrey
2002, Survey Methodology 28(2)), under the working model that the cluster's own effect dominates. Blocks of a text
without rows depend on their neighbours: the equal-weighted cosine estimator (Lazarus, Lewis, Stock and Watson 2018,
JBES 36(4), 541-559). Student's bound is too narrow where a few clusters lose much, so each bound is the wider of
Student's and of Hall's cubic correction of it (Hall 1992, JRSS B 54, 221-228). docs/noise.md has the reasons and
benchmarks/decisions.py the simulation.

`Groups` of rows may count alike however many rows each has, as in a benchmark's average over its tasks. With n_g rows
and the mean m_g in each of G groups the average is ``M = sum_g m_g / G``, and its noise that of a stratified sample,
``se^2 = sum_g s_g^2 / n_g / G^2``, because the groups are the same for every model (Cochran 1977, *Sampling
Techniques*, equation 5.6; `unweighted_mean_stderr` of lm-evaluation-harness 0.4.13). Each row stands in by
``M + f w (x - m_g)`` with its weight ``w = n / (G n_g)``. The mean of these is M, their standard error that of M, and
the difference of two models' is that of their difference, so that all that is made for rows of equal weight serves.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.errors import MetricInputError

# A document must not be cut: cut at a quarter of the text, a model at the tolerance passed in 10 to 23% of simulations
# where 5% are promised. A text without rows may hide documents of any length that begin anywhere. Its blocks cut them,
# so `mean_of_blocks` does not take blocks for independent.
MAX_CLUSTERS = 512
BLOCKS = 64
MIN_BLOCKS = 8
"""Blocks below which a text without rows has no interval."""
INTERVAL_NEEDS = f"at least two rows, or {MIN_BLOCKS} windows of a text without rows"
COSINES = 6
"""nu, the number of cosines whose squares average to the variance of a text without rows.

0.4 M^(2/3) with 64 blocks, as its authors advise. In simulations with long hidden documents 6 hold the
level better than 8, at the price of a t quantile that is 4% larger.
"""
Rule = Literal["student", "hall", "tango", "wilson", "bootstrap", "unchanged"]


class Bounds(NamedTuple):
    """One-sided bounds of a value, and the rule of each."""

    lower: float
    upper: float
    lower_rule: Rule
    upper_rule: Rule


@dataclass(frozen=True)
class ClusteredMean:
    """A mean over targets with its cluster-robust noise."""

    mean: float  # ``m = sum s_c / N``
    n: int  # n, targets
    clusters: int  # c, clusters with at least one target
    stderr: float | None  # standard error of `mean`; None with too few clusters
    df: float | None  # degrees of freedom of Student's t; None with too few clusters
    skewness: float = 0.0  # k, of the residuals ``a_c``; ``sum a_c^3 / (sum a_c^2)^(3/2)`` for clusters of equal size

    def bounds(self, confidence: float) -> Bounds | None:
        """Return one-sided bounds of the mean, each at `confidence`; None with too few clusters."""
        if self.stderr is None or self.df is None:
            return None
        return student_or_hall(self.mean, self.stderr, t_quantile(confidence, self.df), self.skewness)


def student_or_hall(value: float, stderr: float, t: float, skewness: float) -> Bounds:
    """Return on each side the wider of Student's bound ``value -+ t se`` and Hall's ``value - H(+-t) se``.

    Here t is Student's quantile at the level of each bound, and the skewness that of `ClusteredMean`.
    """
    above, below = -hall(-t, skewness), hall(t, skewness)
    return Bounds(
        value - max(t, below) * stderr,
        value + max(t, above) * stderr,
        "hall" if below > t else "student",
        "hall" if above > t else "student",
    )


def tail(x: float, df: float, skewness: float) -> float:
    """Return the one-sided p-value of a value `x` standard errors above a bound, by the wider rule.

    The upper bound at level ``1 - p`` is exactly the value minus ``x`` standard errors.
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


def noisy_mean(sums: Floats, counts: Ints | Floats, *, rows: bool) -> ClusteredMean:
    """Return the mean of a sum over clusters and its noise: of rows, or of the blocks of a text without rows."""
    return clustered_mean(sums, counts) if rows else mean_of_blocks(sums, counts)


def clustered_mean(sums: Floats, counts: Ints | Floats) -> ClusteredMean:
    """Return the mean of sums ``s_c`` over independent rows or clusters of ``n_c`` targets, and its noise.

    ``se^2 = sum_c e_c^2 / (1 - h_c) / N^2`` with ``e_c = s_c - m n_c`` and ``h_c = n_c / N``; ``df = tr(M)^2 / tr(M
    M)``, ``M = G G'``, ``G = diag((1 - h)^-1/2) (I - n 1'/N) diag(n)``. Clusters without targets are left out.
    """
    plain, residuals, n = _without_noise(sums, counts)
    if plain.clusters < 2:
        return plain
    h = n / n.sum()
    residuals = residuals / np.sqrt(1 - h)
    stderr = math.sqrt(float((residuals**2).sum())) / float(n.sum())
    return replace(plain, stderr=stderr, df=_bell_mccaffrey(n), skewness=_skewness_of_mean(residuals, n))


def degrees_of_freedom(sizes: Ints | Floats) -> float | None:
    """Return the Bell-McCaffrey degrees of freedom of a mean over clusters of these sizes; None of fewer than two."""
    n = np.asarray(sizes, dtype=np.float64)
    return _bell_mccaffrey(n) if len(n) > 1 else None


def mean_of_blocks(sums: Floats, counts: Ints | Floats) -> ClusteredMean:
    """Return the mean of sums ``s_b`` over the blocks of a text without rows, in its order, and its noise.

    ``se^2 = mean_j L_j^2 / N^2`` of the residuals ``e_b = s_b - m n_b`` (see `cosine_variance`), with Student's t of
    `COSINES` degrees of freedom; fewer than 8 blocks with targets have no noise estimate.
    """
    plain, residuals, n = _without_noise(sums, counts)
    if plain.clusters < MIN_BLOCKS:
        return plain
    stderr = math.sqrt(cosine_variance(residuals, n)) / float(n.sum())
    return replace(plain, stderr=stderr, df=float(COSINES), skewness=_skewness_of_mean(residuals, n))


def cosine_variance(residuals: Floats, n: Floats) -> float:
    """Return the variance of the sum of residuals ``e_b`` of blocks: ``mean_j L_j^2``, j from 1 to `COSINES`.

    ``L_j = sqrt(2) sum_b e_b cos(pi j t_b)``, where ``t_b`` is the middle of block b as a share of all targets, of
    which it has ``n_b``. Such slow cosines give all parts of a document nearly equal weight, wherever blocks cut it.
    """
    middles = (np.cumsum(n) - n / 2) / n.sum()
    weighted = math.sqrt(2) * np.cos(np.pi * np.outer(np.arange(1, COSINES + 1), middles)) @ residuals
    return float((weighted**2).mean())


def _without_noise(sums: Floats, counts: Ints | Floats) -> tuple[ClusteredMean, Floats, Floats]:
    kept = counts > 0
    s, n = sums[kept].astype(np.float64), counts[kept].astype(np.float64)
    total = float(n.sum())
    if total == 0:
        raise ValueError("expected at least one target, got none")
    mean = float(s.sum()) / total
    return ClusteredMean(mean, int(total), len(n), None, None), s - mean * n, n


def _skewness_of_mean(residuals: Floats, n: Floats) -> float:
    """Return the skewness of the mean, ``sum a_c^3 / (sum a_c^2)^(3/2)`` for clusters of equal size.

    With uneven clusters one large residual makes that sum skewed, and the bounds lose up to 18 points of power although
    the noise is symmetric. So it is estimated twice more, from ``a_c / n_c^q`` with q 1/2 and 1, times ``sum n^3 / (sum
    n^2)^(3/2)``. If all three agree in sign the smallest counts, else 0: at most 3 points are lost, and skewed damage
    is still detected (benchmarks/decisions.py).
    """
    estimates = _skewness_estimates(residuals, n)
    if min(estimates) <= 0 <= max(estimates):
        return 0.0
    return min(estimates, key=abs)


def _skewness_estimates(residuals: Floats, n: Floats) -> list[float]:
    carried = float((n**3).sum() / (n**2).sum() ** 1.5)
    return [skewness(residuals) / math.sqrt(len(n)), *(carried * skewness(residuals / n**q) for q in (0.5, 1.0))]


def cautious_upper(sums: Floats, counts: Ints | Floats, noise: ClusteredMean, confidence: float) -> float:
    """Return an upper bound of a mean that is wide enough where few clusters lose much.

    The bound of `ClusteredMean` takes the smallest of three estimates of the skewness, since a comparison of two models
    has symmetric noise as a rule. A divergence is 0 or more, and skewed: this is Hall's bound with the largest of the
    three (docs/decisions.md).
    """
    assert noise.stderr is not None
    assert noise.df is not None
    _, residuals, n = _without_noise(sums, counts)
    largest = max(0.0, *_skewness_estimates(residuals / np.sqrt(1 - n / n.sum()), n))
    return noise.mean - hall(-t_quantile(confidence, noise.df), largest) * noise.stderr


def skewness(x: Floats) -> float:
    """``mean(x^3) / mean(x^2)^(3/2)`` of numbers about 0; 0 if all are 0."""
    largest = np.abs(x).max()
    if largest == 0:
        return 0.0
    unit = x / largest  # cubes of tiny numbers would underflow
    return float((unit**3).mean() / (unit**2).mean() ** 1.5)


def _bell_mccaffrey(sizes: Floats) -> float:
    """``tr(M)^2 / tr(M M)``, from ``B = diag(n) - n n'/N`` and ``M = diag(a) B B' diag(a)``, ``a = (1 - h)^-1/2``.

    Clusters of one size have the same entries of M, so each size is taken once, with its number of clusters.
    """
    n, number = np.unique(sizes, return_counts=True)
    square, pairs = n**2, np.outer(number, number) - np.diag(number)
    total, squares = number @ n, number @ square
    product = np.outer(n, n) * (squares / total**2) - (np.outer(square, n) + np.outer(n, square)) / total
    weight = 1 / np.sqrt(1 - n / total)
    diagonal = (product.diagonal() + square) * weight**2
    product *= np.outer(weight, weight)
    return float((number @ diagonal) ** 2 / ((pairs * product**2).sum() + number @ diagonal**2))


def merged_rows(counts: Ints | Floats) -> Ints:
    """Return the cluster of each row, from 0, not decreasing, given its targets; neighbours are merged beyond 512."""
    if len(counts) <= MAX_CLUSTERS:
        return np.arange(len(counts), dtype=np.int64)
    # Not 512: committed baselines of more rows were merged to this share, and pair only with the same clusters.
    share = -(-int(counts.sum()) // 508)
    clusters = np.zeros(len(counts), dtype=np.int64)
    cluster, targets = 0, 0
    for index, count in enumerate(counts.tolist()):
        if targets >= share:
            cluster, targets = cluster + 1, 0
        clusters[index] = cluster
        targets += count
    if targets < share:
        clusters[clusters == cluster] = max(cluster - 1, 0)
    return clusters


def window_blocks(targets: Ints) -> Ints:
    """Assign windows of a text without rows, given their targets, to 64 blocks of about equally many targets.

    Blocks count from 0 and do not decrease; few windows have fewer.
    """
    # A window belongs to the block that its middle lies in.
    middle = np.cumsum(targets) - targets / 2
    blocks = np.minimum((BLOCKS * middle / targets.sum()).astype(np.int64), BLOCKS - 1)
    return np.unique(blocks, return_inverse=True)[1].astype(np.int64)


# scipy has these distributions, but importing it takes longer than all else of a session whose gates are cached.
_EPSILON, _TINY = 2.0**-52, 1e-300


def normal_cdf(x: float) -> float:
    """CDF of the standard normal distribution; accurate in the lower tail too."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def normal_quantile(p: float) -> float:
    """Quantile of the standard normal distribution, infinite at 0 and 1."""
    return NormalDist().inv_cdf(p) if 0 < p < 1 else math.copysign(math.inf, p - 0.5)


def score_cdf(x: float, df: float | None) -> float:
    """CDF of Student's t with `df` degrees of freedom; the normal's for None."""
    return normal_cdf(x) if df is None or math.isinf(x) else t_cdf(x, df)


def score_quantile(p: float, df: float | None) -> float:
    """Quantile of Student's t with `df` degrees of freedom; the normal's for None."""
    return normal_quantile(p) if df is None else t_quantile(p, df)


def t_cdf(t: float, df: float) -> float:
    """CDF of Student's t distribution: ``I_x(df/2, 1/2) / 2`` at ``x = df / (df + t^2)``, t < 0.

    Source: NIST Digital Library of Mathematical Functions, 8.17(i) and 8.17(v). NaN if t is NaN; df need not be whole.
    """
    if not 0 < df < math.inf:
        raise ValueError(f"expected finite degrees of freedom above 0, got {df!r}")
    if t > 0:
        return 1 - t_cdf(-t, df)
    half, odds = df / 2, t * t / df  # (1 - x) / x
    x, rest = 1 / (1 + odds), 1 / (1 + 1 / odds) if odds else 0.0
    # x^a (1-x)^b / B(a, b), with a logarithm that is exact near x = 1
    power = math.exp(-half * math.log1p(odds) - _log_beta(half)) * math.sqrt(rest)
    if x < (half + 1) / (half + 2.5):  # where the fraction converges fast
        return 0.5 * power / half * _fraction(x, half, 0.5)
    return 0.5 - power * _fraction(rest, 0.5, half)


def t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t distribution, by Newton's method within a bracket."""
    if not (1e-50 <= p < 1 and 0.5 <= df < math.inf):
        raise ValueError(f"expected a chance from 1e-50 to 1 and finite degrees of freedom from 1/2, got {p!r}, {df!r}")
    if p >= 0.5:
        return -t_quantile(1 - p, df) if p > 0.5 else 0.0
    high, low = 0.0, -1.0
    while t_cdf(low, df) > p:
        high, low = low, 2 * low
    t = low
    while True:
        chance = t_cdf(t, df)
        low, high = (t, high) if chance < p else (low, t)
        log_density = -(df + 1) / 2 * math.log1p(t * t / df) - 0.5 * math.log(df) - _log_beta(df / 2)
        # A step on the logarithm of the chance, which is concave where the chance itself bends both ways.
        step = chance * math.log(chance / p) / math.exp(log_density)
        following = t - step if low < t - step < high else (low + high) / 2
        if abs(following - t) <= 2 * _EPSILON * abs(t):
            return following
        t = following


def _log_beta(a: float) -> float:
    """``log B(a, 1/2)``."""
    if a < 100:
        return math.lgamma(a) + math.lgamma(0.5) - math.lgamma(a + 0.5)
    # The difference of two large logarithms would lose digits: Gamma(a + 1/2) / (Gamma(a) sqrt(a)), DLMF 5.11.13.
    ratio = 1 - 1 / (8 * a) + 1 / (128 * a**2) + 5 / (1024 * a**3) - 21 / (32768 * a**4) - 399 / (262144 * a**5)
    return 0.5 * math.log(math.pi / a) - math.log(ratio)


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, DLMF 8.17.22, by Lentz's method."""
    value, above, below, k = 1.0, 1.0, 0.0, 0
    while True:
        k += 1
        m = k // 2
        over = m * (b - m) if k % 2 == 0 else -(a + m) * (a + b + m)
        term = over * x / ((a + k - 1) * (a + k))
        below = 1 / (1 + term * below or _TINY)
        above = 1 + term / above or _TINY
        value *= above * below
        if not abs(above * below - 1) > _EPSILON:
            return 1 / value


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
