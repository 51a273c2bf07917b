from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from example_project.weather.chance import Chance, expected, write

COIN = Chance.of({" heads": 1, " tails": 1})
DIE = Chance.of({f" {face}": 1 for face in range(1, 7)})
GRAMMAR = (
    "Play",
    Chance.of({(COIN, " wins"): 3, (DIE, Chance.of({"": 2, " or" + " none": 1})): 4, " nothing": 1}),
    Chance.of({".": 5, ".\n": 2}),
)


def test_a_fair_coin_and_a_die_have_the_entropies_of_the_textbook():
    assert expected(COIN).nats == pytest.approx(math.log(2))
    assert expected(DIE).nats == pytest.approx(math.log(6))


def test_expectations_of_a_grammar_equal_those_over_all_its_texts(texts):
    listed = texts(GRAMMAR)
    amount = expected(GRAMMAR)
    assert math.fsum(listed.values()) == pytest.approx(1)
    assert amount.nats == pytest.approx(-math.fsum(p * math.log(p) for p in listed.values()), rel=1e-12)
    assert amount.utf8_bytes == pytest.approx(math.fsum(p * len(text) for text, p in listed.items()), rel=1e-12)
    words = math.fsum(p * (len(text.split()) + 1 + text.endswith("\n")) for text, p in listed.items())
    assert amount.tokens == pytest.approx(words, rel=1e-12), "words, the full stop, the newline"


def test_draws_come_with_the_surprisal_of_their_text_and_as_often_as_they_should(texts):
    listed, random = texts(GRAMMAR), Random(5)
    drawn = [write(GRAMMAR, random) for _ in range(20_000)]
    for text, nats in drawn[:200]:
        assert nats == pytest.approx(-math.log(listed[text]))
    counts = Counter(text for text, _ in drawn)
    chi_square = sum((counts[text] - 20_000 * p) ** 2 / (20_000 * p) for text, p in listed.items())
    degrees = len(listed) - 1
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees), "4 standard deviations of chi-square"


def test_an_outcome_of_weight_nothing_never_happens():
    chance = Chance.of({"never": 0, "always": 2})
    assert chance.draw(Random(1)) == "always"
    assert chance.surprisal("never") == math.inf
    assert chance.surprisal("always") == 0


@pytest.mark.parametrize("weights", [{}, {"a": 0}, {"a": 2, "b": -1}])
def test_weights_that_are_no_distribution_are_refused(weights):
    with pytest.raises(ValueError, match="expected weights from 0, at least one above 0"):
        Chance.of(weights)
