"""Figures that can be checked by hand, most of them printed in Lin 2004."""

from __future__ import annotations

import pytest

from tests.metrics.rouge.scoring import rouge_rows


def f1(prediction: str, *references: str, variant: str, **arguments: object) -> float:
    return rouge_rows([prediction], [references], variant=variant, **arguments).mean()[2]


POLICE = "police killed the gunman"


@pytest.mark.parametrize(
    ("candidate", "rouge_2", "rouge_l", "rouge_s"),
    [
        ("police kill the gunman", 1 / 3, 3 / 4, 3 / 6),
        ("the gunman kill police", 1 / 3, 2 / 4, 1 / 6),
        ("the gunman police killed", 2 / 3, 2 / 4, 2 / 6),
        ("gunman the killed police", 0, 1 / 4, 0),
    ],
)
def test_police_and_gunman_of_lin_2004(candidate, rouge_2, rouge_l, rouge_s):
    assert f1(candidate, POLICE, variant="rouge2") == pytest.approx(rouge_2)
    assert f1(candidate, POLICE, variant="rougeL") == pytest.approx(rouge_l)
    assert f1(candidate, POLICE, variant="rougeS") == pytest.approx(rouge_s)


def test_weighted_subsequence_prefers_consecutive_matches_as_in_lin_2004():
    reference = "a b c d e f g"
    assert f1("a b c d h i k", reference, variant="rougeW2") == pytest.approx(0.571, abs=5e-4)
    assert f1("a h b k c i d", reference, variant="rougeW2") == pytest.approx(0.286, abs=5e-4)
    assert f1("a h b k c i d", reference, variant="rougeL") == f1("a b c d h i k", reference, variant="rougeL")


def test_weight_is_the_power_1_2_unless_named():
    # one run of two in three words: f^-1(2^1.2 / 3^1.2) = 2/3; two runs of one: (2 / 3^1.2)^(1/1.2)
    assert f1("a b x", "a b y", variant="rougeW") == pytest.approx(2 / 3)
    assert f1("a x b", "a y b", variant="rougeW") == pytest.approx((2 / 3**1.2) ** (1 / 1.2))
    assert f1("a x b", "a y b", variant="rougeW1.2") == f1("a x b", "a y b", variant="rougeW")


def test_union_of_subsequences_over_sentences_of_lin_2004():
    # LCS with the first sentence is w1 w2, with the second w1 w3 w5: the union holds 4 of 5 words
    rows = rouge_rows(["w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5"], [["w1 w2 w3 w4 w5"]], variant="rougeLsum")
    assert (rows.match[0], rows.candidate[0], rows.reference[0]) == (4, 10, 5)
    assert rows.recall[0] == pytest.approx(4 / 5)


def test_skip_bigrams_with_a_limited_gap():
    # gap 0: a b, b c, c d of 3 against a c, c b, b d: none; gap 1 adds a c, b d against a b, c d
    assert f1("a b c d", "a c b d", variant="rougeS0") == 0
    rows = rouge_rows(["a b c d"], [["a c b d"]], variant="rougeS1")
    assert (rows.match[0], rows.candidate[0], rows.reference[0]) == (4, 5, 5)
    rows = rouge_rows(["a b c d"], [["a c b d"]], variant="rougeSU1")
    assert (rows.match[0], rows.candidate[0], rows.reference[0]) == (8, 9, 9)


def test_repeated_words_count_no_more_often_than_in_the_reference():
    rows = rouge_rows(["the the the the the the the"], [["the cat is on the mat"]], variant="rouge1")
    assert (rows.precision[0], rows.recall[0]) == (pytest.approx(2 / 7), pytest.approx(2 / 6))


VARIANTS = ["rouge1", "rouge2", "rougeL", "rougeLsum", "rougeW", "rougeS", "rougeS4", "rougeSU", "rougeSU4"]
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "류현진이 공을 던졌다.",
    "我们今天去公园散步。",
    "今日はとてもいい天気ですね。",
    "ราคาน้ำมันลดลงวันนี้",
    "आज मौसम बहुत अच्छा है।",
    "Сегодня очень хорошая погода.",
    "الطقس جميل اليوم جدا",
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("text", TEXTS)
def test_identical_texts_score_exactly_one_in_any_script(variant, text):
    assert tuple(rouge_rows([text], [[text]], variant=variant).mean()) == (1.0, 1.0, 1.0)


def test_korean_word_order_pair_is_zero_in_pairs_and_above_zero_with_unigrams():
    candidate, reference = "던졌다 공을, 류현진이.", "류현진이 공을 던졌다."
    assert f1(candidate, reference, variant="rougeS") == 0
    assert f1(candidate, reference, variant="rougeSU") == pytest.approx(3 / 6)
    assert f1(candidate, reference, variant="rougeSU", convention="rouge-1.5.5", tokenizer="unicode") > 0
    assert f1(candidate, reference, variant="rouge1") == 1


def test_rouge_score_tokens_make_identical_korean_texts_score_zero():
    assert f1("류현진이 공을 던졌다.", "류현진이 공을 던졌다.", variant="rouge1", tokenizer="rouge-score") == 0


def test_program_leaves_out_the_last_unigram_and_weighs_the_reference_twice():
    rows = rouge_rows(["cat sat"], [["cat sat"]], variant="rougeSU", convention="rouge-1.5.5")
    assert (rows.match[0], rows.candidate[0], rows.reference[0]) == (2, 2, 2)  # the pair, and one unigram of two
    rows = rouge_rows(["cat sat"], [["cat sat"]], variant="rougeW", convention="rouge-1.5.5")
    assert rows.reference[0] == pytest.approx((2**1.2) ** 1.2)
    assert rows.precision[0] == 1
    assert rows.recall[0] == round((2**1.2 / (2**1.2) ** 1.2) ** (1 / 1.2), 5)
