"""Pure decisions: a score against a limit, by value or by bounds, or against another score."""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from pytest_lmgate.errors import ComparisonError, ConfigError, MetricInputError
from pytest_lmgate.judge.attribution import Attribution, ChangeHistogram, change_histogram, row_values, with_rows
from pytest_lmgate.judge.result import Bounded, Outcome, Verdict, WorstRow, measured_facts
from pytest_lmgate.metrics.score import Score, ScoredRow
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.settings.metrics import Metric
from pytest_lmgate.stats.comparison import Comparison, needed
from pytest_lmgate.stats.means import score_quantile
from pytest_lmgate.stats.paired import compare, mcnemar
from pytest_lmgate.stats.sample import Sample

Samples = tuple[Sample, Sample]
"""Of the candidate and of the reference."""


def judge_limit(score: Score, limit: float) -> Outcome:
    """Compare a score with a limit, unrounded; the limit itself passes.

    Finiteness is tested first, because ``value <= nan`` is false and ``not (value > nan)`` is true.
    """
    if not math.isfinite(score) or not math.isfinite(limit):
        return "error"
    passed = score <= limit if score.direction == "lower" else score >= limit
    return "pass" if passed else "fail"


def require_a_limit(limit: float, metric: str, score: Score) -> None:
    """Refuse a limit on a share of right rows that every share passes, or none."""
    fits = 0 < limit <= 1 if score.direction == "higher" else 0 <= limit < 1
    if score.sample is not None and score.sample.outcomes is not None and not fits:
        raise ConfigError.of("limit", f"{metric} is a share of rows, from 0 to 1, of which {limit:g} limits none")


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


def measured_verdict(blank: Verdict, score: Score) -> Verdict:
    """Return the verdict of a gate with what was measured, before it is judged."""
    identity = {"protocol": score.signature.compared} if score.sample is None else score.sample.identity
    facts = measured_facts(score) | {"value": float(score) if score.is_finite else None}
    facts |= {"metric": blank.metric, "model": blank.model, "dataset": blank.dataset}  # as the user wrote them
    return replace(
        blank,
        iid=score.iid,
        direction=score.direction,
        device=score.device,
        hardware=score.hardware,
        identity=dict(identity),
        **facts,
    )


def compare_samples(
    samples: Samples,
    against: str,
    *,
    tolerance: Tolerance,
    confidence: float,
    metric: str,
    row: Metric | None = None,
    same: bool = False,
) -> Comparison:
    """Compare a candidate's sample with the reference's, called `against`.

    The `row` is that of the metric; None if only its user or its results tell its direction and range.
    """
    if row is None:
        span = samples[0].span if math.isfinite(samples[0].span) else None
        tolerance.require_that_it_can_fail(metric, samples[0].direction, span)
    try:
        found = compare(*samples, tolerance=tolerance, confidence=confidence, same=same)
    except ComparisonError as error:
        raise ComparisonError(f"cannot be compared with the {against}: {error}") from None
    if is_share(samples[0], row):
        require_a_share(tolerance, found.reference, against, samples[0].direction)
    return replace(found, against=against)


def is_share(sample: Sample, row: Metric | None) -> bool:
    """Whether a metric has no value below 0; KL divergence and TER may be compared with 0."""
    return sample.direction == "higher" and sample.lowest == 0 if row is None else row.lowest > 0


def row_changes(samples: Samples, found: Comparison) -> tuple[str, ...]:
    """Say how many rows changed, and of right-or-wrong rows that are independent McNemar's exact p-value."""
    candidate, reference = samples[0], with_rows(samples[1], samples[0])
    if candidate.by_row is None or reference.by_row is None:
        return ()
    now, then = candidate.by_row.sums[:, 0], reference.by_row.sums[:, 0]
    lower, higher = int((now < then).sum()), int((now > then).sum())
    if candidate.outcomes is None or reference.outcomes is None:
        return (f"{lower:,} row{'s' * (lower != 1)} with a lower score, {higher:,} with a higher one",)
    lost, gained = (lower, higher) if candidate.direction == "higher" else (higher, lower)
    text = f"{lost:,} {'row was' if lost == 1 else 'rows were'} right and now wrong, {gained:,} the other way round"
    is_independent = found.clusters == len(now)
    return (f"{text} (McNemar's exact two-sided p = {mcnemar(lost, gained):.4g})" if is_independent else text,)


def require_a_share(tolerance: Tolerance, reference: float, against: str, direction: str) -> None:
    """Refuse a tolerance that no model could exceed."""
    if reference == 0 and direction == "higher":
        raise ComparisonError(
            f"the {against} has the value 0: no candidate can be worse than that, so the gate could never fail; "
            "look at the texts, or use a better model or easier rows"
        )
    if tolerance.relative or not 0 < reference <= tolerance.size:
        return
    raise ComparisonError(
        f"{tolerance.name}: expected less than 100% of the {against}, {reference:.6g}, got {tolerance.written}: a "
        'number is in the metric\'s own unit; write a percentage as "5%"'
    )


def compared_verdict(
    blank: Verdict,
    score: Score,
    samples: Samples,
    found: Comparison,
    *,
    strict: bool,
    where: Attribution | None = None,
) -> Verdict:
    """Return the verdict of a comparison; `where` says in which rows the candidate got worse."""
    fails = found.fails_build(strict=strict)
    if found.needed is not None:  # what is compared may be counted otherwise than what is scored: tokens, bytes
        found = replace(found, needed=math.ceil(found.needed * score.n / found.n))
    worse = found.tolerance.size * (abs(found.reference) if found.tolerance.relative else 1)
    return replace(
        measured_verdict(blank, score),
        verdict=found.decision,
        blocking=fails,
        limit=found.reference + worse if score.direction == "lower" else found.reference - worse,
        comparison=found,
        worst=(_got_worse(score, samples) or worst_rows(score)) if fails and not found.is_failed_gain else (),
        where=where,
        spread=histogram_of(score, *samples),
    )


def histogram_of(score: Score, candidate: Sample, reference: Sample | None = None) -> ChangeHistogram | None:
    """Return how the change, or a distance from a reference, is distributed over rows; None if that is unknown."""
    known = None if reference is None else with_rows(reference, candidate)
    try:
        return change_histogram(candidate, known, metric=score.metric, unit=score.unit)
    except MetricInputError:  # a metric of the user's own that has no number for a row alone
        return None


def worst_rows(score: Score) -> tuple[WorstRow, ...]:
    """Return the worst rows of texts, which the score names."""
    return tuple(_shown(each) for each in score.details.get("worst", ()))


def _got_worse(score: Score, samples: Samples) -> tuple[WorstRow, ...]:
    """Return the five rows of texts that got worse most; none if the rows of the reference are not known."""
    candidate, reference = samples[0], with_rows(samples[1], samples[0])
    if score.show_row is None or candidate.by_row is None or reference.by_row is None:
        return ()
    now, then = (row_values(side, side.by_row.sums, side.by_row.counts) for side in (candidate, reference))  # type: ignore[union-attr]
    drop = np.nan_to_num(then - now if score.direction == "higher" else now - then)
    order = np.argsort(-drop, kind="stable")[:5]
    return tuple(_shown(score.show_row(int(row)), float(then[row])) for row in order if drop[row] > 0)


def _shown(row: ScoredRow, before: float | None = None) -> WorstRow:
    output, answer = (row.prediction, None) if row.output is None else (row.output, row.prediction)
    return WorstRow(row.row, row.score, row.prompt, " | ".join(row.references), output, answer, before)
