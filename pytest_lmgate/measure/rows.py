"""`DatasetRows`: a dataset row by row, as prompts with references, or as questions with choices."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pytest_lmgate.data.columns import Prompt, Tags, TextTask, bare, cell, make_task
from pytest_lmgate.data.corpus import hidden_in
from pytest_lmgate.engines.base import Model
from pytest_lmgate.errors import ConfigError, DataError
from pytest_lmgate.measure.measurement import digest_of, identity_of, template_variables
from pytest_lmgate.settings.entries import DatasetSpec
from pytest_lmgate.stats.sample import cluster_numbers
from pytest_lmgate.windows.choices import Question, make_questions
from pytest_lmgate.windows.tokens import NO_CHATS, Chats


@dataclass(frozen=True)
class DatasetRows:
    """A dataset with all its columns, and the rows to show before each prompt as examples."""

    name: str
    spec: DatasetSpec
    rows: tuple[Mapping[str, Any], ...]
    examples: tuple[Mapping[str, Any], ...] = ()
    tags: Tags = field(default_factory=dict)

    @cached_property
    def question_prompts(self) -> tuple[Prompt, ...]:
        """What the questions ask, one or several a row."""
        return tuple(prompt for each in self.questions for prompt in each.prompts)

    def chats(self, model: Model, prompts: tuple[Prompt, ...]) -> Chats:
        """Return the chats among prompts of this dataset as a model's template writes them, once a session."""
        if not self.spec.is_chat:
            return NO_CHATS
        variables = template_variables(model, self.spec)

        def write() -> Chats:
            assert model.tokenizer is not None  # see `Evaluator`
            return Chats.of(prompts, model.tokenizer(), variables, model=model.name)

        if model.in_memory:  # nothing may hold it
            return write()
        key = model.name, identity_of(model), repr(variables), id(prompts)
        if key not in self._chats:
            self._chats[key] = write()
        return self._chats[key]

    @cached_property
    def _chats(self) -> dict[tuple[str, str, str, int], Chats]:
        return {}

    @cached_property
    def hidden(self) -> str:
        """What Windows may have put into the cells, in words."""
        return hidden_in(cell for row in self.rows for cell in row.values())

    @cached_property
    def prompts_digest(self) -> str:
        """SHA-256 of all prompts."""
        return digest_of(self.prompts)

    @cached_property
    def pairs_digest(self) -> str:
        """SHA-256 of all prompts with the `targets`."""
        return digest_of([self.task.prompts, self.targets, *self._variables])

    @property
    def targets(self) -> list[str]:
        """The first reference of each row."""
        return [references[0] for references in self.task.references]

    @cached_property
    def questions_text(self) -> str:
        """All questions with their choices, as JSON."""
        return json.dumps([each.content for each in self.questions], ensure_ascii=False)

    @cached_property
    def clusters(self) -> list[Any] | None:
        """Label of each row's cluster; None without a `cluster` column."""
        if self.spec.cluster is None:
            return None
        return [cell(row, self.spec.cluster, self.name, index, what="cluster") for index, row in enumerate(self.rows)]

    @cached_property
    def groups(self) -> list[Any] | None:
        """Label of each row's group; None without `average_by`."""
        column = self.spec.average_by
        if column is None:
            return None
        return [bare(column, row, self.name, index, what="average_by") for index, row in enumerate(self.rows)]

    @property
    def parts(self) -> list[Any]:
        """The numbers of each row's cluster and group, and variables of the chat template, for digests."""
        clusters, groups = (
            None if labels is None else cluster_numbers(labels, len(self.rows)).tolist()
            for labels in (self.clusters, self.groups)
        )
        return [
            *([] if clusters is None else [clusters]),
            *([] if groups is None else [{"average_by": groups}]),
            *self._variables,
        ]

    @property
    def _variables(self) -> list[Any]:
        """The variables of the chat template, for digests; an empty list without any."""
        found = self.spec.chat_template_kwargs
        return [{"chat_template_kwargs": json.dumps(found, sort_keys=True, default=str)}] if found else []

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """What a model goes on from; no references are needed."""
        return self._task.prompts

    @property
    def task(self) -> TextTask:
        """Prompts and references."""
        require_references(self.name, self.spec)
        return self._task

    @cached_property
    def _task(self) -> TextTask:
        return make_task(self.rows, self.spec, name=self.name, examples=self.examples)

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """Questions with their choices."""
        require_questions(self.name, self.spec)
        return make_questions(self.rows, self.spec, name=self.name, examples=self.examples)


def require_references(name: str, spec: DatasetSpec) -> None:
    """Refuse a dataset that has nothing to compare texts with."""
    if spec.references is None:
        raise ConfigError(
            f"dataset {name!r}: set references: COLUMN (or a list of them) to compare texts with, and prompt: TEMPLATE "
            "with {column} fields, source: COLUMN or messages: COLUMN"
        )


def require_questions(name: str, spec: DatasetSpec) -> None:
    """Refuse a dataset without choices and targets."""
    if spec.question is None and (spec.messages is None or spec.answer is spec.target is None):
        raise ConfigError(
            f"dataset {name!r}: accuracy needs question: (a column or template), choices: (a column that holds a list, "
            "or a list of columns) and answer: (the column of the right one); or question: and target: (the text that "
            "follows)"
        )


def mappings(rows: Iterable[Any], name: str) -> tuple[Mapping[str, Any], ...]:
    """Return rows as mappings, a bare text as the column ``text``; there must be one."""
    found = tuple({"text": row} if isinstance(row, str) else row for row in rows)
    if not found:
        raise DataError(f"dataset {name!r}: expected rows, got none")
    for index, row in enumerate(found):
        if not isinstance(row, Mapping):
            raise DataError(f"dataset {name!r}: row {index}: expected a mapping, got {type(row).__name__}")
    return found
