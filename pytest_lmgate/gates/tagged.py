"""The change of the rows with each tag, by the rule of the whole comparison."""

from __future__ import annotations

__all__ = ["tag_changes", "with_rows"]

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.errors import ComparisonError, MetricInputError
from pytest_lmgate.gates.comparisons.paired import compare
from pytest_lmgate.gates.where import TagChange
from pytest_lmgate.metrics.by_row import ByRow
from pytest_lmgate.metrics.sample import Sample

_JUDGED, _SHOWN, _LENGTH = 50, 20, 100


def tag_changes(
    candidate: Sample,
    reference: Sample,
    tags: Mapping[str, Sequence[str]],
    *,
    tolerance: Tolerance,
    confidence: float,
) -> tuple[tuple[TagChange, ...], int]:
    """Return the change of each tag that only some rows have, the worst first, and how many tags were left out.

    The 50 tags that most rows have are compared, each at a confidence at which the bounds on one side of all of them
    hold together; the 20 worst are returned.

    Args:
        candidate: Sample of the candidate's score; `reference` is that of the reference. Both have their rows.
        reference: Of the same rows.
        tags: The tag of each row, by column.
        tolerance: Of the comparison; says whether changes are relative.
        confidence: Of the comparison.
    """
    assert candidate.by_row is not None
    rows = len(candidate.by_row.counts)
    every = Counter((column, tag) for column, values in tags.items() for tag in values[:rows])
    counted = Counter({each: count for each, count in every.items() if count < rows})
    chosen = [each for each, _ in counted.most_common(_JUDGED)]
    level = 1 - (1 - confidence) / max(1, len(chosen))
    found = []
    for column, tag in chosen:
        kept = np.array([value == tag for value in tags[column][:rows]])
        found.append(
            _changed(
                candidate,
                reference,
                kept,
                TagChange(column[:_LENGTH], tag[:_LENGTH], int(kept.sum())),
                tolerance,
                level,
            )
        )
    found.sort(key=lambda each: (not each.is_worse, np.inf if each.degradation is None else -each.degradation))
    return tuple(found[:_SHOWN]), len(counted) - len(found[:_SHOWN])


def _changed(
    candidate: Sample, reference: Sample, kept: np.ndarray, blank: TagChange, tolerance: Tolerance, confidence: float
) -> TagChange:
    here, there = candidate.of_rows(kept), reference.of_rows(kept)
    if here is None or there is None:
        return replace(blank, problem="no target of these rows was scored")
    try:
        found = compare(here, there, tolerance=tolerance, confidence=confidence)
    except (ComparisonError, MetricInputError) as error:
        return replace(blank, problem=str(error)[: 3 * _LENGTH])
    return replace(
        blank,
        candidate=found.candidate,
        reference=found.reference,
        degradation=found.degradation,
        lower=found.lower,
        upper=found.upper,
    )


def with_rows(reference: Sample, candidate: Sample) -> Sample:
    """Give a baseline's sample its rows, where the baseline keeps them one by one; else return it without."""
    rows = candidate.by_row
    if rows is None:
        return reference
    if reference.outcomes is not None:
        right = reference.outcomes.right.astype(np.float64)
        return replace(reference, by_row=ByRow(right[:, None], rows.counts, rows.clusters))
    if len(np.unique(rows.clusters)) < len(rows.clusters):
        return reference
    for scored in (np.ones(len(rows.counts), dtype=bool), rows.counts > 0):
        if np.array_equal(reference.counts, rows.counts[scored]):
            sums = np.zeros((len(rows.counts), reference.sums.shape[1]))
            sums[scored] = reference.sums
            return replace(reference, by_row=ByRow(sums, rows.counts, rows.clusters))
    return reference
