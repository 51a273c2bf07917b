"""The steps of ``extract:``, which cut an answer out of a text, as the filters of lm-evaluation-harness 0.4.13.

A row has a list of texts until a step takes one of them. Where the harness stops with an error, because a text has
fewer matches than `Regex.group` asks for, the text has no answer here. A step after ``take_first`` reads the text that
was taken; the harness would read each character of it as a text, so `tools.tasks` imports no such list.
"""

from __future__ import annotations

import functools
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
from msgspec import Meta, structs

from pytest_lmgate.errors import ConfigError, DataError, nearest
from pytest_lmgate.settings.decoding import convert

INVALID = "[invalid]"
"""What stands for an answer that was not found, as in lm-evaluation-harness."""
THINK = "<think>"
"""What the thoughts of a model begin with; a chat template may end with it."""
Row = Mapping[str, Any]


class Answer(NamedTuple):
    """What was extracted of a text, and whether it is an answer: not the text of a fallback, and not empty."""

    text: str
    found: bool = True


@functools.lru_cache(maxsize=256)
def compiled(pattern: str, argument: str) -> re.Pattern[str]:
    """Return a pattern that the user wrote as `argument`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later Python may read otherwise
            return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError.of(argument, f"expected a regular expression of Python, got {pattern!r}: {error}") from None


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: ClassVar[str]

    def apply(self, answers: list[Answer], row: Row, where: str) -> list[Answer]:
        """Return what the step makes of the answers of a row; `where` is for messages."""
        raise NotImplementedError


class TakeFirst(Step, frozen=True):
    name = "take_first"

    def apply(self, answers: list[Answer], row: Row, where: str) -> list[Answer]:
        return answers[:1]


class MajorityVote(Step, frozen=True):
    name = "majority_vote"

    def apply(self, answers: list[Answer], row: Row, where: str) -> list[Answer]:
        ((most, _),) = Counter(answer.text for answer in answers).most_common(1)
        return [next(answer for answer in answers if answer.text == most)]


class RemoveWhitespace(Step, frozen=True):
    name = "remove_whitespace"

    def apply(self, answers: list[Answer], row: Row, where: str) -> list[Answer]:
        return [Answer(text.strip(), found) for text, found in answers]


class Lowercase(Step, frozen=True):
    name = "lowercase"

    def apply(self, answers: list[Answer], row: Row, where: str) -> list[Answer]:
        return [Answer(text.lower(), found) for text, found in answers]


class Uppercase(Step, frozen=True):
    name = "uppercase"

    def apply(self, answers: list[Answer], row: Row, where: str) -> list[Answer]:
        return [Answer(text.upper(), found) for text, found in answers]


class TakeFirstK(Step, frozen=True):
    name = "take_first_k"
    k: Annotated[int, Meta(ge=1)]

    def apply(self, answers: list[Answer], row: Row, where: str) -> list[Answer]:
        return answers[: self.k]


class Regex(Step, frozen=True, kw_only=True):
    """A match of a pattern; of a pattern with groups, the first group that is not empty."""

    name = "regex"
    pattern: str  # as Python's ``re`` reads it
    group: int = 0  # which match: 0 is the first, -1 the last (``group_select`` of the harness)
    fallback: str = INVALID  # the text without such a match; the row then has no answer

    def __post_init__(self) -> None:
        compiled(self.pattern, "pattern")

    def apply(self, answers: list[Answer], row: Row, where: str) -> list[Answer]:
        return [self._read(answer) for answer in answers]

    def _read(self, answer: Answer) -> Answer:
        match = _match(compiled(self.pattern, "pattern"), self.group, answer.text)
        if match is None:
            return Answer(self.fallback, False)
        # The harness strips the fallback of a match that has only empty groups.
        return Answer(match[0].strip(), answer.found) if match else Answer(self.fallback.strip(), False)


class MultiChoiceRegex(Regex, frozen=True, kw_only=True):
    """A match as of `Regex`, else the letter of a choice whose text is in the answer, else a letter after a colon."""

    name = "multi_choice_regex"
    choices: str = "choices"  # column of the list of choices
    ignore_case: bool = False  # compare choices in lower case
    ignore_punctuation: bool = False  # compare choices without what Unicode classes as punctuation
    # patterns that are removed before choices are compared (``regexes_to_ignore`` of the harness)
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, pattern in (("pattern", self.pattern), *(("ignore", each) for each in self.ignore)):
            compiled(pattern, key)

    def apply(self, answers: list[Answer], row: Row, where: str) -> list[Answer]:
        choices = _Choices(self, row, where)
        letters = [(choices.letter(text), found) for text, found in answers]
        return [Answer(letter or self.fallback, found and bool(letter)) for letter, found in letters]


class Map(Step, frozen=True, kw_only=True):
    """Another text for each text; the row has no answer where the mapping has none."""

    name = "map"
    mapping: dict[str, str]  # text by text
    default: str = INVALID  # the text that stands for all others

    def apply(self, answers: list[Answer], row: Row, where: str) -> list[Answer]:
        return [Answer(self.mapping.get(text, self.default), found and text in self.mapping) for text, found in answers]


class Preset(Step, frozen=True):
    """A reading of a text that is more than a pattern, by `settings.presets`.

    It does not read thoughts: a text that ends while the model still thinks has no answer. Its name stands in
    signatures: a preset that is to read texts in another way gets another name.
    """

    name = "preset"
    reading: str

    def apply(self, answers: list[Answer], row: Row, where: str) -> list[Answer]:
        from pytest_lmgate.settings.presets import READINGS  # whose patterns take a while to compile

        said = [(text.rpartition("</think>")[2], found) for text, found in answers]
        texts = [("" if THINK in text else READINGS[self.reading](text), found) for text, found in said]
        return [Answer(text or INVALID, found and bool(text)) for text, found in texts]


Steps = tuple[Step, ...]
_KINDS: Mapping[str, type[Step]] = {
    kind.name: kind
    for kind in (
        Regex, TakeFirst, TakeFirstK, MajorityVote, RemoveWhitespace, Lowercase, Uppercase, Map, MultiChoiceRegex,
    )
}  # fmt: skip
PRESETS: Mapping[str, list[Any]] = {
    "gsm8k-strict": [{"regex": {"pattern": r"#### (\-?[0-9\.\,]+)"}}, "take_first"],
    "gsm8k-flexible": [{"regex": {"pattern": r"(-?[$0-9.,]{2,})|(-?[0-9]+)", "group": -1}}, "take_first"],
    **{reading: [Preset(reading)] for reading in ("last-number", "letter", "boxed")},
}
"""Extractions with a name; the first two are the filters of the harness's task gsm8k."""


