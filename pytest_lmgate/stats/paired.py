"""Compare two samples by the rule of their metric: the one place that decides which.

Right-or-wrong rows have Tango's score test: Student's t passes 7 to 67% of models that are worse by
just the tolerance, where 5% are promised (20 to 200 rows), and sees no noise at all where no row changed. Means over
targets or rows and their exponentials have the closed form of `means`. All other metrics have the paired bootstrap:
1,000 resamples of rows or clusters, seed 12345, the same rows of both systems. The same measurement twice passes
without any rule.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from pytest_lmgate.arrays import Floats
from pytest_lmgate.errors import ComparisonError, ConfigError, MetricInputError
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.bootstrap import Resamples, Statistic, paired_bootstrap
from pytest_lmgate.stats.comparison import (
    Comparison,
    TestScale,
    blank_comparison,
    decide,
    decision_of,
    no_interval,
    p_values,
    power_of,
)
from pytest_lmgate.stats.means import ClusteredMean, Rule, score_cdf, score_quantile, student_or_hall, t_quantile, tail
from pytest_lmgate.stats.sample import Outcomes, Sample, Scale

_SMALLEST = 1e-9
"""The smallest loss for which a number of needed rows is named."""
_SHOWN = ("protocol", "metric", "generation", "lost text")
_PARTS = {
    "data": "the two sides used different data (rows, prompts, references or clusters)",
    "protocol": "the protocol differs",
    "metric": "the metric differs in its signature",
    "generation": "the dataset's entry has other settings of generation",
    "reference": "the reference of the divergence differs: another model, or loaded with other options",
    "targets": "the tokens differ: the text was tokenized differently, so likelihoods per token cannot be compared; "
    "compare bits per byte (metric 'bpb' with protocol='lm-eval', which scores all of a text and pairs by rows with "
    "any tokenizer, if there are at least two)",
    "lost text": "a tokenizer does not give the text back by decode(encode(text)), so what the two models read differs",
}


def compare(
    candidate: Sample, reference: Sample, *, tolerance: Tolerance, confidence: float = 0.95, same: bool = False
) -> Comparison:
    """Judge whether the candidate is worse than the reference, on the same targets, by more than the tolerance.

    If both are the `same` model, equal sums are not a coincidence.
    """
    if not 0.5 < confidence < 1:
        raise ConfigError.of("confidence", f"expected a one-sided level above 0.5 and below 1, got {confidence!r}")
    if differing := differences(candidate.identity, reference.identity):
        raise ComparisonError("; ".join(differing))
    if scored_differently(candidate, reference):
        candidate, reference = _on_common_counts(candidate, reference)
    if not np.array_equal(candidate.counts, reference.counts):
        raise ComparisonError(
            f"expected the same {candidate.clustered_by} on both sides, got {len(candidate.counts)} and "
            f"{len(reference.counts)} that do not hold the same targets"
        )
    for name, sample in (("candidate", candidate), ("reference", reference)):
        if bad := int((~np.isfinite(sample.sums)).sum()):
            raise MetricInputError(f"{name}: expected finite sums, got {bad} NaN or infinite")
    blank = blank_comparison(
        (candidate.value(), reference.value()),
        candidate.direction,
        tolerance=tolerance,
        confidence=confidence,
        n=int(candidate.counts.sum()),
        clusters=candidate.clusters,
        clustered_by=candidate.clustered_by,
    )
    here, there, span = candidate.outcomes, reference.outcomes, candidate.span
    same_rows = here is None or there is None or np.array_equal(here.right, there.right)
    if bool((candidate.sums == reference.sums).all()) and same_rows:
        if same:
            return replace(blank, decision="pass", lower=0.0, upper=0.0, reason="both are the same measurement")
        if math.isfinite(span) and blank.clusters > 1 and here is None:
            # The unseen noise is bounded as in Tango's test: if none of C rows changed, at most a share of
            # ``z^2 / (C + z^2)`` of such rows changes, each by at most the whole range of the metric.
            unit = blank.reference / span if tolerance.relative else 1 / span
            return _judged_by_changes(blank, Changes(blank.clusters, 0, 0), unit, None, "unchanged")
    if here is not None and there is not None:
        # Where a larger share is worse, what was gained is lost.
        return _compare_outcomes(blank, *((here, there) if candidate.direction == "higher" else (there, here)))
    blank = replace(blank, unseen=candidate.unseen)
    if candidate.scale is not None:
        return _compare_means(blank, candidate, reference, candidate.scale)
    assert candidate.metric is not None
    return _bootstrapped(candidate.metric, candidate, reference, blank)


def scored_differently(candidate: Sample, reference: Sample) -> bool:
    """Return whether two tokenizers score different parts of the same rows."""
    ours, theirs = candidate.counts, reference.counts
    return candidate.of_text and len(ours) == len(theirs) and not np.array_equal(ours, theirs)


def _on_common_counts(candidate: Sample, reference: Sample) -> tuple[Sample, Sample]:
    """Put two samples on the mean of their counts, each as a share of its own total."""
    total = candidate.counts.sum()
    counts = (candidate.counts / total + reference.counts / reference.counts.sum()) * (total / 2)
    return candidate.carried(counts), reference.carried(counts)


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    differing = []
    for part in ours.keys() | theirs.keys():
        here, there = ours.get(part, "nothing"), theirs.get(part, "nothing")
        if here == there:
            continue
        words = _PARTS.get(part, f"{part} differs")
        # Other texts have other tokens, which says nothing of how they were tokenized.
        if part != "targets" or ours.get("data") == theirs.get("data"):
            differing.append(f"{words} ({here} here, {there} there)" if part in _SHOWN or part not in _PARTS else words)
    return sorted(differing)


def known_differences(known: Mapping[str, str], identity: Mapping[str, str]) -> list[str]:
    """Return how the parts of a sample that are known before a model runs differ from those of another sample."""
    both = known.keys() & identity.keys()
    return differences({part: known[part] for part in both}, {part: identity[part] for part in both})


def _bootstrapped(metric: Statistic, candidate: Sample, reference: Sample, comparison: Comparison) -> Comparison:
    if comparison.clusters < 2:
        return comparison
    tolerance = comparison.tolerance
    resampled = paired_bootstrap(metric, reference.sums, candidate.sums)
    # A relative change is a ratio, and so is its noise: each resample has a reference of its own.
    changes = resampled.differences
    sign = 1 if metric.direction == "lower" else -1
    drawn = np.sort(0.0 + sign * (_ratios(changes, resampled.baselines) if tolerance.relative else changes))
    noise = Resamples(drawn, comparison.degradation, len(candidate.counts))
    comparison = replace(comparison, p_value=resampled.p_value if noise.stderr else None)
    tested = TestScale(comparison.degradation, tolerance.size, -tolerance.size)
    bounds = noise.bounds(comparison.confidence)
    return decide(comparison, tested, bounds, noise.df, noise.p_values, finite=noise.is_finite)


def _ratios(differences: Floats, baselines: Floats) -> Floats:
    """Divide, with 0 for 0 / 0 and infinity for x / 0: a resample may have no right row."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: Floats = np.where(differences == 0, 0.0, differences / baselines)
    return ratios


