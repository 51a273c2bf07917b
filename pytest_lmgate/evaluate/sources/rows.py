"""A dataset's rows with all their columns, for what reads more than one text of each."""

from __future__ import annotations

__all__ = ["DatasetRows", "mappings"]

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pytest_lmgate.config.specs import DatasetSpec
from pytest_lmgate.data.corpora.prompts import TextTask, cell, make_task
from pytest_lmgate.data.corpora.tags import Tags
from pytest_lmgate.data.requests.choices import Question, make_questions
from pytest_lmgate.errors import ConfigError, DataError


@dataclass(frozen=True)
class DatasetRows:
    """A dataset with all its columns, and the rows to show before each prompt as examples."""

    name: str
    spec: DatasetSpec
    rows: tuple[Mapping[str, Any], ...]
    examples: tuple[Mapping[str, Any], ...] = ()
    tags: Tags = field(default_factory=dict)

    @cached_property
    def clusters(self) -> list[Any] | None:
        """Label of each row's cluster; None where the spec names no column."""
        if self.spec.cluster is None:
            return None
        return [cell(row, self.spec.cluster, self.name, index, what="cluster") for index, row in enumerate(self.rows)]

    @cached_property
    def task(self) -> TextTask:
        """Prompts and references.

        Raises:
            ConfigError: The spec does not say which columns they are made of.
            DataError: A row lacks a column.
        """
        spec = self.spec
        if spec.references is None:
            raise ConfigError(
                f"dataset {self.name!r}: say references: COLUMN (or a list of them) to compare texts with, and prompt: "
                "TEMPLATE with {column} fields, or source: COLUMN"
            )
        return make_task(
            self.rows,
            name=self.name,
            template=spec.prompt,
            source=spec.source,
            references=[spec.references] if isinstance(spec.references, str) else spec.references,
            examples=self.examples,
            chat=spec.chat,
            system=spec.system,
        )

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """Questions with their choices.

        Raises:
            ConfigError: The spec does not say which columns they are made of.
            DataError: A row lacks a column.
        """
        spec = self.spec
        if spec.question is None or spec.choices is None or spec.answer is None:
            raise ConfigError(
                f"dataset {self.name!r}: accuracy needs question: (a column or template), choices: (a column that "
                "holds a list, or a list of columns) and answer: (the column of the right one)"
            )
        choices = [spec.choices] if isinstance(spec.choices, str) else spec.choices
        return make_questions(
            self.rows,
            name=self.name,
            question=spec.question,
            choices=choices,
            answer=spec.answer,
            examples=self.examples,
            delimiter=spec.between,
            chat=spec.chat,
            system=spec.system,
        )


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