def read_extractions(written: object) -> dict[str, Steps]:
    """Return the extractions of an entry by name; the name of a single one is empty."""
    if not isinstance(written, dict):
        return {"": _steps(written, "extract")}
    for name, each in written.items():
        if isinstance(each, dict) or name in _KINDS:
            raise ConfigError.of(
                "extract", f"expected a list of steps, or names with lists of steps, got {name!r}; write - {name}: ..."
            )
        if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
            raise ConfigError.of("extract", f"expected a name of letters, digits, - and _, got {name!r}")
    if not written:
        raise ConfigError.of("extract", "expected one step or more, got none")
    return {name: _steps(each, f"extract.{name}") for name, each in written.items()}


def texts_read(steps: Steps) -> int:
    """Return how many texts of a row steps need that make one answer of them; 0 where each text has its answer."""
    chosen = [step.k for step in steps if isinstance(step, TakeFirstK)]
    return min(chosen, default=2 * any(isinstance(step, MajorityVote) for step in steps))


def words_of(steps: Steps) -> str:
    """Return steps in one line, as in ``regex({"pattern":"#### (.*)"})+take_first``."""
    found = []
    for step in steps:
        if isinstance(step, Preset):
            found.append(step.reading)
            continue
        unusual = {
            each.name: getattr(step, each.name)
            for each in structs.fields(step)
            if getattr(step, each.name) != each.default
        }
        found.append(f"{step.name}({msgspec.json.encode(unusual).decode()})" if unusual else step.name)
    return "+".join(found)


def _steps(written: object, key: str) -> Steps:
    if isinstance(written, str):
        if written in PRESETS:
            return _steps(PRESETS[written], key)
        names = ", ".join(PRESETS)
        raise ConfigError.of(
            key, f"expected a list of steps, or one of {names}, got {written!r}{nearest(written, PRESETS)}"
        )
    if not isinstance(written, list | tuple) or not written:
        raise ConfigError.of(key, f"expected a list of steps, or one of {', '.join(PRESETS)}, got {written!r}")
    return tuple(_step(each, key, number) for number, each in enumerate(written, 1))


def _step(written: object, key: str, number: int) -> Step:
    if isinstance(written, Preset):
        return written
    if isinstance(written, str):
        name, arguments = written, None
    elif isinstance(written, dict) and len(written) == 1:
        ((name, arguments),) = written.items()
    else:
        raise ConfigError.of(
            key, f"step {number}: expected a name, or a name with its arguments, as in regex: {{...}}, got {written!r}"
        )
    if name not in _KINDS:
        known = ", ".join(_KINDS)
        raise ConfigError.of(key, f"step {number}: unknown step {name!r}{nearest(str(name), _KINDS)}; known: {known}")
    kind = _KINDS[name]
    fields = {each.name: each for each in structs.fields(kind)}
    where = f"step {number}: {name}"
    if arguments is not None and not isinstance(arguments, dict):
        raise ConfigError.of(key, f"{where}: expected {', '.join(fields) or 'no arguments'}, got {arguments!r}")
    given: dict[Any, Any] = arguments or {}
    if unknown := next((each for each in given if each not in fields), None):
        taken = f"expected one of {', '.join(fields)}" if fields else "it takes none"
        raise ConfigError.of(key, f"{where}: unknown argument {unknown!r}{nearest(str(unknown), fields)}; {taken}")
    if lacking := next((each.name for each in fields.values() if each.required and each.name not in given), None):
        raise ConfigError.of(key, f"{where}: expected {lacking}:")
    try:
        return convert(given, kind)
    except ConfigError as error:
        raise ConfigError.of(key, f"{where}: {error}") from None


def extracted(steps: Steps, texts: Sequence[str], rows: Sequence[Row], *, name: str) -> list[Answer]:
    """Return the answer of each text, or of each row where the steps choose among its texts (`texts_read`).

    The texts are the first of all rows, then the second of all rows, and so on.
    """
    chosen = []
    for index in range(len(rows) if texts_read(steps) else len(texts)):
        row = index % len(rows)
        answers = [
            Answer(text) for text in (texts[row :: len(rows)] if texts_read(steps) else texts[index : index + 1])
        ]
        for step in steps:
            answers = step.apply(answers, rows[row], f"dataset {name!r}: row {row}")
        chosen.append(Answer(answers[0].text, answers[0].found and bool(answers[0].text.strip())))
    return chosen


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