def _compare_means(comparison: Comparison, candidate: Sample, reference: Sample, scale: Scale) -> Comparison:
    """Judge two means over targets or rows, or the exponentials of two.

    A relative change of perplexity is ``exp(d) - 1``, ``d = sum_c (s_c - r_c) / N``, with the bounds of d carried over:
    on each side the wider of Student's ``d +- t se`` and Hall's. The absolute change of a mean is ``d`` itself. The
    other two, a relative change of a mean and an absolute change of a perplexity, depend on the reference's own level
    too: their noise is that of the linearized difference (delta method). With too few clusters there is no interval.
    """
    values = comparison.candidate, comparison.reference
    if not all(math.isfinite(value) for value in values):
        raise MetricInputError(
            f"a change needs finite values, got {values[0]:g} (candidate) and {values[1]:g} (reference): "
            "compare bits per byte (metric 'bpb'), which do not overflow"
        )

    sums = candidate.sums[:, 0], reference.sums[:, 0]
    tested, noise = _tested(*sums, values, scale, comparison.tolerance, candidate.noise_of)
    # As it was computed for the bounds, which is exact where the two values differ by little.
    degradation = tested.outward(tested.measured)
    comparison = replace(
        comparison,
        change=degradation if scale.direction == "lower" else 0.0 - degradation,
        degradation=degradation,
        clusters=noise.clusters,
        reason=no_interval(noise.clusters, comparison.clustered_by),
    )
    if noise.stderr is None or noise.df is None:
        return comparison
    bounds = student_or_hall(tested.measured, noise.stderr, t_quantile(comparison.confidence, noise.df), noise.skewness)

    def p_values_at(limit: float, df: float = noise.df, stderr: float = noise.stderr) -> tuple[float, float]:
        beyond = tested.measured - limit
        if stderr == 0:
            return (0.0, 1.0) if beyond <= 0 else (1.0, 0.0)
        return tail(beyond / stderr, df, noise.skewness), tail(-beyond / stderr, df, -noise.skewness)

    return decide(comparison, tested, bounds, noise.df, p_values_at)


