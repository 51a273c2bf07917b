"""Compare two samples by the rule of their metric: the one place that decides which.

Right-or-wrong rows have Tango's test (`rows`), means and their exponentials the closed form (`comparison`), all other
metrics the paired bootstrap: 1,000 resamples of rows or clusters, seed 12345, the same rows of both systems, bounds as
`metrics.texts.bootstrap` makes them. The same measurement twice passes without any rule.
"""

from __future__ import annotations

__all__ = ["compare", "differences"]

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.errors import ComparisonError, MetricInputError
from pytest_lmgate.gates.comparisons.comparison import Comparison, Tested, blank_comparison, judged
from pytest_lmgate.gates.comparisons.means import compare_means
from pytest_lmgate.gates.comparisons.rows import compare_outcomes, compare_unchanged
from pytest_lmgate.metrics.sample import Sample
from pytest_lmgate.metrics.texts.bootstrap import Resamples, paired_bootstrap
from pytest_lmgate.metrics.texts.text_metric import TextMetric

_PARTS = {
    "data": "the data differs: other rows, prompts, references or clusters",
    "protocol": "the protocol differs",
    "metric": "the metric differs, by its signature",
    "reference": "the reference of the divergence differs: another model, or loaded with other options",
    "targets": "the tokens differ: the text was tokenized differently, so likelihoods per token cannot be compared; "
    "compare bits per byte (metric 'bpb' with protocol='document', which pairs by rows whatever the tokens are, if "
    "there are at least two)",
}


def compare(
    candidate: Sample, reference: Sample, *, tolerance: Tolerance, confidence: float = 0.95, same: bool = False
) -> Comparison:
    """Judge whether the candidate is worse than the reference by more than the tolerance.

    Args:
        candidate: Sample of the candidate's score.
        reference: Sample of the reference's score, on the same targets or rows.
        tolerance: Largest degradation let pass.
        confidence: One-sided level of the bounds.
        same: Whether both are measurements of one model, so that equal sums are no chance.

    Raises:
        ComparisonError: The two are not of the same data, targets and protocol; the message says in what they differ.
        MetricInputError: A value or a sum is not finite, or a change relative to a value that is not above 0 was asked
            for.
    """
    if found := differences(candidate.identity, reference.identity):
        raise ComparisonError("; ".join(found))
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
    if bool((candidate.sums == reference.sums).all()) and _same_outcomes(candidate, reference):
        if same:
            return replace(blank, decision="pass", lower=0.0, upper=0.0, reason="the same measurement twice")
        if math.isfinite(candidate.span) and blank.clusters > 1 and candidate.outcomes is None:
            return compare_unchanged(blank, candidate.span)
    if candidate.outcomes is not None and reference.outcomes is not None:
        return compare_outcomes(candidate.outcomes, reference.outcomes, tolerance=tolerance, confidence=confidence)
    if candidate.scale is not None:
        return compare_means(
            candidate.sums[:, 0],
            reference.sums[:, 0],
            candidate.counts,
            scale=candidate.scale,
            tolerance=tolerance,
            confidence=confidence,
            rows=candidate.rows,
        )
    assert candidate.metric is not None
    return _bootstrapped(candidate.metric, candidate, reference, blank)


def _same_outcomes(candidate: Sample, reference: Sample) -> bool:
    here, there = candidate.outcomes, reference.outcomes
    return here is None or there is None or np.array_equal(here.right, there.right)


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return in words which parts of two samples' identities differ."""
    found = []
    for part in ours.keys() | theirs.keys():
        here, there = ours.get(part, "nothing"), theirs.get(part, "nothing")
        if here == there:
            continue
        words = _PARTS.get(part, f"{part} differs")
        # Other texts have other tokens, which says nothing of how they were tokenized.
        if part != "targets" or ours.get("data") == theirs.get("data"):
            found.append(f"{words} ({here} here, {there} there)" if part in ("protocol", "metric") else words)
    return sorted(found)


def _bootstrapped(metric: TextMetric, candidate: Sample, reference: Sample, found: Comparison) -> Comparison:
    if found.clusters < 2:
        return found
    tolerance = found.tolerance
    resampled = paired_bootstrap(metric, reference.sums, candidate.sums)
    # A relative change is a ratio, and so is its noise: each resample has a reference of its own.
    changes = resampled.differences
    sign = 1 if metric.direction == "lower" else -1
    drawn = np.sort(0.0 + sign * (_ratios(changes, resampled.baselines) if tolerance.relative else changes))
    noise = Resamples(drawn, found.degradation, len(candidate.counts))
    found = replace(found, p_value=resampled.p_value if noise.stderr else None)
    tested = Tested(found.degradation, tolerance.size)
    bounds, p_values = noise.bounds(found.confidence), noise.p_values(tolerance.size)
    return judged(found, tested, bounds, noise.df, p_values, finite=noise.is_finite)


def _ratios(differences: Floats, baselines: Floats) -> Floats:
    """Divide, with 0 for 0 / 0 and infinity for any other x / 0: a resample may hold no right row."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: Floats = np.where(differences == 0, 0.0, differences / baselines)
    return ratios
