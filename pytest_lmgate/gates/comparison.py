"""Is the candidate worse than the reference by more than the tolerance? A paired, cluster-robust test, three verdicts.

Here is the closed form for every metric whose value is a mean over targets or rows, or the exponential of one:
perplexity, bits per byte, KL, ROUGE. The noise is `pytest_lmgate.metrics.noise`'s, of the differences between the two
models on the same targets. Right-or-wrong rows are in `rows`, a family of gates in `holm`; docs/no_regression.md has
the whole story, benchmarks/decisions.py how often the verdicts are right.
"""

from __future__ import annotations

__all__ = [
    "POWER",
    "Comparison",
    "Decision",
    "blank_comparison",
    "compare_means",
    "decide",
    "decisive",
    "fails_build",
    "needed",
]

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.config.tolerance import Tolerance
from pytest_lmgate.errors import ConfigError, MetricInputError
from pytest_lmgate.metrics.noise import Bounds, ClusteredMean, Rule, clustered_mean, student_or_hall, tail
from pytest_lmgate.metrics.sample import Scale
from pytest_lmgate.metrics.score import Direction
from pytest_lmgate.metrics.student import t_quantile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Decision = Literal["pass", "fail", "inconclusive"]

POWER = 0.8
_MOST_TIMES = 1e9


@dataclass(frozen=True)
class Comparison:
    """A candidate against a reference, on the same targets.

    Degradation, bounds and detectable change are fractions of the reference's value where the tolerance is relative,
    else in the metric's own unit; larger is worse whatever the metric's direction.

    Attributes:
        decision: ``pass``, ``fail`` or ``inconclusive``.
        candidate: The metric's value for the candidate.
        reference: Likewise for the reference.
        change: Candidate against reference with the metric's own sign.
        degradation: The change, sign turned so that larger is worse.
        tolerance: What the bounds were compared with.
        confidence: One-sided level of each bound.
        n: Targets or rows.
        clusters: What the noise was judged between.
        lower: One-sided lower bound of the degradation at `confidence`; None where there is no interval.
        upper: One-sided upper bound, likewise.
        df: Bell-McCaffrey degrees of freedom; None where there is no interval.
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
        bounds: The rule that made the bound which decides: ``tango``, ``hall``, ``student``, ``bootstrap``, or
            ``unchanged`` where two different models have the same score in every row.
        note: What to know of the rule.
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
    note: str = ""
    against: str = ""
    clustered_by: str = "rows"
    notes: tuple[str, ...] = ()

    def fails_build(self, *, strict: bool = False) -> bool:
        """Whether the build fails by it; see the function of this name."""
        return fails_build(self.decision, self.degradation, self.tolerance, strict=strict)


def fails_build(decision: Decision, degradation: float, tolerance: Tolerance, *, strict: bool = False) -> bool:
    """Return whether a build fails: ``fail``, and ``inconclusive`` if the measured degradation is beyond the tolerance.

    Args:
        decision: The verdict.
        degradation: As measured.
        tolerance: Of the gate.
        strict: Whether every ``inconclusive`` fails.
    """
    if decision == "inconclusive":
        return strict or not degradation <= tolerance.size
    return decision == "fail"


def blank_comparison(
    values: tuple[float, float],
    direction: Direction,
    *,
    tolerance: Tolerance,
    confidence: float,
    n: int,
    clusters: int,
) -> Comparison:
    """Return the comparison of two values before it is judged: inconclusive, with a reason where it must stay so.

    Args:
        values: Of the candidate and the reference.
        direction: Of the metric.
        tolerance: Largest degradation let pass.
        confidence: One-sided level of the bounds.
        n: Targets or rows.
        clusters: What the noise is judged between.

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
        reason="" if clusters > 1 else f"{clusters} cluster: noise is judged between clusters and needs two at least",
    )


