"""`Comparison`: is the candidate worse than the reference by more than the tolerance? Three verdicts, by two bounds.

PASS if the upper bound of the degradation is at most the tolerance, FAIL if the lower bound is above it, else
INCONCLUSIVE: a non-inferiority test and its converse. How the bounds are made is in `means`, `rows` and `paired`, a
family of gates in `holm`; docs/no_regression.md has the whole story, benchmarks/decisions.py how often the verdicts are
right.
"""

from __future__ import annotations

__all__ = ["POWER", "Comparison", "Decision", "Tested", "blank_comparison", "decide", "judged", "needed", "no_interval"]

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.noise.clusters import MIN_BLOCKS
from pytest_lmgate.metrics.noise.means import Bounds, Rule
from pytest_lmgate.metrics.noise.student import t_quantile
from pytest_lmgate.metrics.score import Direction

Decision = Literal["pass", "fail", "inconclusive"]

POWER = 0.8
_MOST_TIMES = 1e9


@dataclass(frozen=True)
class Comparison:
    """A candidate against a reference, on the same targets.

    Degradation, bounds and detectable change are fractions of the reference's value where the tolerance is relative,
    else in the metric's own unit; larger is worse whatever the metric's direction.

    Attributes:
        decision: Before a correction for many gates.
        candidate: The metric's value for the candidate; `reference` is that for the reference.
        change: Candidate against reference with the metric's own sign; `degradation` is turned so that larger is worse.
        confidence: One-sided level of each bound.
        n: Targets or rows.
        clusters: How many clusters the noise was judged between.
        lower: One-sided lower bound of the degradation, as `upper` is the upper one; None where there is no interval.
        df: Degrees of freedom of Student's t; None where there are none.
        p_pass: One-sided p-value of "the degradation is at least the tolerance"; small speaks for ``pass``.
        p_fail: One-sided p-value of "the degradation is at most the tolerance"; small speaks for ``fail``.
        p_value: Of a bootstrap, sacrebleu's two-sided one of "the systems do not differ".
        detectable: Smallest degradation told from none with a power of 80 %: the wider bound's distance, times
            ``1 + t_.80 / t_confidence``. A tolerance below it leaves more than one in five unchanged models without a
            ``pass``.
        needed: Where inconclusive, targets or rows that would decide with a power of 80 %. It takes the measured
            degradation for the true one, and more text to be of the same kind (clusters of the same sizes and the same
            noise), so that the squared standard error falls as 1/n. An order of magnitude, not a promise. None where
            nothing can be said: no interval, or a degradation so near to the tolerance that no text would do.
        reason: Why there is no interval; empty where there is one.
        bounds: The rule that made the bound which decides; ``unchanged`` where two different models have the same score
            in every row.
        against: The reference in words, as in ``model 'fp16'`` or ``baseline of 2026-01-31``.
        clustered_by: What a cluster is: ``rows``, or ``blocks`` of a text without rows.
        notes: What else differs between then and now, such as hardware and versions.
    """

    decision: Decision
    candidate: float
    reference: float
    change: float
    degradation: float
    tolerance: Tolerance
    confidence: float
    n: int
    clusters: int
    lower: float | None = None
    upper: float | None = None
    df: float | None = None
    p_pass: float | None = None
    p_fail: float | None = None
    p_value: float | None = None
    detectable: float | None = None
    needed: int | None = None
    reason: str = ""
    bounds: Rule | None = None
    against: str = ""
    clustered_by: str = "rows"
    notes: tuple[str, ...] = ()

    def fails_build(self, *, strict: bool = False) -> bool:
        """Return whether the build fails: by FAIL, and by INCONCLUSIVE if what was measured is beyond the tolerance.

        Args:
            strict: Whether every INCONCLUSIVE fails it.
        """
        if self.decision == "inconclusive":
            return strict or not self.degradation <= self.tolerance.size
        return self.decision == "fail"


