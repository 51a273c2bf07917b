"""The rows that a system did worst on, for people to read."""

from __future__ import annotations

__all__ = ["ScoredRow", "worst_rows"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_lmgate.metrics.texts.inputs import checked_texts
from pytest_lmgate.metrics.texts.row_statistics import row_scores, row_statistics
from pytest_lmgate.metrics.texts.text_metric import Floats, TextMetric


@dataclass(frozen=True)
class ScoredRow:
    """One row with its own score.

    Attributes:
        row: Its index among the predictions, from 0.
        score: Of this row alone, in the metric's own scale.
        prediction: What the system wrote.
        references: What it should have written.
    """

    row: int
    score: float
    prediction: str
    references: tuple[str, ...]


def worst_rows(
    metric: TextMetric,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]] | None,
    count: int = 5,
    *,
    rows: Sequence[Mapping[str, Any]] | None = None,
    statistics: Floats | None = None,
) -> list[ScoredRow]:
    """Return the rows with the worst scores, the worst first; equals in the order of the data.

    Args:
        metric: The metric.
        predictions: What the system wrote, one string per row.
        references: Of each row.
        count: How many, at most.
        rows: The dataset's rows, for metrics that look at other columns.
        statistics: What `row_statistics` returned for these very texts, to read them once only.

    Raises:
        MetricInputError: The texts cannot be scored.
    """
    texts = checked_texts(predictions, references, rows, needs_references=metric.needs_references)
    if statistics is None:
        statistics = row_statistics(metric, *texts)
    scores = row_scores(metric, statistics)
    # NaN, a row that alone has no score, sorts behind all others.
    order = np.argsort(scores if metric.direction == "higher" else -scores, kind="stable")
    return [
        ScoredRow(int(row), float(scores[row]), texts.predictions[row], tuple(texts.references[row]))
        for row in order[:count]
    ]
