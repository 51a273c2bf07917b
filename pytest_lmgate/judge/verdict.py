"""Pure decisions: a score against a limit, by value or by bounds."""

from __future__ import annotations

import math

from msgspec.structs import replace

from pytest_lmgate.judge.result import Bounded, Outcome
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.stats.comparison import needed
from pytest_lmgate.stats.means import score_quantile


def judge_limit(score: Score, limit: float) -> Outcome:
    """Compare a score with a limit, unrounded; the limit itself passes.

    Finiteness is tested first, because ``value <= nan`` is false and ``not (value > nan)`` is true.
    """
    if not math.isfinite(score) or not math.isfinite(limit):
        return "error"
    passed = score <= limit if score.direction == "lower" else score >= limit
    return "pass" if passed else "fail"


def judge_bounds(score: Score, limit: float, confidence: float) -> tuple[Outcome, Bounded]:
    """Compare the bounds of a score, each at `confidence`, with a limit: pass if both are within it, fail if beyond."""
    blank = Bounded(confidence)
    measured = judge_limit(score, limit)
    if measured == "error" or score.sample is None:
        return "error", blank
    sample = score.sample
    blank = replace(blank, clusters=sample.clusters, clustered_by=sample.clustered_by, unseen=sample.unseen)
    bounds = sample.bounds(confidence)
    if bounds is None:
        return "inconclusive", blank
    worse, better = ("upper", "lower") if score.direction == "lower" else ("lower", "upper")
    decisive = better if measured == "fail" else worse
    found = replace(blank, lower=bounds.lower, upper=bounds.upper, bounds=getattr(bounds, f"{decisive}_rule"))
    side = getattr(bounds, decisive)
    if judge_limit(Score(side, direction=score.direction), limit) == measured:
        return measured, found
    # A power of 80% takes the distance of a normal bound 1.5 times at 95%.
    df = sample.noise().df if sample.scale is not None and sample.outcomes is None else None
    more = 1 + score_quantile(0.8, df) / score_quantile(confidence, df)
    distance = abs(float(score) - limit)
    return "inconclusive", replace(found, needed=needed(score.n, more * abs(side - float(score)), distance))