class Tested(NamedTuple):
    """A degradation on the scale where it is tested: in nats for a relative change of perplexity, else as shown."""

    measured: float
    limit: float
    """The tolerance on that scale."""
    outward: Callable[[float], float] = lambda x: x
    """Turns a value of that scale into one to show."""


def blank_comparison(
    values: tuple[float, float],
    direction: Direction,
    *,
    tolerance: Tolerance,
    confidence: float,
    n: int,
    clusters: int,
    clustered_by: str = "rows",
) -> Comparison:
    """Return the comparison of `values`, the candidate's and the reference's, before it is judged.

    It is inconclusive, with a reason where it must stay so.

    Raises:
        MetricInputError: A change relative to a value that is not above 0 was asked for.
    """
    if tolerance.relative and values[1] <= 0:
        raise MetricInputError(
            f"a change in percent needs a reference above 0, got {values[1]:g}: use a tolerance in the metric's unit"
        )
    change = (values[0] - values[1]) / (values[1] if tolerance.relative else 1.0)
    return Comparison(
        decision="inconclusive",
        candidate=values[0],
        reference=values[1],
        change=change,
        degradation=0.0 + change if direction == "lower" else 0.0 - change,
        tolerance=tolerance,
        confidence=confidence,
        n=n,
        clusters=clusters,
        reason=no_interval(clusters, clustered_by),
        clustered_by=clustered_by,
    )


def no_interval(clusters: int, clustered_by: str) -> str:
    """Return why there is no interval; empty where there is one."""
    if clustered_by == "rows":
        return "" if clusters > 1 else f"{clusters} independent row: the noise is estimated from at least two"
    if clusters >= MIN_BLOCKS:
        return ""
    return (
        f"{clusters} block{'s' * (clusters != 1)} of windows: the noise of a text without rows is judged between at "
        f"least {MIN_BLOCKS}: take more text or a smaller max_length"
    )


def judged(
    found: Comparison, tested: Tested, bounds: Bounds, df: float, p_values: tuple[float, float], *, finite: bool = True
) -> Comparison:
    """Judge a comparison by the bounds of its degradation.

    Args:
        found: The comparison, not yet judged.
        tested: The degradation on the scale of the bounds.
        bounds: One-sided bounds at the comparison's confidence.
        df: Degrees of freedom of the bounds.
        p_values: ``(p_pass, p_fail)``.
        finite: Whether the noise is finite, so that it tells what could be seen.
    """
    lower, upper = tested.outward(bounds.lower), tested.outward(bounds.upper)
    decision = decide(lower, upper, found.tolerance)
    # The distance of a bound holds 95 %; a power of 80 % needs as much again as its quantile has.
    more = 1 + t_quantile(POWER, df) / t_quantile(found.confidence, df)
    above, below = bounds.upper - tested.measured, tested.measured - bounds.lower
    beyond = tested.measured - tested.limit
    enough = None
    if finite and decision == "inconclusive":
        enough = needed(found.n, more * (below if beyond > 0 else above), abs(beyond))
    return replace(
        found,
        decision=decision,
        lower=lower,
        upper=upper,
        df=df,
        p_pass=p_values[0],
        p_fail=p_values[1],
        detectable=tested.outward(more * max(above, below)) if finite else None,
        needed=enough,
        bounds=bounds.lower_rule if beyond > 0 else bounds.upper_rule,
    )


def decide(lower: float, upper: float, tolerance: Tolerance) -> Decision:
    """Return the verdict of a one-sided lower and upper bound of the degradation."""
    if upper <= tolerance.size:
        return "pass"
    return "fail" if lower > tolerance.size else "inconclusive"


def needed(n: int, visible: float, distance: float) -> int | None:
    """Return how many targets would decide: with so many, the smallest visible change is the distance to the tolerance.

    What is visible falls as the inverse square root of the targets. None where no text would do.
    """
    if visible > distance * _MOST_TIMES**0.5:
        return None
    return math.ceil(n * (visible / distance) ** 2)