def compare_means(
    candidate: Floats,
    reference: Floats,
    counts: Ints,
    *,
    scale: Scale,
    tolerance: Tolerance,
    confidence: float = 0.95,
    skewed: bool = True,
) -> Comparison:
    """Judge whether the candidate is worse than the reference by more than the tolerance.

    A relative change of perplexity is ``exp(d) - 1``, ``d = sum_c (s_c - r_c) / N``, with the bounds of d carried over:
    on each side the wider of Student's ``d +- t se`` and Hall's. The absolute change of a mean is ``d`` itself. The
    other two, a relative change of a mean and an absolute change of a perplexity, depend on the reference's own level
    too: their noise is that of the linearized difference (delta method).

    PASS if the upper bound is at most the tolerance, FAIL if the lower bound is above it, else INCONCLUSIVE: a
    non-inferiority test and its converse, each at level ``1 - confidence``. With fewer than two clusters there is no
    interval: INCONCLUSIVE.

    Args:
        candidate: ``s_c``, sum over the targets of each cluster, as of NLL in nats; shape ``[clusters]``.
        reference: ``r_c``, on the same targets in the same clusters.
        counts: ``n_c``, targets of each cluster; clusters without any are left out.
        scale: Of the metric.
        tolerance: Largest degradation let pass.
        confidence: One-sided level, above 0.5 and below 1.
        skewed: Whether to take Hall's bounds where they are wider; False is the rule of earlier versions, Student's.

    Raises:
        MetricInputError: The clusters are not the same, there is no target, a sum or a value is NaN or infinite, or a
            change relative to a value that is not above 0 was asked for.
        ConfigError: `confidence` is not a level.
    """
    if not 0.5 < confidence < 1:
        raise ConfigError.of("confidence", f"expected a one-sided level above 0.5 and below 1, got {confidence!r}")
    _require_pairs(candidate, reference, counts)
    means = [float(sums.sum()) / int(counts.sum()) for sums in (candidate, reference)]
    values = scale.value(means[0]), scale.value(means[1])
    if not all(math.isfinite(value) for value in values):
        raise MetricInputError(
            f"a change needs finite values, got {values[0]:g} (candidate) and {values[1]:g} (reference): "
            "compare bits per byte (metric 'bpb'), which do not overflow"
        )
    worse = _worse(candidate, reference, counts, values, scale, tolerance)
    noise, degradation = worse.noise, worse.outward(worse.measured)
    skewness = noise.skewness if skewed else 0.0
    blank = blank_comparison(
        values, scale.direction, tolerance=tolerance, confidence=confidence, n=noise.n, clusters=noise.clusters
    )
    # As it was computed for the bounds, which is exact where the two values differ by little.
    change = degradation if scale.direction == "lower" else 0.0 - degradation
    found = replace(blank, change=change, degradation=degradation)
    if noise.stderr is None or noise.df is None:
        return found
    t = t_quantile(confidence, noise.df)
    bounds = student_or_hall(worse.measured, noise.stderr, t, skewness)
    lower, upper = worse.outward(bounds.lower), worse.outward(bounds.upper)
    beyond = worse.measured - worse.limit
    p_pass, p_fail = _p_values(beyond, noise.stderr, noise.df, skewness)
    decision = decide(lower, upper, tolerance)
    # The distance of a bound holds 95 %; a power of 80 % needs as much again as its quantile has.
    more = 1 + t_quantile(POWER, noise.df) / t
    above, below = bounds.upper - worse.measured, worse.measured - bounds.lower
    return replace(
        found,
        decision=decision,
        lower=lower,
        upper=upper,
        df=noise.df,
        p_pass=p_pass,
        p_fail=p_fail,
        detectable=worse.outward(more * max(above, below)),
        needed=needed(noise.n, more * (below if beyond > 0 else above), abs(beyond))
        if decision == "inconclusive"
        else None,
        bounds=decisive(bounds, beyond=beyond > 0),
    )


class _Worse(NamedTuple):
    """The degradation on the scale where it is tested: in nats for a relative change of perplexity, else as shown.

    Attributes:
        measured: The degradation.
        noise: Of which `measured` has the standard error and the degrees of freedom.
        limit: The tolerance on the same scale.
        outward: Turns a value of that scale into one to show.
    """

    measured: float
    noise: ClusteredMean
    limit: float
    outward: Callable[[float], float]


