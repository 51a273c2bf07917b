"""`Comparison`: is the candidate worse than the reference by more than the tolerance? Three verdicts, by two bounds.

PASS if the upper bound of the degradation is at most the tolerance, FAIL if the lower bound is above it, else
INCONCLUSIVE: a non-inferiority test and its converse. A two-sided tolerance asks the same of gains: PASS is then an
equivalence test by two one-sided tests (Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15(6),
657-680), each at the full level, and FAIL is a loss or a gain beyond it. `paired` makes the bounds.
docs/no_regression.md has the whole story, benchmarks/decisions.py how often the verdicts are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec.structs import force_setattr, replace

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.settings.metrics import Direction
from pytest_lmgate.stats.means import MIN_BLOCKS, Bounds, Rule, t_quantile

Decision = Literal["pass", "fail", "inconclusive"]

if TYPE_CHECKING:
    Number = float
else:
    Number = float | None  # as JSON has it

POWER = 0.8
PValuesAt = Callable[[float], tuple[float, float]]
"""Returns the one-sided p-values of "the degradation is at least" and "is at most" a limit on the tested scale."""
_MOST_TIMES = 1e9


class Comparison(msgspec.Struct, frozen=True):
    """A candidate against a reference, on the same targets.

    Degradation, bounds and detectable change are fractions of the reference's value if the tolerance is relative, else
    in the metric's own unit; larger is always worse.

    Attributes:
        decision: The verdict.
        candidate: The candidate's value.
        reference: The reference's value.
        change: Candidate against reference with the metric's own sign.
        degradation: The change, with a sign such that larger is worse.
        tolerance: The largest degradation that passes.
        confidence: One-sided level of each bound.
        n: Targets or rows.
        clusters: Number of clusters.
        lower: One-sided lower bound of the degradation; None without an interval.
        upper: One-sided upper bound of the degradation; None without an interval.
        df: Degrees of freedom of Student's t, if any.
        p_pass: One-sided p-value of "the degradation is at least the tolerance"; small speaks for ``pass``. With a
            two-sided tolerance, the larger of those of loss and gain.
        p_fail: One-sided p-value of "the degradation is at most the tolerance"; small speaks for ``fail``. With a
            two-sided tolerance, the smaller of those of loss and gain.
        p_value: For a bootstrap, sacrebleu's two-sided p-value of "the systems do not differ".
        detectable: Smallest degradation detected with a power of 80%: the wider bound's distance, times ``1 + t_.80 /
            t_confidence``. With a smaller tolerance, more than one in five unchanged models do not ``pass``.
        needed: If inconclusive, targets or rows that would decide with a power of 80%, if the measured degradation is
            the true one and more text is of the same kind, so that the squared standard error falls as 1/n: an order of
            magnitude. None without an interval, or if the degradation is too near to the tolerance.
        reason: Why there is no interval, if so.
        bounds: The rule of the deciding bound; ``unchanged`` if two different models have the same score in every row.
        against: The reference in words, as in ``model 'fp16'`` or ``baseline of 2026-01-31``.
        clustered_by: What a cluster is: ``rows``, or ``blocks`` of a text without rows.
        unseen: Share of rows of which these may hold none: damage there is not ruled out. None for a metric with a
            finite range, and for a text without rows.
        notes: Other differences from the reference, such as hardware and versions.
        varies_by: Largest difference between two runs of the reference's model, unchanged, by ``lmgate calibrate``; in
            the metric's own unit. None if unknown.
    """

    decision: Decision
    candidate: float
    reference: float
    change: Number
    degradation: Number
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
    unseen: float | None = None
    notes: tuple[str, ...] = ()
    varies_by: float | None = None

    def __post_init__(self) -> None:
        # JSON has null for what is infinite.
        infinite = {"change": math.inf, "degradation": math.inf} | (
            {"lower": -math.inf, "upper": math.inf} if self.bounds else {}
        )
        for name, value in infinite.items():
            if getattr(self, name) is None:
                force_setattr(self, name, value)

    @property
    def is_within_runs(self) -> bool:
        """Whether there is a change, no larger than that between two runs of an unchanged model."""
        change = abs(self.candidate - self.reference)
        return self.varies_by is not None and 0 < change <= self.varies_by

    def fails_build(self, *, strict: bool = False) -> bool:
        """Return whether the build fails: on FAIL, and on INCONCLUSIVE if the measured change is beyond the tolerance.

        With `strict` every INCONCLUSIVE fails.
        """
        return self.decision == "fail" or (self.decision == "inconclusive" and (strict or self.is_beyond))

    @property
    def is_beyond(self) -> bool:
        """Whether the measured change is beyond the tolerance, whatever its noise."""
        change = abs(self.degradation) if self.tolerance.two_sided else self.degradation
        return not change <= self.tolerance.size

    @property
    def is_failed_gain(self) -> bool:
        """Whether the candidate is better by more than ``within`` allows, so that nothing got worse anywhere."""
        return self.decision == "fail" and self.degradation < 0


class TestScale(NamedTuple):
    """A degradation on the scale where it is tested: in nats for a relative change of perplexity, else as shown."""

    measured: float
    limit: float
    """The tolerance on that scale."""
    gain: float
    """The largest gain that passes with a two-sided tolerance, which is below 0."""
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

    It is inconclusive, with a reason if it must stay so.
    """
    if tolerance.relative and values[1] <= 0:
        raise MetricInputError(
            f"a change in percent needs a reference above 0, got {values[1]:g}: use a tolerance in the metric's unit; "
            "where no row is right, no candidate can be worse"
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
    if clustered_by == "rows":
        return "" if clusters > 1 else f"{clusters} independent row: the noise needs at least two"
    if clusters >= MIN_BLOCKS:
        return ""
    return (
        f"{clusters} block{'s' * (clusters != 1)} of windows: a text without rows needs at least {MIN_BLOCKS} to "
        "estimate the noise: use more text or a smaller max_length"
    )


def decide(
    comparison: Comparison,
    scale: TestScale,
    bounds: Bounds,
    df: float,
    p_values_at: PValuesAt,
    *,
    finite: bool = True,
) -> Comparison:
    """Judge a comparison by one-sided bounds of its degradation."""
    lower, upper = scale.outward(bounds.lower), scale.outward(bounds.upper)
    tolerance = comparison.tolerance
    decision = decision_of(lower, upper, tolerance)
    # The distance of a bound holds 95%; a power of 80% needs as much again as its quantile has.
    more = 1 + t_quantile(power_of(tolerance), df) / t_quantile(comparison.confidence, df)
    above, below = bounds.upper - scale.measured, scale.measured - bounds.lower
    beyond = scale.measured - scale.limit
    if tolerance.two_sided and abs(scale.measured - scale.gain) < abs(beyond):  # the nearer limit decides
        beyond = scale.measured - scale.gain
    p_pass, p_fail = p_values(p_values_at, scale.limit, scale.gain if tolerance.two_sided else None)
    enough = None
    if finite and decision == "inconclusive":
        enough = needed(comparison.n, more * (below if beyond > 0 else above), abs(beyond))
    return replace(
        comparison,
        decision=decision,
        lower=lower,
        upper=upper,
        df=df,
        p_pass=p_pass,
        p_fail=p_fail,
        detectable=scale.outward(more * max(above, below)) if finite else None,
        needed=enough,
        bounds=bounds.lower_rule if beyond > 0 else bounds.upper_rule,
    )


def decision_of(lower: float, upper: float, tolerance: Tolerance) -> Decision:
    gain = -tolerance.size if tolerance.two_sided else -math.inf
    if gain <= lower and upper <= tolerance.size:
        return "pass"
    return "fail" if lower > tolerance.size or upper < gain else "inconclusive"


def p_values(at: PValuesAt, limit: float, gain: float | None) -> tuple[float, float]:
    """Return ``(p_pass, p_fail)`` by the one-sided ones at each limit; `gain` is that of a two-sided tolerance."""
    p_pass, p_fail = at(limit)
    if gain is None:
        return p_pass, p_fail
    p_gained, p_within = at(gain)
    return max(p_pass, p_within), min(p_fail, p_gained)


def power_of(tolerance: Tolerance) -> float:
    """Return the power that each bound needs so that an unchanged model passes in 80% of runs."""
    return (1 + POWER) / 2 if tolerance.two_sided else POWER


def needed(n: int, visible: float, distance: float) -> int | None:
    """Return the number of targets with which the smallest visible change is the distance to the tolerance.

    The visible change falls as the inverse square root of the targets. None if no text is enough.
    """
    if not math.isfinite(visible) or visible > distance * _MOST_TIMES**0.5:
        return None
    return math.ceil(n * (visible / distance) ** 2)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values, in the order given: a hypothesis is rejected at level a if its own is at most a.

    Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6(2),
    65-70; it needs no independence.
    The k-th smallest of m becomes ``max_{j <= k} min(1, (m - j + 1) p_(j))``.
    """
    if wrong := [p for p in p_values if not 0 <= p <= 1]:
        raise ValueError(f"expected p-values from 0 to 1, got {wrong[0]!r}")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
