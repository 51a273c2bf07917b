"""The default convention against Google's rouge-score 0.1.2, given its tokenizer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from tests.metrics.rouge.scoring import rouge_rows

VARIANTS = ["rouge1", "rouge2", "rouge3", "rougeL", "rougeLsum"]

# Few words, so that texts overlap; endings, so that the stemmer has work; breaks, so that there are sentences.
ENDINGS = st.sampled_from(["", "s", "ed", "ing", "ies", "ation", "fulness", "ly", "y", "logy", "ement", "izer"])
WORDS = st.one_of(
    st.sampled_from(["a", "the", "cat", "sat", "Mat", "it's", "e-mail", "3.14", "dies", "news", "café", "고양이"]),
    st.builds("".join, st.tuples(st.sampled_from(["hop", "tri", "agree", "Rel", "contr", "sky", "geo"]), ENDINGS)),
)
SEPARATORS = st.sampled_from([" ", " ", " ", ", ", "\n", ".\n", "\n\n", " \n "])
TEXTS = st.one_of(
    st.lists(st.tuples(WORDS, SEPARATORS), max_size=30).map(lambda pieces: "".join(map("".join, pieces))), st.text()
)


def assert_equal(predictions: list[str], references: list[list[str]], *, stemmer: bool) -> None:
    scorer = RougeScorer(VARIANTS, use_stemmer=stemmer)
    theirs = [scorer.score_multi(options, text) for text, options in zip(predictions, references, strict=True)]
    for variant in VARIANTS:
        ours = rouge_rows(predictions, references, variant=variant, stemmer=stemmer, tokenizer="rouge-score")
        wanted = list(zip(*(row[variant] for row in theirs), strict=True))
        for name, values, want in zip(
            ("P", "R", "F"), (ours.precision, ours.recall, ours.fmeasure), wanted, strict=True
        ):
            assert values == pytest.approx(want, abs=1e-9), (variant, name)


@settings(deadline=None, max_examples=300)
@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3), st.booleans())
def test_random_texts_score_as_in_rouge_score(prediction, references, stemmer):
    assert_equal([prediction], [references], stemmer=stemmer)


@pytest.mark.shared
@pytest.mark.parametrize("stemmer", [False, True])
def test_stories_score_as_in_rouge_score(shared_data, stemmer):
    rows = (shared_data / "text/tinystories_150.jsonl").read_text(encoding="utf-8").splitlines()
    lines = [json.loads(row)["text"].replace(". ", ".\n") for row in rows]
    references = [[lines[(row + 1) % 40], lines[(row + 7) % 40]] for row in range(40)]
    assert_equal(lines[:40], references, stemmer=stemmer)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["wiki.test.raw", "ko_gsd_test.txt", "zh_gsdsimp_test.txt"])
@pytest.mark.parametrize("stemmer", [False, True])
def test_running_text_scores_as_in_rouge_score(shared_data, name, stemmer):
    text = (shared_data / "text" / name).read_text(encoding="utf-8")
    pieces = [text[start : start + 600].replace(" . ", " .\n") for start in range(0, 60_000, 600)]
    assert_equal(pieces[:-1], [[piece] for piece in pieces[1:]], stemmer=stemmer)


@pytest.mark.shared
@pytest.mark.parametrize("stemmer", [False, True])
def test_pairs_of_the_program_score_as_in_rouge_score(shared_data, stemmer):
    pairs = json.loads((shared_data / "oracles/rouge/rouge155_clean.json").read_text(encoding="utf-8"))["pairs"]
    predictions = ["\n".join(pair["candidate"]) for pair in pairs]
    assert_equal(predictions, [["\n".join(ref) for ref in pair["references"]] for pair in pairs], stemmer=stemmer)
