"""Run a metric over texts and check what it returned: finite, additive numbers of each row; and find the worst rows."""

from __future__ import annotations

__all__ = ["ScoredRow", "checked_details", "checked_number", "row_scores", "row_statistics", "worst_rows"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.texts.inputs import checked_texts
from pytest_lmgate.metrics.texts.text_metric import TextMetric


@dataclass(frozen=True)
class ScoredRow:
    """One row, by its index from 0, with its own score in the metric's scale; an empty prompt is not known."""

    row: int
    score: float
    prediction: str
    references: tuple[str, ...]
    prompt: str = ""


def row_statistics(
    metric: TextMetric,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]] | None,
    rows: Sequence[Mapping[str, Any]] | None = None,
) -> Floats:
    """Return the metric's additive statistics of each row, shape ``[rows, k]``; the arguments are `text_score`'s.

    Raises:
        MetricInputError: The texts cannot be scored, or the metric returned no such array.
    """
    texts = checked_texts(predictions, references, rows, needs_references=metric.needs_references)
    return _checked(metric, metric.statistics(*texts), len(texts.predictions))


def row_scores(metric: TextMetric, statistics: Floats) -> Floats:
    """Return each row's own score, shape ``[rows]``, from statistics ``[rows, k]``; NaN where a row alone has none."""
    value, field = (metric.row_value, "row_value") if metric.row_value else (metric.value, "value")
    return np.array([checked_number(metric, value(of_row), field) for of_row in statistics], dtype=np.float64)


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

    At most `count` of them; the other arguments are those of `text_score`.

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


def checked_number(metric: TextMetric, returned: Any, field: str = "value") -> float:
    """Return what a metric made of sums, which may be any kind of real number, as a float; it need not be finite.

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
    first, last = statistics[:, 0], statistics[:, -1]
    if len(bad := np.argwhere(~np.isfinite(statistics))):
        row, column = bad[0]
        raise MetricInputError(
            f"{where}: expected finite statistics, got {statistics[row, column]} in row {row}, column {column} "
            f"({len(bad)} in all)"
        )
    if metric.is_mean and len(odd := np.flatnonzero((last < 0) | (last != np.floor(last)))):
        raise MetricInputError(
            f"{where}: expected the last column to count what the mean is over, whole numbers from 0, "
            f"got {last[odd[0]]:g} in row {odd[0]}; give the metric a `value` of its own if it is not a mean"
        )
    if metric.is_mean and not last.any():
        raise MetricInputError(
            f"{where}: expected a count above 0 in some row to take the mean over, got 0 in every row"
        )
    if metric.right_or_wrong and len(odd := np.flatnonzero((last != 1) | ~np.isin(first, (0, 1)))):
        raise MetricInputError(
            f"{where}: expected each row's statistics to be [0, 1] or [1, 1], since it is right_or_wrong; got "
            f"{statistics[odd[0]].tolist()} in row {odd[0]}"
        )
    return statistics
