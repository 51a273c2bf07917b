"""Run a metric over texts and check what it returned: one row of finite, additive numbers for each prediction."""

from __future__ import annotations

__all__ = ["checked_details", "checked_number", "row_scores", "row_statistics"]

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
    value, field = (metric.row_value, "row_value") if metric.row_value else (metric.value, "value")
    return np.array([checked_number(metric, value(of_row), field) for of_row in statistics], dtype=np.float64)


def checked_number(metric: TextMetric, returned: Any, field: str = "value") -> float:
    """Return what a metric made of sums, which may be any kind of real number, as a float; it need not be finite.

    Args:
        metric: The metric.
        returned: What its function returned.
        field: Which of its functions.

    Raises:
        MetricInputError: It is no real number: None, text, a complex number, an array with a dimension.
    """
    if isinstance(returned, float):  # nearly always; this is called for every resample
        return float(returned)
    try:
        if returned is None or isinstance(returned, str | bytes) or np.ndim(returned) or np.iscomplexobj(returned):
            raise TypeError
        return float(returned)
    except (TypeError, ValueError, OverflowError) as error:
        raise MetricInputError(
            f"text metric {metric.name!r}: expected its {field} to be a number, got {type(returned).__name__} "
            f"{returned!r:.60}"
        ) from error


def checked_details(metric: TextMetric, sums: Floats) -> dict[str, Any]:
    """Return a metric's further figures by name; none where it has no such function.

    Raises:
        MetricInputError: Its function returned something else than a mapping from names.
    """
    if metric.details is None:
        return {}
    returned: Any = metric.details(sums)
    if not isinstance(returned, Mapping) or not all(isinstance(key, str) for key in returned):
        raise MetricInputError(
            f"text metric {metric.name!r}: expected its details to be a mapping from names to figures, "
            f"got {type(returned).__name__} {returned!r:.60}"
        )
    return dict(returned)


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
    if metric.right_or_wrong:
        odd = np.flatnonzero((statistics[:, -1] != 1) | ~np.isin(statistics[:, 0], (0, 1)))
        if len(odd):
            raise MetricInputError(
                f"{where}: expected each row's statistics to be [0, 1] or [1, 1], since it is right_or_wrong; got "
                f"{statistics[odd[0]].tolist()} in row {odd[0]}"
            )
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
