"""Tags: columns of a dataset that say what kind of row a row is, such as its language. They change no measurement."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pytest_lmgate.data.prompts import cell
from pytest_lmgate.errors import DataError

Tags = Mapping[str, tuple[str, ...]]
"""The tag of each row, by column."""
_Value = str | int | float | bool
_MANY, _RANGES = 10, 4


def columns_of(tags: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns that the `tags` of a dataset's entry name, each once."""
    return tuple(dict.fromkeys([tags] if isinstance(tags, str) else tags or ()))


def read_tags(rows: Sequence[Any], columns: Sequence[str], name: str) -> Tags:
    """Read the tags of rows that are in memory; see `row_tags` and `tags_by_column`."""
    return tags_by_column([row_tags(row, columns, name, index) for index, row in enumerate(rows)], columns)


def row_tags(row: Any, columns: Sequence[str], name: str, index: int) -> tuple[_Value, ...]:
    """Return a row's cells in some columns: text, numbers or truth values, else a `DataError`."""
    return tuple(_tag(row, column, name, index) for column in columns)


def tags_by_column(rows: Sequence[Sequence[_Value]], columns: Sequence[str]) -> Tags:
    """Return the tag of each row; more than 10 different numbers are cut into 4 ranges of about equal size."""
    tags = {}
    for place, column in enumerate(columns):
        values = [row[place] for row in rows]
        numbers = _numbers(values)
        tags[column] = tuple(_ranges(numbers) if len(set(numbers)) > _MANY else map(str, values))
    return tags


def _numbers(values: Sequence[_Value]) -> list[float]:
    """Return the values as numbers, which CSV writes as text; an empty list if one is not a number."""
    try:
        numbers = [math.nan if isinstance(value, bool) else float(value) for value in values]
    except (ValueError, OverflowError):
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def _tag(row: Any, column: str, name: str, index: int) -> _Value:
    if not isinstance(row, Mapping):
        raise DataError(f"dataset {name!r}: row {index}: tags: expected a row with columns, got {type(row).__name__}")
    value = cell(row, column, name, index, what="tags")
    if not isinstance(value, str | int | float):
        raise DataError(
            f"dataset {name!r}: row {index}: tags: column {column!r}: expected text, a number, true or false, got "
            f"{type(value).__name__}"
        )
    return value


def _ranges(numbers: Sequence[float]) -> list[str]:
    ordered = sorted(numbers)
    edges = sorted({ordered[len(ordered) * part // _RANGES] for part in range(_RANGES)})
    words = []
    for low, following in pairwise([*edges, math.inf]):
        within = [number for number in ordered if low <= number < following]
        first, last = within[0], within[-1]
        words.append(f"{first:.6g}" if first == last else f"{first:.6g} to {last:.6g}")
    return [words[bisect_right(edges, number) - 1] for number in numbers]
