from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from itertools import islice

import pytest
from tokenizers import Tokenizer

from example_project.weather.chance import Phrase
from example_project.weather.climate import DIRECTIONS, PLACE, SEASON, SKIES, WARNINGS, WINDS, celsius_chance
from example_project.weather.corpus import draw_bulletins
from example_project.weather.tokenizer import vocabulary, word_tokenizer
from example_project.weather.tokens import split
from example_project.weather.wording import (
    END,
    header,
    sky_sentence,
    temperature_sentence,
    warning_sentence,
    wind_sentence,
)

CELSIUS = range(-18, 36)


def facts() -> Iterator[tuple[Hashable, Phrase]]:
    """Yield every fact that has a sentence, with its phrase; the sky's with whether the sky before was another."""
    for season, _ in SEASON:
        for place, _ in PLACE:
            yield ("header", season, place), header(season, place)
    for index in range(4):
        for sky in SKIES:
            if index == 0:
                yield ("sky", index, sky), sky_sentence(index, None, sky)
            for before in SKIES if index else ():
                yield ("sky", index, sky), sky_sentence(index, before, sky)
    for celsius in CELSIUS:
        yield ("celsius", "day", celsius), temperature_sentence(celsius, night=False)
        yield ("celsius", "night", celsius), temperature_sentence(celsius, night=True)
    yield ("wind", "calm", None), wind_sentence("calm", None)
    for wind in WINDS[1:]:
        for direction in DIRECTIONS:
            yield ("wind", wind, direction), wind_sentence(wind, direction)
    for warning in WARNINGS:
        yield ("warning", warning), warning_sentence(warning)


def test_temperatures_tested_are_all_there_are():
    possible = {
        celsius
        for season, _ in SEASON
        for climate in ("coast", "hills", "plain")
        for sky in SKIES
        for night in (False, True)
        for celsius, _ in celsius_chance(season, climate, sky, night)
    }
    assert possible <= set(CELSIUS)


def test_no_sentence_tells_two_facts_or_arises_in_two_ways(derivations):
    """With sentences cut at their full stops, this makes the whole text readable in one way only."""
    told = defaultdict(set)
    for fact, phrase in facts():
        ways = [text for text, _ in derivations(phrase)]
        assert len(ways) == len(set(ways)), fact
        for text in ways:
            told[text].add(fact)
    assert {text: known for text, known in told.items() if len(known) > 1} == {}
    assert [text for text in told if text.count(".") != 1 or not text.endswith(".")] == []


def test_every_sentence_is_known_to_the_tokenizer_and_cut_as_the_grammar_counts_it(derivations):
    tokenizer = word_tokenizer()
    unknown = tokenizer.token_to_id("<unk>")
    sentences = [text for _, phrase in facts() for text, _ in derivations(phrase)]
    for text, encoding in zip(sentences, tokenizer.encode_batch(sentences), strict=True):
        assert unknown not in encoding.ids, text
        assert encoding.tokens == split(text)


@pytest.mark.parametrize("model", ["float", "int8", "broken", "writer", "broken-writer"])
def test_running_text_has_no_unknown_token_and_comes_back_from_its_tokens(example, model):
    tokenizer = Tokenizer.from_file(str(example / "models" / model / "tokenizer.json"))
    rows = [bulletin.text for bulletin in islice(draw_bulletins(seed=31), 1_000)]
    encoding = tokenizer.encode(END.join(rows))
    assert tokenizer.token_to_id("<unk>") not in encoding.ids
    assert tokenizer.decode(encoding.ids) == END.join(rows)
    assert len(encoding.ids) == sum(len(split(row)) for row in rows) + len(rows) - 1, "an END is one token"


def test_the_committed_tokenizer_is_the_one_the_grammar_asks_for(example):
    committed = Tokenizer.from_file(str(example / "models" / "float" / "tokenizer.json"))
    assert committed.to_str() == word_tokenizer().to_str()
    assert len(set(vocabulary())) == len(vocabulary()) == committed.get_vocab_size()


@pytest.mark.parametrize("text", ["two  spaces", " ", "an umlaut: ü", "a dash - here", "end "])
def test_text_that_is_no_bulletin_is_refused(text):
    with pytest.raises(ValueError, match="expected words, numbers, marks and newlines"):
        split(text)
