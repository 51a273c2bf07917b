"""Tokens of every script."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.metrics.rouge import tokens as module
from pytest_lmgate.metrics.rouge.porter import nltk_stem
from pytest_lmgate.metrics.rouge.tokens import TOKENIZERS, Stems

unicode_tokens = TOKENIZERS["unicode"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Don't e-mail foo_bar: 3.14!", ["don", "t", "e", "mail", "foo", "bar", "3", "14"]),
        ("Le CAFÉ naïve", ["le", "café", "naïve"]),
        ("류현진이 공을, 던졌다.", ["류현진이", "공을", "던졌다"]),
        ("2001년에 AMD의 0.54%", ["2001년에", "amd의", "0", "54"]),
        ("我去GPU店，买2个。", ["我", "去", "gpu", "店", "买", "2", "个"]),
        ("データ・カードを々", ["デ", "ー", "タ", "カ", "ー", "ド", "を", "々"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("น้ำใจ", ["น้", "ำ", "ใ", "จ"]),
        ("می‌خواهم", ["میخواهم"]),
        ("co\u00adoperate\u200bnow", ["cooperate", "now"]),
        ("葛\U000e0100城", ["葛", "城"]),
        ("ΟΔΥΣΣΕΥΣ Über", ["οδυσσευς", "über"]),
        ("🙂 … —", []),
        ("", []),
    ],
)
def test_unicode_tokens(text, tokens):
    assert unicode_tokens(text) == tokens


@given(st.text(st.characters(max_codepoint=127)))
def test_unicode_equals_rouge_score_on_ascii(text):
    assert unicode_tokens(text) == TOKENIZERS["rouge-score"](text) == TOKENIZERS["rouge-1.5.5"](text)


@given(st.text())
def test_canonically_equivalent_texts_have_equal_tokens(text):
    assert unicode_tokens(unicodedata.normalize("NFD", text)) == unicode_tokens(unicodedata.normalize("NFC", text))


def test_no_letter_or_digit_is_lost_and_nothing_else_is_a_token():
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        tokens = unicode_tokens(f"!{character}!")
        kind = unicodedata.category(character)
        if kind[0] not in "LN" and kind != "Cn" and unicodedata.category(character.lower()[0])[0] not in "LN":
            assert tokens == [], hex(code)
        elif kind[0] in "LN" and not unicodedata.name(character, "").startswith(("HANGUL", "HALFWIDTH HANGUL FILLER")):
            assert len("".join(tokens)) >= 1, hex(code)


def test_program_lower_cases_ascii_alone():
    assert TOKENIZERS["rouge-1.5.5"]("İK \u212a A") == ["k", "a"]
    assert TOKENIZERS["rouge-score"]("İK \u212a A") == ["i", "k", "k", "a"]


def test_stems_are_right_however_few_are_kept(monkeypatch):
    monkeypatch.setattr(module, "_MOST_KEPT", 3)
    words, stems = ["running", "runs", "nations", "national", "cats", "ran"] * 3, Stems(nltk_stem)
    for word in words:
        assert stems[word] == (nltk_stem(word) if len(word) > 3 else word)
        assert len(stems) <= 3
