"""Options of the metrics: wrong ones are told at once, and what changes a number is in its signature."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.errors import ConfigError
from pytest_lmgate.metrics.texts import TextMetric, bleu, chrf, exact, rouge, ter, text_score


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (bleu, {"max_ngram_order": 0}, "max_ngram_order to be a whole number from 1, got 0"),
        (bleu, {"max_ngram_order": 4.0}, "max_ngram_order to be a whole number from 1, got 4.0"),
        (bleu, {"max_ngram_order": True}, "max_ngram_order to be a whole number from 1, got True"),
        (bleu, {"tokenize": "13"}, r"tokenize to be one of 13a, .*, zh; got '13' \(did you mean '13a'\?\)"),
        (bleu, {"tokenize": None}, "tokenize to be one of .* got None"),
        (bleu, {"smooth_method": "flor"}, r"smooth_method to be one of add-k, exp, floor, none; .*'floor'\?"),
        (bleu, {"smooth_value": 0.1}, "smooth_value is of smooth_method 'floor' or 'add-k' only, got 'exp'"),
        (bleu, {"smooth_value": 0, "smooth_method": "add-k"}, "smooth_value to be a number above 0, got 0"),
        (
            bleu,
            {"smooth_value": float("nan"), "smooth_method": "floor"},
            "smooth_value to be a number above 0 or 0, got nan",
        ),
        (bleu, {"lowercase": "no"}, "lowercase to be true or false, got 'no'"),
        (bleu, {"effective_order": 1}, "effective_order to be true or false, got 1"),
        (chrf, {"char_order": -1}, "char_order to be a whole number from 0, got -1"),
        (chrf, {"word_order": "2"}, "word_order to be a whole number from 0, got '2'"),
        (chrf, {"char_order": 0}, "char_order or word_order above 0, got 0 for both"),
        (chrf, {"beta": -2}, "beta to be a number above 0, got -2"),
        (chrf, {"whitespace": 1}, "whitespace to be true or false, got 1"),
        (ter, {"normalized": "yes"}, "normalized to be true or false, got 'yes'"),
        (exact, {"ignore_case": "yes"}, "ignore_case to be true or false, got 'yes'"),
        (exact, {"strip": None}, "strip to be true or false, got None"),
        (rouge, {"variant": "rougel"}, "rougeL"),
        (rouge, {"stemmer": "yes"}, "stemmer: expected True, False"),
    ],
)
def test_wrong_options_are_told_with_what_is_right(
    make: Callable[..., TextMetric], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("tokenize", "absent", "install"),
    [
        ("ja-mecab", "MeCab", r"pip install 'sacrebleu\[ja\]'"),
        ("ko-mecab", "mecab_ko", r"pip install 'sacrebleu\[ko\]'"),
        ("flores200", "sentencepiece", "pip install sentencepiece"),
    ],
)
def test_a_tokenizer_that_is_not_installed_names_its_extra(
    tokenize: str, absent: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ConfigError, match=f"tokenize='{tokenize}' needs {absent}.*{install}"):
        bleu(tokenize=tokenize)


def test_a_tokenizers_model_is_never_fetched_from_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = types.ModuleType("sentencepiece")
    stand_in.__spec__ = ModuleSpec("sentencepiece", None)
    monkeypatch.setitem(sys.modules, "sentencepiece", stand_in)
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no file .*flores200sacrebleuspm; .*BLEU\(tokenize='flores200'\)"):
        bleu(tokenize="flores200")
    assert not list(tmp_path.iterdir())


def test_what_changes_the_number_is_in_the_signature() -> None:
    usual = bleu().signature
    assert usual.startswith("BLEU|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert bleu(max_ngram_order=2).signature == f"{usual}|max_ngram_order:2"
    # sacrebleu's own signature rounds this one to floor[0.00].
    assert bleu(smooth_method="floor", smooth_value=0.001).signature.endswith("|smooth_value:0.001")
    assert not bleu(smooth_method="floor", smooth_value=0.25).signature.endswith("0.25")
    assert chrf(beta=3, word_order=2).signature.startswith("chrF3++|")
    made = [
        *(bleu(max_ngram_order=order) for order in (1, 2, 3, 4)),
        bleu(tokenize="intl"),
        bleu(lowercase=True),
        bleu(effective_order=True),
        *(bleu(smooth_method="floor", smooth_value=value) for value in (0.001, 0.002, 0.1)),
        *(chrf(**option) for option in ({}, {"beta": 0.5}, {"char_order": 5}, {"whitespace": True})),
        *(chrf(**option) for option in ({"word_order": 1}, {"lowercase": True}, {"eps_smoothing": True})),
        *(ter(**{option: True}) for option in ("normalized", "no_punct", "asian_support", "case_sensitive")),
        *(exact(**option) for option in ({}, {"ignore_case": True}, {"ignore_punctuation": True}, {"strip": False})),
        *(rouge(variant, stemmer=stemmer) for variant in ("rouge1", "rougeL") for stemmer in (True, False)),
        *(rouge(multi_reference="average"), rouge(tokenizer="rouge-score"), rouge(convention="rouge-1.5.5")),
    ]
    assert len({metric.signature for metric in made}) == len(made)


def test_effective_order_leaves_out_orders_that_are_too_long() -> None:
    assert text_score(bleu(), ["a b"], [["a b"]]) == 0
    assert text_score(bleu(effective_order=True), ["a b"], [["a b"]]) == pytest.approx(100)


def test_a_floor_of_zero_is_sacrebleus_own() -> None:
    from sacrebleu import BLEU

    # No four-gram in common: with a floor of 0 the score is 0, with the default of 0.1 it is not.
    predictions, references = ["the cat sat down", "a b c d e f"], ["the dog sat down", "a b c x y z"]
    for value in (0, 0.0, 0.1):
        metric = bleu(smooth_method="floor", smooth_value=value)
        theirs = BLEU(smooth_method="floor", smooth_value=value).corpus_score(predictions, [references])
        assert float(text_score(metric, predictions, [[each] for each in references])) == theirs.score
        assert (theirs.score == 0) == (value == 0)
