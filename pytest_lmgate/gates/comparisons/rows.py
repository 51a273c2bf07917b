"""Compare two models row by row where each row is right or wrong, or where no row changed.

Student's t on right-or-wrong rows passes 7 to 67 % of models that are worse by just the tolerance, where 5 % are
promised (20 to 200 rows), and it sees no noise at all where no row changed. Tango's score test holds its level (see
`tango`).
"""

from __future__ import annotations

__all__ = ["compare_outcomes", "compare_unchanged"]

import math
from dataclasses import replace

from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.gates.comparisons.comparison import POWER, Comparison, blank_comparison, decide
from pytest_lmgate.gates.comparisons.tango import Changes, rows_without_change, tango_bounds, tango_z
from pytest_lmgate.metrics.noise.means import Rule
from pytest_lmgate.metrics.noise.proportion import Outcomes
from pytest_lmgate.metrics.noise.student import score_cdf, score_quantile

_SMALLEST = 1e-9
"""A loss below which no number of rows is worth naming."""


def compare_outcomes(
    candidate: Outcomes, reference: Outcomes, *, tolerance: Tolerance, confidence: float = 0.95
) -> Comparison:
    """Judge whether the candidate's share of right rows is lower by more than the tolerance.

    A relative tolerance is turned into an absolute one by the reference's share as it was measured; simulated, that
    keeps its level.

    Args:
        candidate: Which rows the candidate has right.
        reference: Which of the same rows the reference has right.
        tolerance: Largest degradation let pass.
        confidence: One-sided level of the bounds.

    Raises:
        MetricInputError: A change in percent of a share of 0 was asked for.
    """
    values = float(candidate.right.mean()), float(reference.right.mean())
    found = blank_comparison(
        values, "higher", tolerance=tolerance, confidence=confidence, n=candidate.n, clusters=len(candidate.sizes)
    )
    if found.clusters < 2:
        return found
    unit = values[1] if tolerance.relative else 1.0
    return _judged(found, Changes.of(candidate, reference), unit, candidate.df, "tango")


def compare_unchanged(found: Comparison, span: float) -> Comparison:
    """Judge two different models that have the same score in every row.

    The noise that nobody saw is bounded as Tango's test bounds it: of C rows none changed, so at most a share of
    ``z^2 / (C + z^2)`` of rows like them changes, each by `span`, the whole range of the metric, at most.
    """
    unit = found.reference / span if found.tolerance.relative else 1 / span
    return _judged(found, Changes(found.clusters, 0, 0), unit, None, "unchanged")


def _judged(found: Comparison, changes: Changes, unit: float, df: float | None, rule: Rule) -> Comparison:
    """Judge changed rows; `unit` is the share of rows that a degradation of 1 stands for. Without `df` z is normal."""
    z, size = score_quantile(found.confidence, df), found.tolerance.size * unit
    lower, upper = (bound / unit for bound in tango_bounds(changes, z))
    score = tango_z(changes, size) if size < 1 else -math.inf
    decision = decide(lower, upper, found.tolerance)
    more = 1 + score_quantile(POWER, df) / z
    return replace(
        found,
        decision=decision,
        lower=lower,
        upper=upper,
        df=df,
        p_pass=score_cdf(score, df),
        p_fail=score_cdf(-score, df),
        detectable=more * max(upper - found.degradation, found.degradation - lower),
        needed=_needed(changes, size, score, z, more, found.n) if decision == "inconclusive" else None,
        bounds=rule,
    )


def _needed(changes: Changes, size: float, score: float, z: float, more: float, rows: int) -> int | None:
    """Return the rows that would decide: the score grows as their square root."""
    if changes.lost + changes.gained == 0:
        # Not for a power of 80 %: without a change in any of them, so many rows do show it.
        return math.ceil(rows_without_change(size, z) * rows / changes.n) if size > _SMALLEST else None
    return math.ceil(rows * (more * z / score) ** 2) if abs(score) > 1e-4 else None
