"""The gates of what the writer writes, and of what it takes for the right way to go on.

One generation serves all three metrics of its texts. The tests from `HELLO` on need no model: these metrics take texts.
"""

import json
from pathlib import Path
from random import Random

import pytest
from weather.references import held_out_records
from weather.wording import word

HELLO = [json.loads(row) for row in (Path(__file__).parent / "data" / "hello.jsonl").read_text("utf-8").splitlines()]
"""Sentences, each with a changed one beside it and how many of its words (Chinese: characters) that keeps."""


@pytest.mark.bleu_min("writer", "records", 80)
@pytest.mark.chrf_min("writer", "records", 68)
@pytest.mark.rouge_min("writer", "records", 0.68, "rougeL")
def test_the_writer_is_good_enough():
    pass


@pytest.mark.accuracy_min("writer", "quiz", 0.95)
def test_the_writer_knows_what_the_note_says():
    pass


@pytest.fixture(scope="module")
def references() -> list[list[str]]:
    return [bulletins for _, bulletins in held_out_records()]


@pytest.fixture(scope="module")
def others() -> list[str]:
    """A further right bulletin of each record, worded at random as its references are."""
    random = Random(6)
    return [word(record, random)[0] for record, _ in held_out_records()]


def test_the_writer_is_nearer_to_the_references_than_another_right_bulletin(bleu_of, rouge_of, references, others):
    # It chooses the likeliest words, and so what the references are most likely to hold.
    assert bleu_of("writer", "records") > bleu_of(predictions=others, references=references)
    assert rouge_of("writer", "records") > rouge_of(predictions=others, references=references)


def test_one_reference_would_call_a_right_bulletin_half_wrong(bleu_of, references, others):
    first = [bulletins[:1] for bulletins in references]
    assert bleu_of(predictions=others, references=first) < 50
    assert bleu_of(predictions=others, references=references) > 80


@pytest.mark.parametrize("row", HELLO)
def test_identical_texts_have_the_full_score_in_any_script(row, rouge_of, exact_of, bleu_of, chrf_of):
    same = {"predictions": [row["text"]], "references": [[row["changed"], row["text"]]]}
    assert rouge_of(**same, variant="rouge1") == rouge_of(**same, variant="rougeL") == exact_of(**same) == 1
    assert bleu_of(**same, tokenize="char") == pytest.approx(100)
    assert chrf_of(**same) == pytest.approx(100)


@pytest.mark.parametrize("row", HELLO)
def test_rouge_counts_korean_words_and_chinese_characters(row, rouge_of, bleu_of, chrf_of):
    changed = {"predictions": [row["changed"]], "references": [[row["text"]]]}
    assert rouge_of(**changed, variant="rouge1") == pytest.approx(row["kept"] / row["of"])
    assert 0 < bleu_of(**changed, tokenize="char") < 99
    assert 0 < chrf_of(**changed) < 99


def test_of_a_korean_sentence_turned_round_only_its_words_are_kept(rouge_of):
    turned = {"predictions": ["던졌다 공을, 류현진이."], "references": [["류현진이 공을 던졌다."]]}
    assert rouge_of(**turned, variant="rougeS") == 0
    # All three words, of three words and three pairs.
    assert rouge_of(**turned, variant="rougeSU") == pytest.approx(3 / 6)
