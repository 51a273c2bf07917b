"""Both dialects of Porter's stemmer."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.stem.porter import PorterStemmer

from pytest_lmgate.metrics.rouge.porter import nltk_stem, program_stem

NLTK = PorterStemmer()
PIECES = [
    *["s", "es", "sses", "ies", "ied", "ss", "eed", "ed", "ing", "at", "bl", "iz", "ll", "tt", "y", "yy", "st", "7"],
    *["ational", "tional", "enci", "anci", "izer", "bli", "alli", "entli", "eli", "ousli", "ization", "ation", "ator"],
    *["alism", "iveness", "fulness", "ousness", "aliti", "iviti", "biliti", "logi", "logy", "fulli", "ly"],
    *["icate", "ative", "alize", "iciti", "ical", "ful", "ness", "al", "ance", "ence", "er", "ic", "able", "ible"],
    *["ant", "ement", "ment", "ent", "ion", "sion", "tion", "ou", "ism", "ate", "iti", "ous", "ive", "ize"],
    *["a", "e", "i", "o", "u", "b", "c", "l", "t", "w", "x"],
]
WORDS = st.one_of(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join),
    st.text("abcdefghijklmnopqrstuvwxyz0123456789é", min_size=1, max_size=10),
)


@settings(deadline=None, max_examples=3000)
@given(WORDS)
def test_random_words_stem_as_in_nltk(word):
    assert nltk_stem(word) == NLTK.stem(word)


@pytest.mark.parametrize("word", ["skies", "dying", "news", "innings", "cannings", "howe", "succeed", "spied", "died"])
def test_exceptional_words_stem_as_in_nltk(word):
    assert nltk_stem(word) == NLTK.stem(word)


@pytest.mark.shared
def test_words_of_real_text_stem_as_in_nltk(shared_data):
    words = set(re.findall("[a-z0-9]+", (shared_data / "text/wiki.test.raw").read_text(encoding="utf-8").lower()))
    assert len(words) > 15_000
    assert [word for word in words if nltk_stem(word) != NLTK.stem(word)] == []


@pytest.mark.parametrize(
    ("word", "stem"),
    [
        # Porter 1980's own examples that both dialects share
        *[("caresses", "caress"), ("ponies", "poni"), ("agreed", "agre"), ("hopping", "hop"), ("filing", "file")],
        *[("relational", "relat"), ("vietnamization", "vietnam"), ("triplicate", "triplic"), ("adoption", "adopt")],
        *[("controll", "control"), ("probate", "probat"), ("rate", "rate"), ("cease", "ceas")],
        # where the program goes its own way: y, four-letter -ies, and suffixes stripped in turn
        *[("enjoy", "enjoi"), ("dies", "di"), ("tries", "tri"), ("fundamental", "fundam")],
    ],
)
def test_program_stems_by_hand(word, stem):
    assert program_stem(word) == stem
