"""A dataset's rows with all their columns, for what reads more than one text of each."""

from __future__ import annotations

__all__ = ["DatasetRows", "mappings"]

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_lmgate.config.specs import DatasetSpec
from pytest_lmgate.data.prompts import cell
from pytest_lmgate.errors import DataError


@dataclass(frozen=True)
class DatasetRows:
    """A dataset with all its columns.

    Attributes:
        name: As the user wrote it.
        spec: Which columns mean what.
        rows: One mapping per row.
        examples: Rows to show before each prompt.
    """

    name: str
    spec: DatasetSpec
    rows: tuple[Mapping[str, Any], ...]
    examples: tuple[Mapping[str, Any], ...] = ()

    @property
    def clusters(self) -> list[Any] | None:
        """Label of each row's cluster, where the spec names the column."""
        if self.spec.cluster is None:
            return None
        return [cell(row, self.spec.cluster, self.name, index, what="cluster") for index, row in enumerate(self.rows)]


def mappings(rows: Iterable[Any], name: str) -> tuple[Mapping[str, Any], ...]:
    """Return rows as mappings, a bare text as the column ``text``.

    Raises:
        DataError: One is neither, or there is none.
    """
    found = tuple({"text": row} if isinstance(row, str) else row for row in rows)
    if not found:
        raise DataError(f"dataset {name!r}: expected rows, got none")
    for index, row in enumerate(found):
        if not isinstance(row, Mapping):
            raise DataError(f"dataset {name!r}: row {index}: expected a mapping, got {type(row).__name__}")
    return found
