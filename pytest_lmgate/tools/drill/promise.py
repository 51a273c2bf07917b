"""What a gate promises: the smallest damage that the verdict on the unbroken model says it would find."""

from __future__ import annotations

import math

from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.stats.comparison import POWER
from pytest_lmgate.stats.means import score_quantile


def smallest_seen(verdict: Verdict, power: float = POWER) -> float | None:
    """Return the smallest damage at which a gate says to fail in this share of samples, if its value has an interval.

    For a comparison, it is the tolerance and the change that the power takes; for a limit, the distance from the value
    to the limit. None if the noise is not known.

    Damage brings noise of its own, which the verdict of a model without damage does not have. Perplexity tells how
    much at least: a log-likelihood ratio r of a slightly damaged model has ``E[exp(r)] = 1``, so a loss of d nats a
    token comes with a variance of ``2 d``. The loss that is seen solves ``d = tolerance + z sqrt(2 d / n)``.
    A share of right rows is noisier the nearer it is to a half: a score bound is at the limit L for a share
    ``p = L - z sqrt(L (1 - L) / n)``, with the n of the bound of the value.
    """
    if (comparison := verdict.comparison) is not None:
        if comparison.detectable is None:
            return None
        level, df = score_quantile(comparison.confidence, comparison.df), comparison.df
        share = (level + score_quantile(power, df)) / (level + score_quantile(POWER, df))
        least = comparison.tolerance.size + share * comparison.detectable
        if verdict.metric != "ppl" or not comparison.tolerance.relative:
            return least
        root = (level + score_quantile(power, df)) / math.sqrt(2 * comparison.n)
        damage = (root + math.sqrt(root**2 + math.log1p(comparison.tolerance.size))) ** 2
        return max(least, math.expm1(damage))
    if verdict.limit is None or verdict.value is None:
        return None
    room, bounded = abs(verdict.limit - verdict.value), verdict.bounded
    if bounded is None:
        return room
    is_lower = verdict.direction == "lower"
    better, worse = (bounded.lower, bounded.upper) if is_lower else (bounded.upper, bounded.lower)
    if better is None or worse is None:
        return None
    level, beyond = score_quantile(bounded.confidence, None), score_quantile(power, None)
    if bounded.bounds == "wilson" and 0 < verdict.limit < 1 and 0 < worse < 1:
        n = (level / (verdict.value - worse)) ** 2 * worse * (1 - worse)
        sign = 1 if is_lower else -1
        share = verdict.limit + sign * level * math.sqrt(verdict.limit * (1 - verdict.limit) / n)
        share = min(max(share, 0.0), 1.0)
        return abs(share - verdict.value) + beyond * math.sqrt(share * (1 - share) / n)
    return room + (1 + beyond / level) * abs(verdict.value - better)
