"""Rows given as Python objects in place of a dataset's name: what has rows in an order is taken, all else refused.

A table of columns (a pandas DataFrame) is known by its methods, so that no library of tables is imported here.
"""

from __future__ import annotations

__all__ = ["rows_in_memory"]

from collections.abc import Iterable, Mapping, Set
from typing import Any

from pytest_lmgate.errors import ConfigError, DataError


def rows_in_memory(dataset: Any, *, of: str) -> Iterable[Any]:
    """Return the rows of a list, a ``datasets.Dataset``, a DataFrame or anything else that has rows in an order.

    Messages say what the rows are with `of`.

    Raises:
        ConfigError: It has no rows, or none in an order.
        DataError: It is a DataFrame with two columns of one name.
    """
    if hasattr(dataset, "columns") and hasattr(dataset, "to_dict") and not isinstance(dataset, type):
        return _rows_of_frame(dataset)
    hint = _refused(dataset)
    if hint is not None:
        raise ConfigError(
            f"dataset: expected a name of lmgate.yaml, a path, a hub id or a list of {of}, "
            f"got {type(dataset).__name__}{hint}"
        )
    return dataset  # type: ignore[no-any-return]


def _refused(dataset: Any) -> str | None:
    """What to do instead, perhaps nothing, where an object's elements are no rows; None where they may be."""
    if isinstance(dataset, Mapping):
        return "; give one of its splits, or a list of rows"
    if isinstance(dataset, Set):
        return ", whose order changes: put its elements in a list"
    if isinstance(dataset, bytes | bytearray | memoryview):
        return "; decode it, and put the text in a list"
    return None if hasattr(dataset, "__iter__") and not isinstance(dataset, type) else ""


def _rows_of_frame(frame: Any) -> list[dict[Any, Any]]:
    """Rows of a DataFrame; iterating over it gives the names of its columns."""
    kind = type(frame).__name__
    columns = list(frame.columns)
    if len(set(columns)) < len(columns):
        raise DataError(f"dataset 'in-memory {kind}': expected columns of different names, got {columns}")
    try:
        rows = frame.to_dict("records")
    except TypeError as error:
        raise ConfigError(f"dataset: cannot take the rows of a {kind}: {error}; give a list of mappings") from error
    # NaN stands for what is missing.
    return [
        {key: None if isinstance(cell, float) and cell != cell else cell for key, cell in row.items()} for row in rows
    ]