def _tested(
    candidate: Floats,
    reference: Floats,
    values: tuple[float, float],
    scale: Scale,
    tolerance: Tolerance,
    noise_of: Callable[[Floats], ClusteredMean],
) -> tuple[TestScale, ClusteredMean]:
    if scale.exponential and tolerance.relative:
        noise = noise_of(scale.factor * (candidate - reference))
        gain = math.log1p(-tolerance.size) if tolerance.size < 1 else -math.inf
        return TestScale(noise.mean, math.log1p(tolerance.size), gain, _expm1), noise
    size = tolerance.size
    sign = scale.factor if scale.direction == "lower" else -scale.factor
    if not scale.exponential and not tolerance.relative:
        noise = noise_of(sign * (candidate - reference))
        return TestScale(noise.mean, size, -size), noise
    if scale.exponential:
        noise = noise_of(sign * (values[0] * candidate - values[1] * reference))
        return TestScale(values[0] - values[1], size, -size), noise
    level = values[1] if values[1] > 0 else math.nan  # which `blank_comparison` refuses
    ratio = values[0] / level
    noise = noise_of(sign / level * (candidate - ratio * reference))
    if int(((candidate != 0) | (reference != 0)).sum()) < 2:  # of which the ratio is, without any noise to be seen
        noise = dataclasses.replace(noise, clusters=1, stderr=None, df=None)
    # A product with a negative sign would show no change as -0.
    return TestScale(1 - ratio if sign < 0 else ratio - 1, size, -size), noise


def _expm1(x: float) -> float:
    return math.expm1(x) if x < 709 else math.inf


def _compare_outcomes(comparison: Comparison, candidate: Outcomes, reference: Outcomes) -> Comparison:
    """Judge whether the candidate's share of right rows is lower by more than the tolerance.

    A relative tolerance is turned into an absolute one by the reference's share as it was measured; simulated, that
    keeps its level.
    """
    if comparison.clusters < 2:
        return comparison
    unit = comparison.reference if comparison.tolerance.relative else 1.0
    return _judged_by_changes(comparison, Changes.of(candidate, reference), unit, candidate.df, "tango")


def _judged_by_changes(
    comparison: Comparison, changes: Changes, unit: float, df: float | None, rule: Rule
) -> Comparison:
    """Judge changed rows; `unit` is the share of rows of a degradation of 1. Without `df`, z is normal."""
    z, tolerance = score_quantile(comparison.confidence, df), comparison.tolerance
    size = tolerance.size * unit
    lower, upper = (bound / unit for bound in tango_bounds(changes, z))
    decision = decision_of(lower, upper, tolerance)
    more = 1 + score_quantile(power_of(tolerance), df) / z

    def score_at(limit: float) -> float:
        return tango_z(changes, limit) if abs(limit) < 1 else math.copysign(math.inf, -limit)

    def p_values_at(limit: float) -> tuple[float, float]:
        return score_cdf(score_at(limit), df), score_cdf(-score_at(limit), df)

    limits = [size, -size] if tolerance.two_sided else [size]
    score = min(map(score_at, limits), key=abs)  # of the nearer limit, which decides
    p_pass, p_fail = p_values(p_values_at, size, -size if tolerance.two_sided else None)
    return replace(
        comparison,
        decision=decision,
        lower=lower,
        upper=upper,
        df=df,
        p_pass=p_pass,
        p_fail=p_fail,
        detectable=more * max(upper - comparison.degradation, comparison.degradation - lower),
        needed=_rows_needed(changes, size, score, z, more, comparison.n) if decision == "inconclusive" else None,
        bounds=rule,
    )


