"""Tags: columns of a dataset that say what kind of row a row is, such as its language. They change no measurement."""

from __future__ import annotations

__all__ = ["Tags", "read_tags"]

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pytest_lmgate.data.prompts import cell
from pytest_lmgate.errors import DataError

Tags = Mapping[str, tuple[str, ...]]
"""The tag of each row, by column."""
_MANY, _RANGES = 10, 4


def read_tags(rows: Sequence[Any], columns: Sequence[str], name: str) -> Tags:
    """Read the tags of each row; a column of more than 10 different numbers is cut into 4 ranges of about equal rows.

    Args:
        rows: The dataset's rows.
        columns: The columns.
        name: The dataset's name, for messages.

    Raises:
        DataError: A row lacks a column, or holds something else in it than text, a number, true or false.
    """
    found = {}
    for column in columns:
        values = [_tag(row, column, name, index) for index, row in enumerate(rows)]
        numbers = _numbers(values)
        found[column] = tuple(_ranges(numbers) if len(set(numbers)) > _MANY else map(str, values))
    return found


def _numbers(values: Sequence[str | int | float | bool]) -> list[float]:
    """Return all values as numbers, which CSV writes as text; none where one is no number."""
    try:
        numbers = [math.nan if isinstance(value, bool) else float(value) for value in values]
    except (ValueError, OverflowError):
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def _tag(row: Any, column: str, name: str, index: int) -> str | int | float | bool:
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
    """Return the range of each number, as in ``12 to 40``."""
    ordered = sorted(numbers)
    edges = sorted({ordered[len(ordered) * part // _RANGES] for part in range(_RANGES)})
    words = []
    for low, following in pairwise([*edges, math.inf]):
        held = [number for number in ordered if low <= number < following]
        words.append(f"{held[0]:.6g}" if held[0] == held[-1] else f"{held[0]:.6g} to {held[-1]:.6g}")
    return [words[bisect_right(edges, number) - 1] for number in numbers]
