"""How the weather behaves: every probability of a record, as whole-number weights that multiply.

The sky, the wind and its direction are Markov chains over the periods of a bulletin; season and climate bend them.
"""

from __future__ import annotations

__all__ = [
    "LENGTH",
    "PLACE",
    "PLACES",
    "SEASON",
    "SKIES",
    "WARNINGS",
    "celsius_chance",
    "climate_of",
    "direction_chance",
    "sky_chance",
    "warning_chance",
    "wind_chance",
]

from collections.abc import Mapping
from functools import cache

from .chance import Chance

PLACES = {
    "coast": (
        "Gull Bay",
        "Saltmouth",
        "Port Aldren",
        "Port Sorrel",
        "Sandhaven",
        "Eel Harbour",
        "Kelp Point",
        "Heron Point",
    ),
    "hills": (
        "Upper Fenwick",
        "Upper Tarn",
        "Stonegate",
        "Ravenscar",
        "Cold Fell",
        "Larch Fell",
        "Birkdale",
        "Moss End",
    ),
    "plain": (
        "Millbrook",
        "Lower Fenwick",
        "Ashby",
        "Long Meadow",
        "Oakham",
        "Barley Cross",
        "Kings Cross",
        "Wheatley",
    ),
}
SKIES = ("clear", "cloudy", "fog", "rain", "storm", "snow")
WINDS = ("calm", "light", "fresh", "strong")
DIRECTIONS = ("north", "northeast", "east", "southeast", "south", "southwest", "west", "northwest")
WARNINGS = ("gale", "thunder", "flood", "snow", "fog", "ice")

SEASON = Chance.of({"winter": 3, "spring": 2, "summer": 2, "autumn": 3})
PLACE = Chance.of({place: 1 + index % 3 for places in PLACES.values() for index, place in enumerate(places)})
LENGTH = Chance.of({2: 3, 3: 4, 4: 3})

_SKY_IN_SEASON = {  # in the order of SKIES
    "winter": (2, 3, 2, 2, 0, 4),
    "spring": (3, 3, 1, 3, 1, 1),
    "summer": (6, 2, 1, 1, 3, 0),
    "autumn": (2, 3, 4, 4, 1, 0),
}
_SKY_IN_CLIMATE = {"coast": (2, 2, 3, 2, 2, 1), "hills": (2, 3, 1, 2, 1, 3), "plain": (3, 2, 2, 2, 1, 1)}
_SKY_AFTER = {
    "clear": (8, 3, 2, 1, 0, 1),
    "cloudy": (3, 6, 1, 4, 1, 3),
    "fog": (3, 3, 6, 1, 0, 1),
    "rain": (2, 4, 2, 6, 3, 2),
    "storm": (2, 3, 0, 6, 4, 1),
    "snow": (2, 4, 1, 1, 0, 8),
}
_WIND_UNDER = {  # in the order of WINDS
    "clear": (4, 5, 2, 1),
    "cloudy": (2, 4, 4, 1),
    "fog": (8, 2, 0, 0),
    "rain": (1, 3, 5, 2),
    "storm": (0, 0, 3, 9),
    "snow": (2, 3, 3, 3),
}
_WIND_AFTER = {"calm": (6, 3, 1, 1), "light": (3, 6, 3, 1), "fresh": (1, 3, 6, 3), "strong": (1, 1, 4, 7)}
_WIND_IN_CLIMATE = {"coast": (1, 2, 3, 3), "hills": (2, 2, 2, 3), "plain": (4, 3, 2, 1)}
_DIRECTION_IN_CLIMATE = {  # in the order of DIRECTIONS
    "coast": (1, 1, 1, 1, 2, 6, 9, 3),
    "hills": (8, 4, 1, 1, 1, 1, 3, 6),
    "plain": (2, 2, 5, 3, 3, 2, 5, 2),
}
_DIRECTION_TURN = (12, 4, 1, 0, 0, 0, 1, 4)  # by eighths of a turn

_CELSIUS_IN_SEASON = {"winter": 3, "spring": 12, "summer": 23, "autumn": 13}
_CELSIUS_IN_CLIMATE = {"coast": 0, "hills": -5, "plain": 2}
_CELSIUS_UNDER = {"clear": 3, "cloudy": 0, "fog": -2, "rain": -1, "storm": 1, "snow": -5}
_CELSIUS_NIGHT = {"clear": -9, "cloudy": -4, "fog": -3, "rain": -3, "storm": -3, "snow": -3}
_CELSIUS_SPREAD = {-3: 1, -2: 2, -1: 4, 0: 6, 1: 4, 2: 2, 3: 1}


def climate_of(place: str) -> str:
    """Return the climate of a place: ``coast``, ``hills`` or ``plain``."""
    return next(climate for climate, places in PLACES.items() if place in places)


@cache
def sky_chance(season: str, climate: str, before: str | None) -> Chance[str]:
    """Return the chance of a period's sky after the sky `before` (None: the first period)."""
    after = _SKY_AFTER[before] if before else (1,) * len(SKIES)
    return _product(SKIES, _SKY_IN_SEASON[season], _SKY_IN_CLIMATE[climate], after)


@cache
def wind_chance(climate: str, sky: str, before: str | None) -> Chance[str]:
    """Return the chance of a period's wind under its sky, after the wind `before`."""
    after = _WIND_AFTER[before] if before else (1,) * len(WINDS)
    return _product(WINDS, _WIND_UNDER[sky], _WIND_IN_CLIMATE[climate], after)


@cache
def direction_chance(climate: str, wind: str, before: str | None) -> Chance[str | None]:
    """Return the chance of the wind's direction after the direction `before`; calm air has none."""
    if wind == "calm":
        return Chance.of({None: 1})
    if before is None:
        return _product(DIRECTIONS, _DIRECTION_IN_CLIMATE[climate])
    shift = DIRECTIONS.index(before)
    turned = tuple(_DIRECTION_TURN[(index - shift) % len(DIRECTIONS)] for index in range(len(DIRECTIONS)))
    return _product(DIRECTIONS, _DIRECTION_IN_CLIMATE[climate], turned)


@cache
def celsius_chance(season: str, climate: str, sky: str, night: bool) -> Chance[int]:
    """Return the chance of the temperature in whole degrees Celsius."""
    middle = _CELSIUS_IN_SEASON[season] + _CELSIUS_IN_CLIMATE[climate] + _CELSIUS_UNDER[sky]
    middle += _CELSIUS_NIGHT[sky] if night else 0
    return Chance.of({middle + change: weight for change, weight in _CELSIUS_SPREAD.items()})


@cache
def warning_chance(climate: str, sky: str, wind: str, frost: bool) -> Chance[str | None]:
    """Return the chance of a warning, None for no warning; `frost` is a temperature of 0 degrees or below."""
    weights: Mapping[str | None, int] = {
        None: 5,
        "gale": (wind == "strong") * (8 if climate == "coast" else 3),
        "thunder": 5 * (sky == "storm"),
        "flood": (sky in ("rain", "storm")) * (6 if climate == "hills" else 1),
        "snow": (sky == "snow") * (6 if climate == "hills" else 3),
        "fog": (sky == "fog") * (6 if climate == "coast" else 2),
        "ice": 3 * frost,
    }
    return Chance.of(weights)


def _product(names: tuple[str, ...], *factors: tuple[int, ...]) -> Chance[str]:
    weights = dict.fromkeys(names, 1)
    for factor in factors:
        weights = {name: weights[name] * weight for name, weight in zip(names, factor, strict=True)}
    return Chance.of(weights)
