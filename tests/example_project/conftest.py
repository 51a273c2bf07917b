"""The grammar read by other means than the example's own.

Texts are listed one by one, each with its probability, or recognized by a regular expression.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from pathlib import Path
from types import ModuleType

import pytest

from example_project.weather.chance import Chance, Phrase
from example_project.weather.record import Record
from example_project.weather.wording import (
    header,
    sky_sentence,
    temperature_sentence,
    warning_sentence,
    wind_sentence,
)

Listing = Callable[[Phrase], list[tuple[str, float]]]


@pytest.fixture(scope="session")
def example() -> Path:
    return Path(__file__).parents[2] / "example_project"


@pytest.fixture(scope="session")
def derivations() -> Listing:
    """Return what lists all derivations of a phrase: text and probability, a text once for each way to it."""

    def listed(phrase: Phrase) -> Iterator[tuple[str, float]]:
        if isinstance(phrase, str):
            yield phrase, 1.0
        elif isinstance(phrase, Chance):
            total = sum(weight for _, weight in phrase.outcomes)
            for part, weight in phrase.outcomes:
                yield from ((text, p * weight / total) for text, p in listed(part))
        else:
            for parts in product(*map(list, map(listed, phrase))):
                yield "".join(text for text, _ in parts), prod(p for _, p in parts)

    return lambda phrase: list(listed(phrase))


@pytest.fixture(scope="session")
def texts(derivations: Listing) -> Callable[[Phrase], dict[str, float]]:
    """Return what gives a phrase's distribution over texts, however many ways lead to one."""

    def summed(phrase: Phrase) -> dict[str, float]:
        found: Counter[str] = Counter()
        for text, p in derivations(phrase):
            found[text] += p  # type: ignore[assignment]
        return dict(found)

    return summed


@pytest.fixture(scope="session")
def tells() -> Callable[[str, Record], bool]:
    """Return what knows whether a text is one of the bulletins that tell a record."""

    def pattern(phrase: Phrase) -> str:
        if isinstance(phrase, str):
            return re.escape(phrase)
        if isinstance(phrase, Chance):
            return f"(?:{'|'.join(pattern(part) for part, _ in phrase)})"
        return "".join(map(pattern, phrase))

    def told(text: str, record: Record) -> bool:
        expected, before = pattern(header(record.season, record.place)), None
        for index, period in enumerate(record.periods):
            night = index in (1, 3)
            sky = pattern(sky_sentence(index, before, period.sky))
            temperature = pattern(temperature_sentence(period.celsius, night))
            wind = pattern(wind_sentence(period.wind, period.direction))
            warning = pattern(warning_sentence(period.warning))
            expected += f"\n{sky}(?:{temperature}{wind}|{wind}{temperature}){warning}"
            before = period.sky
        return re.fullmatch(expected, text) is not None

    return told


@pytest.fixture
def script(example: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Return what imports a script as Python does when it is run in its folder."""
    monkeypatch.syspath_prepend(str(example))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("train", "train_writer", "weather"):
            del sys.modules[name]