def _rows_needed(changes: Changes, size: float, score: float, z: float, more: float, rows: int) -> int | None:
    """Return the rows that would decide: the score grows as their square root."""
    if changes.lost + changes.gained == 0:
        # Not for a power of 80%: without a change in any of them, so many rows do show it.
        return math.ceil(rows_without_change(size, z) * rows / changes.n) if size > _SMALLEST else None
    return math.ceil(rows * (more * z / score) ** 2) if abs(score) > 1e-4 else None


# Tango's score test. Of n rows, b were right and are wrong now, c the other way round. Only rows that changed count,
# and there may be none: Student's t then sees no noise and passes ten rows as a thousand. The score test asks how
# likely such rows are if the loss were just the tolerance (Tango 1998, Statistics in Medicine 17, 891-908, equations 9
# and 11).


@dataclass(frozen=True)
class Changes:
    """Rows that changed; with clusters, all three are divided by the design effect of the changes."""

    n: float  # rows
    lost: float  # b, right under the reference and wrong under the candidate
    gained: float  # c, wrong under the reference and right under the candidate

    @classmethod
    def of(cls, candidate: Outcomes, reference: Outcomes) -> Changes:
        change = reference.right.astype(np.float64) - candidate.right
        n = candidate.n
        lost, gained = (n * candidate.share((sign * change > 0).astype(np.float64)) for sign in (1, -1))
        variance = (lost + gained - (lost - gained) ** 2 / n) / n**2
        effect = candidate.design_effect(change, variance)
        return cls(n / effect, lost / effect, gained / effect)

    @property
    def loss(self) -> float:
        return (self.lost - self.gained) / self.n


def tango_z(changes: Changes, loss: float) -> float:
    """Return ``Z = (b - c - n T) / sqrt(n (2 q + T (1 - T)))``, the loss above T in standard errors under T."""
    n, b, c = changes.n, changes.lost, changes.gained
    first, second, third = 2 * n, -b - c + (2 * n - b + c) * loss, -c * loss * (1 - loss)
    # q and q + T are probabilities; of tiny numbers rounding may leave less than nothing.
    q = max(0.0, -loss, (math.sqrt(max(0.0, second**2 - 4 * first * third)) - second) / (2 * first))
    distance, variance = b - c - n * loss, n * (2 * q + loss * (1 - loss))
    if variance <= 0:  # at T = 0 without a changed row, or at an end of the range
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)


def tango_bounds(changes: Changes, z: float) -> tuple[float, float]:
    """Return the losses at which Z is `z` and ``-z``: the one-sided lower and upper bound."""
    return _at(changes, z, -1.0, changes.loss), _at(changes, -z, changes.loss, 1.0)


def rows_without_change(tolerance: float, z: float) -> int:
    """Return the number of unchanged rows that show a loss of at most the tolerance: ``z^2 (1 - T) / T``."""
    return math.ceil(z**2 * (1 - tolerance) / tolerance)


def _at(changes: Changes, z: float, low: float, high: float) -> float:
    """Solve ``Z(T) = z`` by bisection; Z falls as T rises."""
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if tango_z(changes, middle) > z else (low, middle)
    return middle


def mcnemar(lost: int, gained: int) -> float:
    """Return the exact two-sided p-value of "a row is lost as often as gained": ``2 P(X <= min)``, X ~ B(b + c, 1/2).

    McNemar 1947, Psychometrika 12, 153-157; Liddell 1976 for the exact form.
    """
    n, term, total = lost + gained, 1, 0
    for k in range(min(lost, gained) + 1):
        total += term
        term = term * (n - k) // (k + 1)
    share: float = 2 * total / 2**n
    return min(1.0, share)
