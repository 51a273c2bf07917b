"""Run a metric over texts and check what it returned: one row of finite, additive numbers for each prediction."""

from __future__ import annotations

__all__ = ["row_scores", "row_statistics"]

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.texts.inputs import checked_texts
from pytest_lmgate.metrics.texts.text_metric import Floats, TextMetric


def row_statistics(
    metric: TextMetric,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]] | None,
    rows: Sequence[Mapping[str, Any]] | None = None,
) -> Floats:
    """Return the metric's additive statistics of each row, shape ``[rows, k]``.

    Args:
        metric: The metric.
        predictions: What the system wrote, one string per row.
        references: Of each row.
        rows: The dataset's rows, for metrics that look at other columns.

    Raises:
        MetricInputError: The texts cannot be scored, or the metric returned no such array.
    """
    texts = checked_texts(predictions, references, rows, needs_references=metric.needs_references)
    return _checked(metric, metric.statistics(*texts), len(texts.predictions))


def row_scores(metric: TextMetric, statistics: Floats) -> Floats:
    """Return each row's own score, shape ``[rows]``; NaN where a row alone has none.

    Args:
        metric: The metric.
        statistics: Of each row, shape ``[rows, k]``.
    """
    value = metric.row_value or metric.value
    return np.array([value(of_row) for of_row in statistics], dtype=np.float64)


def _checked(metric: TextMetric, returned: Any, count: int) -> Floats:
    where = f"text metric {metric.name!r}"
    try:
        statistics = np.array(returned, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MetricInputError(
            f"{where}: expected its statistics to be an array of numbers [rows, k], "
            f"got {type(returned).__name__} ({error})"
        ) from error
    least = 2 if metric.is_mean else 1
    if statistics.ndim != 2 or len(statistics) != count or statistics.shape[1] < least:
        also = ", the last column counting what the mean is over (1 for each row)" if metric.is_mean else ""
        raise MetricInputError(
            f"{where}: expected statistics of shape [{count}, k] with k >= {least}{also}; got {list(statistics.shape)}"
        )
    bad = np.argwhere(~np.isfinite(statistics))
    if len(bad):
        row, column = bad[0]
        raise MetricInputError(
            f"{where}: expected finite statistics, got {statistics[row, column]} in row {row}, column {column} "
            f"({len(bad)} such in all)"
        )
    if metric.is_mean:
        _check_counts(where, statistics[:, -1])
    return statistics


def _check_counts(where: str, counts: Floats) -> None:
    bad = np.flatnonzero((counts < 0) | (counts != np.floor(counts)))
    if len(bad):
        raise MetricInputError(
            f"{where}: expected the last column to count what the mean is over, whole numbers from 0, "
            f"got {counts[bad[0]]:g} in row {bad[0]}; give the metric a `value` of its own if it is no such mean"
        )
    if not counts.any():
        raise MetricInputError(f"{where}: expected something to take the mean over, got counts of 0 in every row")
