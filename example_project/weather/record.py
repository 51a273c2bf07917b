"""Weather records: what a bulletin is about, drawn from the chains of `climate`. No words in here."""

from __future__ import annotations

__all__ = ["Period", "Record", "draw_record", "is_night", "period_surprisal", "record_surprisal"]

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from .climate import (
    LENGTH,
    PLACE,
    SEASON,
    celsius_chance,
    climate_of,
    direction_chance,
    sky_chance,
    warning_chance,
    wind_chance,
)


@dataclass(frozen=True)
class Period:
    """Half a day's weather.

    Attributes:
        sky: One of `climate.SKIES`.
        wind: One of `climate.WINDS`.
        direction: Where the wind comes from, one of `climate.DIRECTIONS`; None in calm air.
        celsius: Temperature in whole degrees.
        warning: One of `climate.WARNINGS`, or None.
    """

    sky: str
    wind: str
    direction: str | None
    celsius: int
    warning: str | None


@dataclass(frozen=True)
class Record:
    """The weather that one bulletin tells.

    Attributes:
        season: Season of the year.
        place: Where; the place decides the climate.
        periods: Two to four, day and night in turn, beginning with a day.
    """

    season: str
    place: str
    periods: tuple[Period, ...]


def is_night(index: int) -> bool:
    """Whether the period of this index (from 0) is a night."""
    return index % 2 == 1


def draw_record(random: Random) -> Record:
    """Draw a record."""
    season, place, length = SEASON.draw(random), PLACE.draw(random), LENGTH.draw(random)
    climate = climate_of(place)
    periods: list[Period] = []
    for index in range(length):
        before = periods[-1] if periods else None
        sky = sky_chance(season, climate, before.sky if before else None).draw(random)
        wind = wind_chance(climate, sky, before.wind if before else None).draw(random)
        direction = direction_chance(climate, wind, before.direction if before else None).draw(random)
        celsius = celsius_chance(season, climate, sky, is_night(index)).draw(random)
        warning = warning_chance(climate, sky, wind, celsius <= 0).draw(random)
        periods.append(Period(sky, wind, direction, celsius, warning))
    return Record(season, place, tuple(periods))


def record_surprisal(record: Record) -> float:
    """Return -log p(record) in nats; infinite if the source cannot produce it."""
    climate = climate_of(record.place)
    chosen = SEASON.surprisal(record.season) + PLACE.surprisal(record.place) + LENGTH.surprisal(len(record.periods))
    for index, period in enumerate(record.periods):
        before = record.periods[index - 1] if index else None
        chosen += sum(period_surprisal(record.season, climate, index, before, period))
    return chosen


def period_surprisal(season: str, climate: str, index: int, before: Period | None, period: Period) -> Iterator[float]:
    """Yield the surprisals, in nats, of a period's sky, wind, direction, temperature and warning."""
    yield sky_chance(season, climate, before.sky if before else None).surprisal(period.sky)
    yield wind_chance(climate, period.sky, before.wind if before else None).surprisal(period.wind)
    yield direction_chance(climate, period.wind, before.direction if before else None).surprisal(period.direction)
    yield celsius_chance(season, climate, period.sky, is_night(index)).surprisal(period.celsius)
    yield warning_chance(climate, period.sky, period.wind, period.celsius <= 0).surprisal(period.warning)
