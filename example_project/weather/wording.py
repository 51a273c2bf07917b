"""Putting a record into words: phrases for each of its facts.

No two facts share a sentence and every sentence ends in its only full stop, so a text can be read back in one way only:
the entropy of the choices is the entropy of the text. Literals carry the space before each word, as the tokens do.
"""

from __future__ import annotations

__all__ = [
    "END",
    "NEW_LINE",
    "ORDER",
    "PERIODS",
    "degrees",
    "header",
    "sentences",
    "sky_sentence",
    "temperature_sentence",
    "warning_sentence",
    "wind_sentence",
    "word",
]

from collections.abc import Iterator
from functools import cache
from random import Random

from .chance import Chance, Phrase, write
from .record import Record, is_night

NEW_LINE = "\n"
END = "\n\n"
"""Ends a bulletin in running text. As a token of its own it also tells that no further period follows."""

ORDER = Chance.of({("temperature", "wind"): 2, ("wind", "temperature"): 1})
"""Which sentence comes first after the sky's."""

PERIODS = ("Today", "Tonight", "Tomorrow", "Tomorrow night")


def _any(*phrases: Phrase) -> Chance[Phrase]:
    """Make a chance of n phrases that become less likely from the first to the last: weights n, n - 1, ..., 1."""
    return Chance.of({phrase: len(phrases) - index for index, phrase in enumerate(phrases)})


_ADJECTIVES = {
    ("clear", False): _any(" sunny", " bright", " fine"),
    ("clear", True): _any(" clear", " starlit", " cloudless"),
    ("cloudy", False): _any(" cloudy", " grey", " overcast", " dull"),
    ("cloudy", True): _any(" cloudy", " overcast", " moonless"),
    ("fog", False): _any(" foggy", " misty", " hazy"),
    ("fog", True): _any(" foggy", " murky", " misty"),
    ("rain", False): _any(" rainy", " wet", " showery"),
    ("rain", True): _any(" wet", " rainy", " drizzly"),
    ("storm", False): _any(" stormy", " thundery"),
    ("storm", True): _any(" stormy", " wild"),
    ("snow", False): _any(" snowy", " white", " wintry"),
    ("snow", True): _any(" snowy", " wintry"),
}
_NOUNS = {
    ("clear", False): _any(" sunshine", " blue skies", " bright sunshine"),
    ("clear", True): _any(" clear skies", " stars and a moon"),
    ("cloudy", False): _any((_any(" broken", " thick", " low"), " clouds"), " no sun"),
    ("cloudy", True): _any((_any(" thick", " drifting"), " clouds"), " no stars"),
    ("fog", False): _any(" fog", (_any(" patchy", " dense", " drifting"), " fog"), " mist in the valleys"),
    ("fog", True): _any((_any(" dense", " patchy"), " fog"), " mist"),
    ("rain", False): _any((_any(" light", " steady", " heavy"), " rain"), " showers", " drizzle"),
    ("rain", True): _any((_any(" heavy", " steady", " light"), " rain"), " drizzle", " showers"),
    ("storm", False): _any(" thunderstorms", " lightning and hail", " hail"),
    ("storm", True): _any(" lightning", " thunderstorms"),
    ("snow", False): _any((_any(" light", " fresh", " heavy"), " snow"), " snow showers", " sleet"),
    ("snow", True): _any((_any(" heavy", " light"), " snow"), " blizzards", " sleet"),
}
_WINDS: dict[str, Phrase] = {
    "light": _any(" Gentle breezes", " Light winds", " A soft breeze", " Light airs"),
    "fresh": _any(" Fresh winds", " A brisk wind", " A fresh breeze"),
    "strong": _any(" Strong winds", " Gusts", " Violent gusts"),
}
_WARNINGS: dict[str, Phrase] = {
    "gale": _any((" gale warning", _any(": boats stay in harbour", ": ferries may not sail", "")), " storm warning"),
    "thunder": _any((" thunder warning", _any(": seek shelter", "")), " lightning warning"),
    "flood": _any((" flood warning", _any(": rivers are rising", ": avoid the fords", "")), " flood alert"),
    "snow": _any((" snow warning", _any(": passes may close", ": carry chains", "")), " drift warning"),
    "fog": _any((" fog warning", _any(": drive slowly", "")), " visibility warning"),
    "ice": _any((" frost warning", _any(": cover tender plants", "")), " black ice warning"),
}


@cache
def header(season: str, place: str) -> Phrase:
    """Return the phrase of the first line."""
    bulletin = (_any(f"{season.capitalize()} bulletin", f"{season.capitalize()} forecast"), f" for {place}.")
    return _any(bulletin, f"{place}, {season} weather.")


@cache
def sky_sentence(index: int, before: str | None, sky: str) -> Phrase:
    """Return the phrase of the sky in the period of this index, after the period before it (None: the first)."""
    adjective, noun = _ADJECTIVES[sky, is_night(index)], _NOUNS[sky, is_night(index)]
    if before is None:
        told = _any((" will be", adjective), (" brings", noun), (": mostly", adjective))
    elif before == sky:
        told = _any((" stays", adjective), (" brings more", noun), (" remains", adjective))
    else:
        told = _any((" turns", adjective), (" brings", noun), (" becomes", adjective))
    return (PERIODS[index], told, ".")


def degrees(celsius: int) -> str:
    """Return a temperature as words, with the space before them."""
    return f" minus {-celsius}" if celsius < 0 else f" {celsius}"


@cache
def temperature_sentence(celsius: int, night: bool) -> Phrase:
    """Return the phrase of a temperature."""
    if night:
        told = _any(" Lows near", " Falling to", " Lows around")
    else:
        told = _any(" Highs near", " Up to", " Highs around")
    return (told, degrees(celsius), _any("", " degrees"), ".")


@cache
def wind_sentence(wind: str, direction: str | None) -> Phrase:
    """Return the phrase of a wind."""
    if direction is None:
        return (_any(" No wind", " Calm air", " Hardly a breath of wind"), ".")
    return (_WINDS[wind], _any(" from the", " out of the"), f" {direction}.")


@cache
def warning_sentence(warning: str | None) -> Phrase:
    """Return the phrase of a warning; nothing where there is none."""
    return (NEW_LINE, "Attention,", _WARNINGS[warning], ".") if warning else ""


def word(record: Record, random: Random) -> tuple[str, float]:
    """Put a record into words.

    Returns:
        The bulletin without `END`, and the surprisal of its wording given the record, in nats.
    """
    parts = list(sentences(record, random))
    return "".join(text for _, text, _ in parts), sum(nats for _, _, nats in parts)


def sentences(record: Record, random: Random) -> Iterator[tuple[str, str, float]]:
    """Yield the sentences of a bulletin in their order.

    Yields:
        What the sentence tells (``header``, ``sky``, ``temperature``, ``wind`` or ``warning``), its text with the space
        or newline before it, and its surprisal in nats, where the sky's includes that of the order of those after it.
    """
    yield "header", *write(header(record.season, record.place), random)
    before = None
    for index, period in enumerate(record.periods):
        later = {
            "temperature": temperature_sentence(period.celsius, is_night(index)),
            "wind": wind_sentence(period.wind, period.direction),
        }
        order = ORDER.draw(random)
        text, nats = write(sky_sentence(index, before, period.sky), random)
        yield "sky", NEW_LINE + text, nats + ORDER.surprisal(order)
        for name in order:
            yield name, *write(later[name], random)
        if period.warning:
            yield "warning", *write(warning_sentence(period.warning), random)
        before = period.sky
