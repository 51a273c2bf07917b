"""Answers: what the steps of ``extract:`` find in generated texts, as the filters of lm-evaluation-harness 0.4.13.

A row has a list of texts until a step takes one of them. Where the harness stops with an error, because a text has
fewer matches than `Regex.group` asks for, the text has no answer here. A step after ``take_first`` reads the text that
was taken; the harness would read each character of it as a text, so `tasks.freeze` imports no such list.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_lmgate.errors import DataError, nearest
from pytest_lmgate.metrics.presets import READINGS
from pytest_lmgate.settings.extraction import (
    INVALID,
    Lowercase,
    MajorityVote,
    Map,
    MultiChoiceRegex,
    Preset,
    Regex,
    RemoveWhitespace,
    Step,
    Steps,
    TakeFirst,
    TakeFirstK,
    Uppercase,
    compiled,
    texts_read,
)

Row = Mapping[str, Any]


class Answer(NamedTuple):
    """What was extracted of a text, and whether it is an answer: not the text of a fallback, and not empty."""

    text: str
    found: bool = True


@dataclass(frozen=True)
class AnswerCounts:
    """How many texts have no answer, or no end.

    Attributes:
        rows: Number of answers: of texts, or of rows where one answer is made of all texts of a row.
        without: Rows in whose text the dataset's `extract` found no answer; null without `extract`.
        cut: Texts that end because they have `max_new_tokens` tokens, or rows with such a text; null where the engine
            does not say.
    """

    rows: int
    without: int | None = None
    cut: int | None = None


def extracted(steps: Steps, texts: Sequence[str], rows: Sequence[Row], *, name: str) -> list[Answer]:
    """Return the answer of each text, or of each row where the steps choose among its texts (`texts_read`).

    The texts are the first of all rows, then the second of all rows, and so on.
    """
    found = []
    for index in range(len(rows) if texts_read(steps) else len(texts)):
        row = index % len(rows)
        answers = [
            Answer(text) for text in (texts[row :: len(rows)] if texts_read(steps) else texts[index : index + 1])
        ]
        for step in steps:
            answers = applied(step, answers, rows[row], where=f"dataset {name!r}: row {row}")
        found.append(Answer(answers[0].text, answers[0].found and bool(answers[0].text.strip())))
    return found


def applied(step: Step, answers: list[Answer], row: Row, *, where: str) -> list[Answer]:
    """Return what a step makes of the answers of a row; `where` is for messages."""
    match step:
        case TakeFirst():
            return answers[:1]
        case TakeFirstK(k=k):
            return answers[:k]
        case MajorityVote():
            ((most, _),) = Counter(answer.text for answer in answers).most_common(1)
            return [next(answer for answer in answers if answer.text == most)]
        case RemoveWhitespace():
            return [Answer(text.strip(), found) for text, found in answers]
        case Lowercase():
            return [Answer(text.lower(), found) for text, found in answers]
        case Uppercase():
            return [Answer(text.upper(), found) for text, found in answers]
        case Map(mapping=mapping, default=default):
            return [Answer(mapping.get(text, default), found and text in mapping) for text, found in answers]
        case MultiChoiceRegex():
            choices = _Choices(step, row, where)
            read = [(choices.letter(text), found) for text, found in answers]
            return [Answer(letter or step.fallback, found and bool(letter)) for letter, found in read]
        case Regex():
            return [_regex(step, answer) for answer in answers]
        case Preset(reading=reading):
            read = [(READINGS[reading](text), found) for text, found in answers]
            return [Answer(text or INVALID, found and bool(text)) for text, found in read]
    raise AssertionError(step)


def _regex(step: Regex, answer: Answer) -> Answer:
    found = _match(compiled(step.pattern, "pattern"), step.group, answer.text)
    if found is None:
        return Answer(step.fallback, False)
    # The harness strips the fallback of a match that has only empty groups.
    return Answer(found[0].strip(), answer.found) if found else Answer(step.fallback.strip(), False)


def _match(pattern: re.Pattern[str], group: int, text: str) -> list[str] | None:
    """Return a match, of a pattern with several groups those that are not empty; None without such a match."""
    matches = pattern.findall(text)
    if not -len(matches) <= group < len(matches):
        return None
    match = matches[group]
    return [part for part in match if part] if isinstance(match, tuple) else [match]


class _Choices:
    """The choices of one row, and what a text says of them."""

    def __init__(self, step: MultiChoiceRegex, row: Row, where: str) -> None:
        self._step = step
        choices = row.get(step.choices)
        if step.choices not in row:
            known = list(map(str, row))
            raise DataError(
                f"{where}: extract: no column {step.choices!r}{nearest(step.choices, known)}; it has {', '.join(known)}"
            )
        if not isinstance(choices, list | tuple) or not all(isinstance(each, str) for each in choices) or not choices:
            raise DataError(f"{where}: extract: expected a list of texts in {step.choices!r}, got {choices!r:.60}")
        letters = [chr(ord("A") + number) for number in range(len(choices))]
        self._by_choice = {
            self._plain(choice.strip()): f"({letter})" for choice, letter in zip(choices, letters, strict=True)
        }
        self._by_letter = {letter: f"({letter})" for letter in letters}
        # A longer choice first: another may be its beginning.
        plain = sorted((re.escape(self._plain(choice.strip())) for choice in choices), key=len, reverse=True)
        self._choice, self._letter = re.compile("|".join(plain)), re.compile(rf":[\s]*({'|'.join(letters)})")

    def letter(self, text: str) -> str:
        """Return what a text says, as ``(B)`` where it is said by a choice or a letter; empty if nothing."""
        return (
            self._said(compiled(self._step.pattern, "pattern"), text, {})
            or self._said(self._choice, self._plain(text), self._by_choice)
            or self._said(self._letter, text, self._by_letter)
        )

    def _said(self, pattern: re.Pattern[str], text: str, names: Mapping[str, str]) -> str:
        match = (_match(pattern, self._step.group, text) or [""])[0].strip()
        return names.get(match, match) if match else ""

    def _plain(self, text: str) -> str:
        for pattern in self._step.ignore:
            text = compiled(pattern, "ignore").sub("", text)
        if self._step.ignore_case:
            text = text.lower()
        if self._step.ignore_punctuation:
            text = "".join(character for character in text if unicodedata.category(character)[0] != "P")
        return text