def _worse(
    candidate: Floats, reference: Floats, counts: Ints, values: tuple[float, float], scale: Scale, tolerance: Tolerance
) -> _Worse:
    if scale.exponential and tolerance.relative:
        noise = clustered_mean(scale.factor * (candidate - reference), counts)
        return _Worse(noise.mean, noise, math.log1p(tolerance.size), _expm1)
    sign = scale.factor if scale.direction == "lower" else -scale.factor
    if not scale.exponential and not tolerance.relative:
        noise = clustered_mean(sign * (candidate - reference), counts)
        return _Worse(noise.mean, noise, tolerance.size, _unchanged)
    if scale.exponential:
        noise = clustered_mean(sign * (values[0] * candidate - values[1] * reference), counts)
        return _Worse(values[0] - values[1], noise, tolerance.size, _unchanged)
    level = values[1] if values[1] > 0 else math.nan  # which `blank_comparison` refuses
    ratio = values[0] / level
    noise = clustered_mean(sign / level * (candidate - ratio * reference), counts)
    if int(((candidate != 0) | (reference != 0)).sum()) < 2:  # of which the ratio is, without any noise to be seen
        noise = replace(noise, clusters=1, stderr=None, df=None)
    # A product with a negative sign would show no change as -0.
    return _Worse(1 - ratio if sign < 0 else ratio - 1, noise, tolerance.size, _unchanged)


def decide(lower: float, upper: float, tolerance: Tolerance) -> Decision:
    """Return the verdict of a one-sided lower and upper bound of the degradation."""
    if upper <= tolerance.size:
        return "pass"
    return "fail" if lower > tolerance.size else "inconclusive"


def needed(n: int, visible: float, distance: float) -> int | None:
    """Return the targets at which `visible`, which falls as their inverse square root, reaches the tolerance.

    Args:
        n: Targets there are.
        visible: Smallest change that they tell from none.
        distance: Between the degradation and the tolerance.

    Returns:
        None where no text would do.
    """
    if visible > distance * _MOST_TIMES**0.5:
        return None
    return math.ceil(n * (visible / distance) ** 2)


def decisive(bounds: Bounds, *, beyond: bool) -> Rule:
    """Return the rule of the bound that decides: the lower one where the degradation is beyond the tolerance."""
    return bounds.lower_rule if beyond else bounds.upper_rule


def _p_values(beyond: float, stderr: float, df: float, skewness: float) -> tuple[float, float]:
    """``(p_pass, p_fail)`` of a degradation that lies `beyond` the tolerance; certain where there is no noise."""
    if stderr == 0:
        return (0.0, 1.0) if beyond <= 0 else (1.0, 0.0)
    return tail(beyond / stderr, df, skewness), tail(-beyond / stderr, df, -skewness)


def _require_pairs(candidate: Floats, reference: Floats, counts: Ints) -> None:
    if not candidate.shape == reference.shape == counts.shape or counts.ndim != 1:
        raise MetricInputError(
            f"expected sums of both models over the same clusters, got shapes {list(candidate.shape)} (candidate), "
            f"{list(reference.shape)} (reference) and {list(counts.shape)} (counts)"
        )
    for name, sums in (("candidate", candidate), ("reference", reference)):
        if bad := int((~np.isfinite(sums)).sum()):
            raise MetricInputError(f"{name}: expected finite sums, got {bad} of {len(sums)} clusters NaN or infinite")
        if lost := int(((counts == 0) & (sums != 0)).sum()):
            raise MetricInputError(f"{name}: expected a sum of 0 where a cluster has no targets, got {lost} others")
    if not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any() or not counts.any():
        raise MetricInputError(f"counts: expected whole numbers of targets, at least one above 0, got {counts[:8]} ...")


def _expm1(x: float) -> float:
    return math.expm1(x) if x < 709 else math.inf


def _unchanged(x: float) -> float:
    return x
