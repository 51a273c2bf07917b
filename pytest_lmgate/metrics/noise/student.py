"""Student's t and the normal distribution, in double precision.

scipy has them, but importing it takes longer than all else of a session whose gates are cached.
"""

from __future__ import annotations

__all__ = ["normal_cdf", "normal_quantile", "score_cdf", "score_quantile", "t_cdf", "t_quantile"]

import math
from statistics import NormalDist

_EPSILON, _TINY = 2.0**-52, 1e-300


def normal_cdf(x: float) -> float:
    """Chance of at most `x` under the standard normal distribution; accurate in the lower tail too."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def normal_quantile(p: float) -> float:
    """Quantile of the standard normal distribution, infinite at 0 and 1."""
    return NormalDist().inv_cdf(p) if 0 < p < 1 else math.copysign(math.inf, p - 0.5)


def score_cdf(x: float, df: float | None) -> float:
    """Chance of at most `x` under Student's t with `df` degrees of freedom; the normal's where there are none."""
    return normal_cdf(x) if df is None or math.isinf(x) else t_cdf(x, df)


def score_quantile(p: float, df: float | None) -> float:
    """Quantile of Student's t with `df` degrees of freedom; the normal's where there are none."""
    return normal_quantile(p) if df is None else t_quantile(p, df)


def t_cdf(t: float, df: float) -> float:
    """Chance of at most `t` under Student's t distribution: ``I_x(df/2, 1/2) / 2`` at ``x = df / (df + t^2)``, t < 0.

    Source: NIST Digital Library of Mathematical Functions, 8.17(i) and 8.17(v). NaN where t is NaN.

    Raises:
        ValueError: The degrees of freedom are not above 0; they need not be whole.
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
    """Quantile of Student's t distribution, by Newton's method within a bracket.

    Raises:
        ValueError: `p` is below 1e-50 (squares would leave double precision) or not below 1, or `df` is below 1/2.
    """
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
