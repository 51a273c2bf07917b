"""Check what a metric is given: its options by kind, and predictions, references, rows and clusters row by row.

A marker's wrong option is told before any model runs. References are listed per row, ``references[row] -> that row's
references``; rows may differ in how many they have, and None in place of a reference is passed over. (sacrebleu lists
them per stream instead; it is told apart and said so.)
"""

from __future__ import annotations

__all__ = [
    "Texts",
    "checked_choice",
    "checked_flag",
    "checked_number",
    "checked_texts",
    "checked_whole",
    "cluster_numbers",
]

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.errors import ConfigError, MetricInputError, nearest


class Texts(NamedTuple):
    """Predictions, the references of each and the dataset's rows they came from: three lists of equal length."""

    predictions: list[str]
    references: list[list[str]]
    rows: list[Mapping[str, Any]]


def checked_texts(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]] | None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    *,
    needs_references: bool = True,
) -> Texts:
    """Return the texts as plain lists, with an empty row for each prediction where rows are None.

    Raises:
        MetricInputError: There is no row; counts differ; a row has no reference; something is not a string.
    """
    outputs = _as_list(predictions, "predictions", "strings, one per row")
    if not outputs:
        raise MetricInputError("expected at least one prediction, got none: is the dataset empty?")
    for row, text in enumerate(outputs):
        if not isinstance(text, str):
            raise MetricInputError(
                f"row {row}: expected the prediction to be a string, got {_shown(text)}; "
                "an output that is missing must be the empty string ''"
            )
    count = len(outputs)
    return Texts(
        outputs, _checked_references(references, count, needs_references=needs_references), _checked_rows(rows, count)
    )


def _checked_references(
    references: Sequence[Sequence[str]] | None, count: int, *, needs_references: bool
) -> list[list[str]]:
    if references is None:
        if needs_references:
            raise MetricInputError(
                "expected references, got None: pass a list of references for each prediction, "
                "or name the dataset's reference columns"
            )
        return [[] for _ in range(count)]
    listed = _as_list(references, "references", "lists, one list of strings per row")
    by_stream = all(isinstance(each, list | tuple) and len(each) == count for each in listed)
    if listed and len(listed) != count and by_stream:
        raise MetricInputError(
            f"expected the references of each of {count} rows, got {len(listed)} lists of {count}, one per stream "
            "as sacrebleu takes them: list them per row, list(zip(*streams))"
        )
    if len(listed) != count:
        raise MetricInputError(
            f"expected as many rows of references as predictions, got {len(listed)} rows of references "
            f"and {count} predictions"
        )
    return [_of_one_row(of_row, row, needs_references=needs_references) for row, of_row in enumerate(listed)]


def _of_one_row(references: Any, row: int, *, needs_references: bool) -> list[str]:
    if isinstance(references, str):
        raise MetricInputError(
            f"row {row}: expected a list of references, got {_shown(references)}; "
            "a single reference is written in brackets: [text]"
        )
    listed = _as_list(() if references is None else references, f"row {row}: references", "strings")
    kept = [text for text in listed if text is not None]
    if needs_references and not kept:
        raise MetricInputError(f"row {row}: expected at least one reference, got none: give one, or leave the row out")
    for position, text in enumerate(kept):
        if not isinstance(text, str):
            raise MetricInputError(f"row {row}: expected reference {position} to be a string, got {_shown(text)}")
    return kept


def _checked_rows(rows: Sequence[Mapping[str, Any]] | None, count: int) -> list[Mapping[str, Any]]:
    if rows is None:
        return [{} for _ in range(count)]
    listed = _as_list(rows, "rows", "mappings from column to value")
    if len(listed) != count:
        raise MetricInputError(f"expected as many rows as predictions, got {len(listed)} rows and {count} predictions")
    for row, columns in enumerate(listed):
        if not isinstance(columns, Mapping):
            raise MetricInputError(f"row {row}: expected a mapping from column to value, got {_shown(columns)}")
    return listed


def cluster_numbers(clusters: Sequence[Hashable] | None, count: int) -> NDArray[np.int64]:
    """Return the cluster of each of `count` rows, shape ``[rows]``, from 0 in order of appearance of the labels.

    Each row is its own cluster where the labels are None.

    Raises:
        MetricInputError: There are more or fewer labels than rows, or one is missing or not hashable.
    """
    if clusters is None:
        return np.arange(count, dtype=np.int64)
    labels = _as_list(clusters, "clusters", "labels, one per row")
    if len(labels) != count:
        raise MetricInputError(f"expected a cluster label for each of {count} rows, got {len(labels)}")
    numbers: dict[Hashable, int] = {}
    for row, label in enumerate(labels):
        if label is None or not isinstance(label, Hashable):
            raise MetricInputError(
                f"row {row}: expected a cluster label such as a string or an integer, got {_shown(label)}"
            )
        numbers.setdefault(label, len(numbers))
    return np.array([numbers[label] for label in labels], dtype=np.int64)


def _as_list(given: Any, what: str, of: str) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise MetricInputError(f"expected {what} to be a list of {of}, got {_shown(given)}")
    return list(given)


def _shown(given: Any) -> str:
    """A value's kind and, cut to a line's part, the value."""
    text = repr(given)
    return f"{type(given).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def checked_flag(metric: str, option: str, given: Any) -> bool:
    """Return a yes-or-no option; a string such as 'no' is not one."""
    if not isinstance(given, bool):
        raise ConfigError(f"{metric}: expected {option} to be true or false, got {given!r}")
    return given


def checked_whole(metric: str, option: str, given: Any, *, least: int) -> int:
    """Return a whole number that is not below `least`."""
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise ConfigError(f"{metric}: expected {option} to be a whole number from {least}, got {given!r}")
    return given


def checked_number(metric: str, option: str, given: Any, *, zero: bool = False) -> float:
    """Return a finite number above zero, or zero too, of the kind that came."""
    if (
        isinstance(given, bool)
        or not isinstance(given, int | float)
        or not math.isfinite(given)
        or given < 0
        or (given == 0 and not zero)
    ):
        raise ConfigError(f"{metric}: expected {option} to be a number above 0{' or 0' * zero}, got {given!r}")
    return given


def checked_choice(metric: str, option: str, given: Any, valid: Iterable[str]) -> str:
    """Return one of the `valid` names."""
    names = sorted(valid)
    if given not in names:
        raise ConfigError(
            f"{metric}: expected {option} to be one of {', '.join(names)}; got {given!r}{nearest(str(given), names)}"
        )
    return str(given)
