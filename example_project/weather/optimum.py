r"""The best possible perplexity on bulletins, in closed form: nothing is sampled.

Running text is bulletins drawn independently, each ended by `wording.END`. Let H be the entropy of one bulletin in
nats, T its expected tokens and B its expected bytes, `END` included. A model q needs E[-log q] = H + D(p || q), which
is at least H, for a bulletin (the information inequality: Cover and Thomas, Elements of Information Theory, 2nd ed.,
theorem 2.6.3), and N bulletins have N T tokens on average, so as the text grows no model's perplexity stays below

    exp(H / T),    nor its bits per byte below    H / (B ln 2).

H is exact, up to the rounding of doubles, by the chain rule (theorem 2.5.1): the entropy of every choice, weighted with
the probability that its circumstances arise, summed along the Markov chain of periods (as in theorem 4.2.4). It counts
choices, which is the entropy of the text because no text arises in two ways, and the entropy of its tokens because
tokens join to the text.

Two edges of a finite text are outside: the very first token, which has nothing before it and is never scored, and the
last `END`, which nothing follows and `join` does not write. On one given text a model may also be lucky; that is what
intervals are for.

    python -m weather.optimum
"""

from __future__ import annotations

__all__ = ["best_bits_per_byte", "best_perplexity", "expected_bulletin"]

import math
from dataclasses import dataclass, replace
from functools import cache

from .chance import Amount, Chance, expected
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
from .record import is_night
from .wording import (
    END,
    NEW_LINE,
    ORDER,
    header,
    sky_sentence,
    temperature_sentence,
    warning_sentence,
    wind_sentence,
)


def best_perplexity() -> float:
    """Return the perplexity per token that no model's is expected below."""
    bulletin = expected_bulletin()
    return math.exp(bulletin.nats / bulletin.tokens)


def best_bits_per_byte() -> float:
    """Return the bits per byte that no model's are expected below."""
    bulletin = expected_bulletin()
    return bulletin.nats / math.log(2) / bulletin.utf8_bytes


@cache
def expected_bulletin() -> Amount:
    """Return the entropy, expected tokens and expected bytes of one bulletin with its `END`."""
    total = _entropy(SEASON) + _entropy(PLACE) + _entropy(LENGTH) + expected(END)
    for season, p_season in SEASON:
        for place, p_place in PLACE:
            periods = _periods(_Before(season, climate_of(place), 0, None, None, None))
            total += p_season * p_place * (expected(header(season, place)) + periods)
    return total


@dataclass(frozen=True)
class _Before:
    """All that the period `index` depends on: where and when it is, and the period before it."""

    season: str
    climate: str
    index: int
    sky: str | None
    wind: str | None
    direction: str | None


@cache
def _periods(before: _Before) -> Amount:
    """Return what is expected of a period and all after it; its choices are followed in their order."""
    total = _entropy(ORDER) + expected(NEW_LINE)
    for sky, p in sky_chance(before.season, before.climate, before.sky):
        told = expected(sky_sentence(before.index, before.sky, sky))
        total += p * (_surprise(p) + told + _from_wind_on(replace(before, sky=sky)))
    return total


@cache
def _from_wind_on(before: _Before) -> Amount:
    """Continue where `sky` is already the period's own."""
    total = Amount()
    for wind, p in wind_chance(before.climate, before.sky, before.wind):
        here = replace(before, wind=wind)
        total += p * (
            _surprise(p)
            + _temperature_and_warning(here.season, here.climate, here.sky, wind, is_night(here.index))
            + _from_direction_on(here)
        )
    return total


@cache
def _from_direction_on(before: _Before) -> Amount:
    """Continue where `sky` and `wind` are already the period's own."""
    total = Amount()
    for direction, p in direction_chance(before.climate, before.wind, before.direction):
        here = replace(before, direction=direction, index=before.index + 1)
        further = _goes_on(here.index)
        told = expected(wind_sentence(here.wind, direction))
        total += p * (_surprise(p) + told + (further * _periods(here) if further else Amount()))
    return total


def _goes_on(index: int) -> float:
    """Return the probability that there is a period `index`, given the one before; lengths ignore the weather."""
    at_least = {count: sum(p for length, p in LENGTH if length >= count) for count in (index, index + 1)}
    return at_least[index + 1] / at_least[index]


@cache
def _temperature_and_warning(season: str, climate: str, sky: str, wind: str, night: bool) -> Amount:
    """Return what is expected of these two, which no later period depends on."""
    total = Amount()
    for celsius, p_celsius in celsius_chance(season, climate, sky, night):
        total += p_celsius * (_surprise(p_celsius) + expected(temperature_sentence(celsius, night)))
        for warning, p_warning in warning_chance(climate, sky, wind, celsius <= 0):
            total += p_celsius * p_warning * (_surprise(p_warning) + expected(warning_sentence(warning)))
    return total


def _surprise(p: float) -> Amount:
    return Amount(-math.log(p))


def _entropy(chance: Chance[object]) -> Amount:
    return sum((p * _surprise(p) for _, p in chance), Amount())


if __name__ == "__main__":
    bulletin = expected_bulletin()
    print(f"one bulletin: {bulletin.nats:.4f} nats, {bulletin.tokens:.4f} tokens, {bulletin.utf8_bytes:.4f} bytes")
    print(f"entropy rate: {bulletin.nats / bulletin.tokens:.6f} nats per token")
    print(f"best perplexity: {best_perplexity():.6f}, best bits per byte: {best_bits_per_byte():.6f}")
