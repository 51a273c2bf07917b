"""The closed form against two computations that share nothing with it but the tables, and against samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise
from statistics import fmean, stdev

import pytest

from example_project.weather.chance import Phrase
from example_project.weather.climate import (
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
from example_project.weather.corpus import draw_bulletins
from example_project.weather.optimum import best_bits_per_byte, best_perplexity, expected_bulletin
from example_project.weather.tokens import split
from example_project.weather.wording import header, sky_sentence, temperature_sentence, warning_sentence, wind_sentence


def entropy(distribution: dict) -> float:
    return -math.fsum(p * math.log(p) for p in distribution.values() if p)


def conditional_entropy(joint: dict[tuple, float]) -> float:
    """H(Y | X) = H(X, Y) - H(X) of a joint distribution over (x, y)."""
    marginal: Counter = Counter()
    for (x, _), p in joint.items():
        marginal[x] += p
    return entropy(joint) - entropy(marginal)


def marginals(season: str, climate: str, index: int, before: dict[tuple, float]) -> dict[str, Counter]:
    """Go forward one period: joint distributions of what it adds, and of the state it leaves behind."""
    found: dict[str, Counter] = {
        name: Counter() for name in ("sky", "wind", "direction", "celsius", "warning", "state")
    }
    under: Counter = Counter()
    for (sky, wind, direction), p in before.items():
        for next_sky, p_sky in sky_chance(season, climate, sky):
            found["sky"][sky, next_sky] += p * p_sky
            for next_wind, p_wind in wind_chance(climate, next_sky, wind):
                found["wind"][(next_sky, wind), next_wind] += p * p_sky * p_wind
                under[next_sky, next_wind] += p * p_sky * p_wind
                for next_direction, p_direction in direction_chance(climate, next_wind, direction):
                    here = p * p_sky * p_wind * p_direction
                    found["direction"][(next_wind, direction), next_direction] += here
                    found["state"][next_sky, next_wind, next_direction] += here
    for (sky, wind), p in under.items():
        for celsius, p_celsius in celsius_chance(season, climate, sky, index % 2 == 1):
            found["celsius"][sky, celsius] += p * p_celsius
            for warning, p_warning in warning_chance(climate, sky, wind, celsius <= 0):
                found["warning"][(sky, wind, celsius <= 0), warning] += p * p_celsius * p_warning
    return found


def test_it_equals_the_textbooks_sum_forward_along_the_chain_over_listed_sentences(texts: Callable):
    """Three sums: sum_k H(X_k | X_k-1) by marginals, and sentences listed text by text."""
    nats = sum(entropy(dict(chance)) for chance in (SEASON, PLACE, LENGTH))
    tokens, utf8_bytes = 1.0, 2.0  # the END
    listed: dict[Phrase, dict[str, float]] = {}

    def tell(phrase: Phrase, p: float) -> None:
        nonlocal nats, tokens, utf8_bytes
        if phrase not in listed:
            listed[phrase] = texts(phrase)
        nats += p * entropy(listed[phrase])
        tokens += p * math.fsum(q * len(split(text)) for text, q in listed[phrase].items())
        utf8_bytes += p * math.fsum(q * len(text.encode()) for text, q in listed[phrase].items())

    climates: Counter = Counter()
    for place, p_place in PLACE:
        climates[climate_of(place)] += p_place
        for season, p_season in SEASON:
            tell(header(season, place), p_season * p_place)
    for season, p_season in SEASON:
        for climate, p_climate in climates.items():
            state = {(None, None, None): 1.0}
            for index in range(4):
                p_reached = p_season * p_climate * sum(p for length, p in LENGTH if length > index)
                new = marginals(season, climate, index, state)
                chosen = ("sky", "wind", "direction", "celsius", "warning")
                nats += p_reached * sum(conditional_entropy(new[name]) for name in chosen)
                nats += p_reached * entropy({"temperature first": 2 / 3, "wind first": 1 / 3})
                tell("\n", p_reached)
                for (before, sky), p in new["sky"].items():
                    tell(sky_sentence(index, before, sky), p_reached * p)
                for (_, celsius), p in new["celsius"].items():
                    tell(temperature_sentence(celsius, index % 2 == 1), p_reached * p)
                for (_, wind, direction), p in new["state"].items():
                    tell(wind_sentence(wind, direction), p_reached * p)
                for (_, warning), p in new["warning"].items():
                    tell(warning_sentence(warning), p_reached * p)
                state = dict(new["state"])

    bulletin = expected_bulletin()
    assert bulletin.nats == pytest.approx(nats, rel=1e-10)
    assert bulletin.tokens == pytest.approx(tokens, rel=1e-10)
    assert bulletin.utf8_bytes == pytest.approx(utf8_bytes, rel=1e-10)


def test_samples_agree_within_four_standard_errors():
    bulletins = list(islice(draw_bulletins(seed=77), 4_000))
    sampled = {
        "nats": [bulletin.surprisal for bulletin in bulletins],
        "tokens": [len(split(bulletin.text + "\n\n")) for bulletin in bulletins],
        "utf8_bytes": [len((bulletin.text + "\n\n").encode()) for bulletin in bulletins],
    }
    for name, values in sampled.items():
        error = stdev(values) / math.sqrt(len(values))
        assert abs(fmean(values) - getattr(expected_bulletin(), name)) < 4 * error, name


def test_the_bounds_are_the_rates_of_one_bulletin():
    bulletin = expected_bulletin()
    assert math.log(best_perplexity()) * bulletin.tokens == pytest.approx(bulletin.nats)
    assert best_bits_per_byte() * bulletin.utf8_bytes * math.log(2) == pytest.approx(bulletin.nats)
    # Pinned: the README prints it, and a changed table changes the committed model's task.
    assert best_perplexity() == pytest.approx(1.996306, abs=1e-6)


def test_text_depends_on_the_chain():
    """A sky's chance changes with the sky before, so a reader of single sentences cannot reach the bound."""
    chances = {before: dict(sky_chance("autumn", "coast", before)) for before in ("clear", "cloudy", "fog", "rain")}
    assert all(one != other for one, other in pairwise(chances.values()))
