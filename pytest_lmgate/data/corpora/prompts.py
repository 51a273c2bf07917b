"""From rows to prompts and references: templates with ``{column}`` fields, chat messages, few-shot examples. Pure."""

from __future__ import annotations

__all__ = ["Chat", "Prompt", "TextTask", "bare", "cell", "fill", "make_task", "shown_after"]

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_lmgate.errors import DataError, nearest

Row = Mapping[str, Any]
Chat = tuple[tuple[str, str], ...]
Prompt = str | Chat


@dataclass(frozen=True)
class TextTask:
    """What to generate from, and what to compare with.

    Attributes:
        name: The dataset's name, for messages.
        prompts: One per row: text, or for a chat ``(role, content)`` pairs.
        references: One or more texts per row.
        rows: The rows themselves, for metrics that look at other columns.
    """

    name: str
    prompts: tuple[Prompt, ...]
    references: tuple[tuple[str, ...], ...]
    rows: tuple[Row, ...]


def make_task(
    rows: Sequence[Row],
    *,
    name: str,
    template: str | None = None,
    source: str | None = None,
    references: Sequence[str],
    examples: Sequence[Row] = (),
    chat: bool = False,
    system: str | None = None,
) -> TextTask:
    """Make each row's prompt by a template, or take it from a column.

    Args:
        rows: The dataset.
        name: Its name, for messages.
        template: Text with ``{column}`` fields; ``{{`` and ``}}`` are braces.
        source: A column in place of a template; it may have any name.
        references: Columns that hold references; a column may hold a text or a list of texts.
        examples: Rows shown before each prompt, each filled in likewise with the first of its references right behind
            it, a blank line between two: few-shot.
        chat: Make messages for the model's chat template rather than text.
        system: Text of the system message of a chat; otherwise text before the examples.

    Raises:
        DataError: A row lacks a column, or holds something else than text in it.
    """
    shown = f"{name} (examples)"

    def ask(row: Row, where: str, index: int) -> str:
        if template is not None:
            return fill(template, row, where, index)
        return bare(str(source), row, where, index, what="source")

    shots = [
        (ask(row, shown, index), _references(row, references, shown, index)[0]) for index, row in enumerate(examples)
    ]
    prompts = [shown_after(shots, ask(row, name, index), chat=chat, system=system) for index, row in enumerate(rows)]
    return TextTask(
        name,
        tuple(prompts),
        tuple(_references(row, references, name, index) for index, row in enumerate(rows)),
        tuple(rows),
    )


def shown_after(shots: Sequence[tuple[str, str]], prompt: str, *, chat: bool, system: str | None) -> Prompt:
    """Put before a prompt what the model is shown first: the system text, and examples with their answers.

    Args:
        shots: What is asked in each example, and the answer: the assistant's in a chat, else right behind it.
        prompt: What is asked now.
        chat: See `make_task`.
        system: Likewise.
    """
    if chat:
        turns = [("system", system)] if system else []
        for asked, answered in shots:
            turns += [("user", asked), ("assistant", answered)]
        return (*turns, ("user", prompt))
    return "\n\n".join([*([system] if system else []), *(asked + answered for asked, answered in shots), prompt])


def fill(template: str, row: Row, name: str, index: int, *, what: str = "prompt") -> str:
    """Fill the ``{column}`` fields of a template from a row.

    Args:
        template: Text with fields; ``{{`` and ``}}`` are braces.
        row: The row.
        name: The dataset's name, for messages.
        index: The row's, likewise.
        what: What the template is, likewise.

    Raises:
        DataError: The template is malformed, or names a column that the row does not have or that holds a list or a
            mapping.
    """
    parts = []
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise DataError(f"dataset {name!r}: {what}: {error}; write {{{{ and }}}} for braces in {template!r}") from error
    for text, column, form, conversion in pieces:
        parts.append(text)
        if column is None:
            continue
        if form or conversion:
            raise DataError(
                f"dataset {name!r}: {what}: expected {{column}}, got a format in {{{column}}} of {template!r}"
            )
        parts.append(bare(column, row, name, index, what=what))
    return "".join(parts)


def bare(column: str, row: Row, name: str, index: int, *, what: str) -> str:
    """Return a row's column as text.

    Raises:
        DataError: The row does not have it, or holds something else in it than text or a number.
    """
    value = cell(row, column, name, index, what=what)
    if not isinstance(value, str | int | float):
        kind = type(value).__name__
        raise DataError(
            f"dataset {name!r}: row {index}: {what}: column {column!r}: expected text or a number, got {kind}"
        )
    return str(value)


def cell(row: Row, column: str, name: str, index: int, *, what: str) -> Any:
    """Return a row's column.

    Raises:
        DataError: The row does not have it, or it is empty (null).
    """
    value = _present(row, column, name, index, what=what)
    if value is None:
        raise DataError(f"dataset {name!r}: row {index}: {what}: column {column!r} is null")
    return value


def _references(row: Row, columns: Sequence[str], name: str, index: int) -> tuple[str, ...]:
    """Every text of every column; a row may have fewer references than others, but not none."""
    found: list[str] = []
    for column in columns:
        value = _present(row, column, name, index, what="references")
        texts = value if isinstance(value, list | tuple) else [value]
        if not all(text is None or isinstance(text, str) for text in texts):
            raise DataError(
                f"dataset {name!r}: row {index}: references: column {column!r}: expected text or a list of texts, "
                f"got {value!r:.60}"
            )
        found += [text for text in texts if text is not None]
    if not found:
        raise DataError(
            f"dataset {name!r}: row {index}: expected at least one reference, got none in {', '.join(columns)}"
        )
    return tuple(found)


def _present(row: Row, column: str, name: str, index: int, *, what: str) -> Any:
    if column not in row:
        raise DataError(
            f"dataset {name!r}: row {index}: {what}: no column {column!r}{nearest(column, map(str, row))}; "
            f"it has {', '.join(map(str, row)) or 'none'}"
        )
    return row[column]
