"""Rows: references, empty texts, arguments, signatures and errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_lmgate import __version__
from pytest_lmgate.errors import ConfigError, MetricInputError
from pytest_lmgate.metrics.rouge.settings import RougeSettings
from tests.metrics.rouge.scoring import rouge_rows

VARIANTS = ["rouge1", "rouge2", "rougeL", "rougeLsum", "rougeW", "rougeS", "rougeS4", "rougeSU", "rougeSU4"]
CONVENTIONS = ["lin2004", "rouge-1.5.5"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("multi_reference", ["best", "average"])
@pytest.mark.parametrize(
    ("prediction", "references"),
    [("", ["the cat sat"]), ("... !!! —", ["the cat sat", "a dog"]), ("the cat", [""]), ("", ["", "\n\n"])],
)
def test_empty_texts_score_zero(variant, convention, multi_reference, prediction, references):
    rows = rouge_rows(
        [prediction], [references], variant=variant, convention=convention, multi_reference=multi_reference
    )
    assert tuple(rows.mean()) == (0, 0, 0)


def test_best_reference_has_the_best_f_and_the_first_of_equals():
    references = [["x y"], ["the cat sat on a mat", "the cat", "the cat"], ["the cat sat on a mat", "q"]]
    rows = rouge_rows(["the cat"] * 3, references, variant="rouge1")
    assert rows.chosen.tolist() == [0, 1, 0]
    assert rows.fmeasure.tolist() == [0, 1, pytest.approx(0.5)]
    assert rows.reference.tolist() == [2, 2, 6]


def test_program_takes_the_best_recall_where_the_paper_takes_the_best_f():
    references = [["a b c d e f", "c"]]
    best_f = rouge_rows(["a b c d"], references, variant="rouge1")
    best_recall = rouge_rows(["a b c d"], references, variant="rouge1", convention="rouge-1.5.5")
    assert best_f.chosen.tolist() == [0]
    assert best_recall.chosen.tolist() == [1]
    assert (best_recall.recall[0], best_recall.precision[0]) == (1, 0.25)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_average_pools_the_counts_of_all_references(convention):
    rows = rouge_rows(
        ["a b c d"], [["a b", "c x y z q"]], variant="rouge1", multi_reference="average", convention=convention
    )
    assert (rows.match[0], rows.candidate[0], rows.reference[0]) == (3, 8, 7)
    assert rows.precision[0] == 3 / 8
    assert rows.recall[0] == pytest.approx(3 / 7, abs=5e-6)
    assert rows.chosen.tolist() == [-1]


def test_mean_is_the_plain_mean_over_rows():
    rows = rouge_rows(["a b", "a"], [["a b"], ["b"]], variant="rouge1")
    assert rows.mean() == (0.5, 0.5, 0.5)
    assert len(rows.fmeasure) == 2


def test_program_has_one_l():
    texts = ["a b c\nd e", "c d\ne a"]
    one, other = (
        rouge_rows(texts[:1], [texts[1:]], variant=variant, convention="rouge-1.5.5")
        for variant in ("rougeL", "rougeLsum")
    )
    assert one.mean() == other.mean()


def test_tokenizer_defaults_to_the_conventions_own():
    assert RougeSettings.of().tokenizer_name == "unicode"
    assert RougeSettings.of(convention="rouge-1.5.5").tokenizer_name == "rouge-1.5.5"
    assert RougeSettings.of(convention="rouge-1.5.5", tokenizer="unicode").tokenizer_name == "unicode"


def test_signature_names_everything():
    assert RougeSettings.of(stemmer=True).signature == (
        f"rougeL|references:best|tokenizer:unicode|stemmer:porter-nltk|convention:lin2004|version:{__version__}"
    )
    assert RougeSettings.of(
        "rougeSU4", multi_reference="average", stemmer=str.upper, tokenizer=str.split, convention="rouge-1.5.5"
    ).signature == (
        "rougeSU4|references:average|tokenizer:str.split|stemmer:str.upper|convention:rouge-1.5.5"
        f"|version:{__version__}"
    )


def test_own_tokenizer_and_stemmer_are_used_and_short_words_left_alone():
    rows = rouge_rows(["Cats cats"], [["CATX catx"]], variant="rouge1", tokenizer=str.split, stemmer=lambda w: w[:3])
    assert rows.match[0] == 1  # "Cat" and "CAT" differ: the tokenizer keeps case
    assert rouge_rows(["abc"], [["abd"]], variant="rouge1", stemmer=lambda w: "").match[0] == 0


def test_stemming_joins_inflections():
    assert rouge_rows(["running dogs"], [["run dog"]], variant="rouge1").match[0] == 0
    assert rouge_rows(["running dogs"], [["run dog"]], variant="rouge1", stemmer=True).match[0] == 2


def test_a_tokenizer_that_returns_a_string_is_an_error():
    with pytest.raises(MetricInputError, match=r"lower.*: expected a list of strings, got 'a'"):
        rouge_rows(["a"], [["a"]], tokenizer=str.lower)


@pytest.mark.parametrize(
    "variant", ["rouge0", "rouge", "rougeX", "rougeL2", "rougeS1.5", "rougeW0.5", "ROUGE-1", "", None]
)
def test_unknown_variants_are_errors(variant):
    with pytest.raises(ConfigError, match=r"unknown ROUGE variant .*: expected rouge1, rouge2"):
        RougeSettings.of(variant)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"convention": "lin2005"}, r"unknown convention 'lin2005' \(did you mean 'lin2004'\?\)"),
        ({"tokenizer": "unicod"}, r"unknown tokenizer 'unicod' \(did you mean 'unicode'\?\)"),
        ({"multi_reference": "max"}, "unknown multi_reference 'max'"),
        ({"stemmer": "porter"}, "stemmer: expected True, False or a function"),
    ],
)
def test_unknown_names_are_errors(arguments, message):
    with pytest.raises(ConfigError, match=message):
        RougeSettings.of(**arguments)


def test_importing_loads_neither_torch_nor_nltk():
    code = (
        "import sys, pytest_lmgate.metrics.rouge\n"
        "print(sorted({'torch', 'transformers', 'nltk', 'rouge_score', 'pytest', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
