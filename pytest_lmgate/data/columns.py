"""What the columns of a dataset's rows say: prompts and references, and the tags of rows. Pure.

Prompts are templates with ``{column}`` fields, chat messages and few-shot examples. Tags say what kind of row a row is,
such as its language; they change no measurement.
"""

from __future__ import annotations

import math
import string
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pytest_lmgate.errors import DataError, nearest
from pytest_lmgate.settings.entries import DatasetSpec

Row = Mapping[str, Any]
Chat = tuple[tuple[str, str], ...]
Prompt = str | Chat


@dataclass(frozen=True)
class TextTask:
    """Prompts to generate from, and references to compare with."""

    name: str  # the dataset's name, for messages
    prompts: tuple[Prompt, ...]  # one per row: text, or for a chat ``(role, content)`` pairs
    references: tuple[tuple[str, ...], ...]  # one or more texts per row; none if the entry has no `references`
    rows: tuple[Row, ...]  # the rows themselves, for metrics that look at other columns


def make_task(rows: Sequence[Row], spec: DatasetSpec, *, name: str, examples: Sequence[Row] = ()) -> TextTask:
    """Make the prompt and the references of each row by the dataset's entry.

    Few-shot examples go before each prompt, each followed by its first reference, with a blank line between two.
    """
    shown = f"{name} (examples)"

    def ask(row: Row, where: str, index: int) -> str:
        if spec.prompt is not None:
            return fill(spec.prompt, row, where, index)
        return bare(str(spec.source), row, where, index, what="source")

    shots = []
    for index, row in enumerate(examples):
        answer = _references(row, spec, shown, index, file=spec.examples)[0]
        utf8(answer, f"dataset {shown!r}: row {index}: references")
        shots.append((ask(row, shown, index), answer))
    prompts: list[Prompt]
    if spec.messages is None:
        prompts = [ask(row, name, index) for index, row in enumerate(rows)]
    else:
        prompts = [chat_in(row, spec.messages, name, index) for index, row in enumerate(rows)]
    references = tuple(_references(row, spec, name, index, file=spec.path) for index, row in enumerate(rows))
    if spec.references and references and not any(text.strip() for texts in references for text in texts):
        raise DataError(
            f"dataset {name!r}: every reference is empty, so that a model which writes nothing would be right in each "
            "row: does this split have its answers?"
        )
    answered = [[(str(prompt), text) for text in texts] for prompt, texts in zip(prompts, references, strict=True)]
    require_unseen(shots, answered, name)
    prompts = [
        shown_after(shots, prompt, chat=spec.chat, system=spec.system) if isinstance(prompt, str) else prompt
        for prompt in prompts
    ]
    return TextTask(name, tuple(prompts), references, tuple(rows))


def require_unseen(shots: Sequence[tuple[str, str]], rows: Sequence[Sequence[tuple[str, str]]], name: str) -> None:
    """Refuse `shots`, each a question and its answer, that are among the rows, each with its right answers."""
    if not shots:
        return
    known: dict[str, dict[str, int]] = {}  # the place of each right answer, by question
    for place, row in enumerate(rows):
        for question, right in row:
            known.setdefault(_normalized(question), {})[_normalized(right)] = place

    def place_of(question: str, answer: str) -> int | None:
        said, places = _normalized(answer), known.get(_normalized(question), {})
        # An example may work out its answer before it says it.
        ends = (place for right, place in places.items() if said == right or (right and said.endswith(right)))
        return next(ends, None)

    places = [place_of(*shot) for shot in shots]
    shown = [f"example {number} is row {place}" for number, place in enumerate(places) if place is not None]
    if shown:
        more = f", and {len(shown) - 3} more" if len(shown) > 3 else ""
        raise DataError(
            f"dataset {name!r}: examples: expected none of the dataset's own rows, whose answers would be shown, got "
            f"{len(shown)}: {', '.join(shown[:3])}{more} (from 0); take them out of one of the two files"
        )


