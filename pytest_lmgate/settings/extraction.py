"""The steps of ``extract:``, which cut an answer out of a generated text; `metrics.answers` applies them.

Steps are named as lm-evaluation-harness 0.4.13 names its filters, and read a text as these do.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, structs

from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.settings.decoding import convert

INVALID = "[invalid]"
"""What stands for an answer that was not found, as in lm-evaluation-harness."""


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


class TakeFirst(Step, frozen=True):
    name = "take_first"


class MajorityVote(Step, frozen=True):
    name = "majority_vote"


class RemoveWhitespace(Step, frozen=True):
    name = "remove_whitespace"


class Lowercase(Step, frozen=True):
    name = "lowercase"


class Uppercase(Step, frozen=True):
    name = "uppercase"


class TakeFirstK(Step, frozen=True):
    name = "take_first_k"
    k: Annotated[int, Meta(ge=1)]


class Regex(Step, frozen=True, kw_only=True):
    """A match of a pattern; of a pattern with groups, the first group that is not empty."""

    name = "regex"
    pattern: str  # as Python's ``re`` reads it
    group: int = 0  # which match: 0 is the first, -1 the last (``group_select`` of the harness)
    fallback: str = INVALID  # the text without such a match; the row then has no answer

    def __post_init__(self) -> None:
        compiled(self.pattern, "pattern")


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


class Map(Step, frozen=True, kw_only=True):
    """Another text for each text; the row has no answer where the mapping has none."""

    name = "map"
    mapping: dict[str, str]  # text by text
    default: str = INVALID  # the text that stands for all others


class Preset(Step, frozen=True):
    """A reading of a text that is more than a pattern, by `metrics.presets`.

    Its name stands in signatures: a preset that is to read texts in another way gets another name.
    """

    name = "preset"
    reading: str


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