def _normalized(text: str) -> str:
    """Return a text in small letters, without white space and punctuation at its ends."""
    return "".join(text.casefold().split()).strip(".,:;?!\"'")


def shown_after(shots: Sequence[tuple[str, str]], prompt: str, *, chat: bool, system: str | None) -> Prompt:
    """Put the system text and the `shots`, each a question and its answer, before a prompt."""
    if chat:
        turns = [("system", system)] if system else []
        for question, answered in shots:
            turns += [("user", question), ("assistant", answered)]
        return (*turns, ("user", prompt))
    return "\n\n".join([*([system] if system else []), *(question + answered for question, answered in shots), prompt])


def chat_in(row: Row, column: str, name: str, index: int) -> Chat:
    """Return the turns of a chat that a column holds, a list of ``{role, content}``."""
    turns, where = cell(row, column, name, index, what="messages"), f"dataset {name!r}: row {index}: messages"
    if not isinstance(turns, list | tuple) or not turns:
        raise DataError(f"{where}: column {column!r}: expected a list of turns, got {turns!r:.60}")
    for turn in turns:
        is_turn = isinstance(turn, Mapping) and turn.keys() == {"role", "content"}
        if not is_turn or not all(isinstance(text, str) for text in turn.values()) or not turn["role"]:
            raise DataError(
                f"{where}: column {column!r}: expected turns of role and content, both texts, got {turn!r:.80}"
            )
        utf8(turn["content"], f"{where}: column {column!r}")
    return tuple((turn["role"], turn["content"]) for turn in turns)


def fill(template: str, row: Row, name: str, index: int, *, what: str = "prompt") -> str:
    """Fill the ``{column}`` fields of a template from a row; `name`, `index` and `what` are for messages."""
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
    """Return a row's column, which must hold text or a number, as text."""
    value = cell(row, column, name, index, what=what)
    where = f"dataset {name!r}: row {index}: {what}: column {column!r}"
    if not isinstance(value, str | int | float) or value != value:
        got = "NaN" if isinstance(value, float) else type(value).__name__
        raise DataError(f"{where}: expected text or a number, got {got}")
    utf8(str(value), where)
    return str(value)


def cell(row: Row, column: str, name: str, index: int, *, what: str) -> Any:
    """Return a row's column, which must not be null."""
    value = _present(row, column, name, index, what=what)
    if value is None:
        raise DataError(f"dataset {name!r}: row {index}: {what}: column {column!r} is null")
    return value


def utf8(text: str, where: str) -> bytes:
    """Return a text's bytes; half of a surrogate pair has none, and is an error that begins with `where`."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {text[error.start]!r} at character {error.start:,} is half of a surrogate pair, which is not "
            "valid UTF-8; fix the row at its source"
        ) from error


def _references(row: Row, spec: DatasetSpec, name: str, index: int, *, file: str | None) -> tuple[str, ...]:
    columns = [spec.references] if isinstance(spec.references, str) else spec.references or []
    if not columns:
        return ()  # of an entry without `references`
    has_null = file is None or not file.endswith((".csv", ".tsv"))
    references: list[str] = []
    for column in columns:
        value = _present(row, column, name, index, what="references")
        texts = value if isinstance(value, list | tuple) else [value]
        if not all(text is None or isinstance(text, str) for text in texts):
            raise DataError(
                f"dataset {name!r}: row {index}: references: column {column!r}: expected text or a list of texts, "
                f"got {value!r:.60}"
            )
        references += [text for text in texts if text is not None and (has_null or text.strip())]
    if not references:
        raise DataError(
            f"dataset {name!r}: row {index}: expected at least one reference, got none in {', '.join(columns)}"
        )
    return tuple(references)


def _present(row: Row, column: str, name: str, index: int, *, what: str) -> Any:
    if column not in row:
        raise DataError(
            f"dataset {name!r}: row {index}: {what}: no column {column!r}{nearest(column, map(str, row))}; "
            f"it has {', '.join(map(str, row)) or 'none'}"
        )
    return row[column]


# Tags.


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
