"""Figures of the literature and hand computations."""

from __future__ import annotations

import math

import pytest

from pytest_lmgate.metrics.texts import bleu, chrf, exact, rouge, ter, text_score

# Papineni et al. 2002, section 2, in lower case and without the full stop.
CANDIDATE_1 = "it is a guide to action which ensures that the military always obeys the commands of the party"
CANDIDATE_2 = "it is to insure the troops forever hearing the activity guidebook that party direct"
PARTY = [
    "it is a guide to action that ensures that the military will forever heed party commands",
    "it is the guiding principle which guarantees the military forces always being under the command of the party",
    "it is the practical guide for the army always to heed the directions of the party",
]
CATS = ["the cat is on the mat", "there is a cat on the mat"]


def _precisions(output: str, references: list[str], order: int) -> list[float]:
    metric = bleu(max_ngram_order=order, tokenize="none")
    return text_score(metric, [output], [references]).details["precisions"]


@pytest.mark.parametrize(
    ("output", "references", "precisions"),
    [
        (CANDIDATE_1, PARTY, [17 / 18, 10 / 17]),
        (CANDIDATE_2, PARTY, [8 / 14, 1 / 13]),
        # Clipping: a reference holds "the" twice at most, so 2 of 7 count, not 7 of 7.
        ("the the the the the the the", CATS, [2 / 7]),
        # "the cat" counts once of twice, "cat the" not at all: 4 of 6 bigrams.
        ("the cat the cat on the mat", CATS, [5 / 7, 4 / 6]),
    ],
    ids=["candidate 1", "candidate 2", "the the the", "the cat the cat"],
)
def test_modified_precision_is_that_of_the_literature(
    output: str, references: list[str], precisions: list[float]
) -> None:
    assert _precisions(output, references, len(precisions)) == pytest.approx([100 * p for p in precisions])


def test_bleu_is_the_brevity_penalty_times_the_geometric_mean_of_precisions() -> None:
    # 3 of 3 unigrams, 2 of 2 bigrams; the closest of the lengths 5 and 9 is 5: exp(1 - 5/3).
    references = [["a b c d e", "a b c d e f g h i"]]
    score = text_score(bleu(max_ngram_order=2, tokenize="none"), ["a b c"], references)
    assert score == pytest.approx(100 * math.exp(1 - 5 / 3))
    assert score.details["bp"] == pytest.approx(math.exp(1 - 5 / 3))
    assert (score.details["sys_len"], score.details["ref_len"]) == (3, 5)


@pytest.mark.parametrize(
    ("method", "value", "bigrams"),
    [
        ("none", None, 0),
        ("exp", None, 1 / 2),
        ("floor", None, 0.1),
        ("floor", 0.03, 0.03),
        ("add-k", None, (0 + 1) / (1 + 1)),
        ("add-k", 2.5, (0 + 2.5) / (1 + 2.5)),
    ],
)
def test_smoothing_gives_an_order_without_a_match_its_share(method: str, value: float | None, bigrams: float) -> None:
    # One of two unigrams matches, and not the only bigram (Chen and Cherry 2014).
    metric = bleu(max_ngram_order=2, tokenize="none", smooth_method=method, smooth_value=value)
    assert text_score(metric, ["a b"], [["a c"]]) == pytest.approx(100 * math.sqrt(1 / 2 * bigrams))


def test_ter_counts_a_shift_as_one_edit() -> None:
    # Moving "a" to the front is one edit of four words, where Levenshtein would count two (Snover et al. 2006).
    score = text_score(ter(), ["b c d a"], [["a b c d"]])
    assert score == pytest.approx(25)
    assert score.details["edits"] == 1
    # Against two references the edits to the closer one, over the mean of their lengths.
    assert text_score(ter(), ["a b"], [["a c", "x y z w"]]) == pytest.approx(100 * 1 / 3)


def test_chrf_is_the_f_of_its_precision_and_recall() -> None:
    # Unigrams of "ab" in "abcd": P 1, R 1/2; bigrams: P 1, R 1/3. P = 1, R = 5/12, b = 2.
    score = text_score(chrf(char_order=2), ["ab"], [["abcd"]])
    assert score.details["precision"] == pytest.approx(100)
    assert score.details["recall"] == pytest.approx(100 * 5 / 12)
    assert score == pytest.approx(100 * 5 * (5 / 12) / (4 + 5 / 12))


@pytest.mark.parametrize(
    "text",
    ["류현진이 공을 던졌다.", "기계 번역의 품질을 평가하는 것은 어려운 문제이다.", "今天天气很好，我们去公园散步吧。"],
    ids=["Korean", "longer Korean", "Chinese"],
)
def test_identical_texts_of_any_script_are_perfect(text: str) -> None:
    tokenize = "zh" if text.startswith("今") else "13a"
    for metric in (
        bleu(tokenize=tokenize),
        bleu(tokenize="char"),
        chrf(),
        chrf(word_order=2),
        exact(),
        *(rouge(variant) for variant in ("rouge1", "rouge2", "rougeL", "rougeLsum", "rougeW", "rougeS", "rougeSU4")),
    ):
        assert text_score(metric, [text], [[text]]) == pytest.approx(metric.scale), metric.signature
    assert text_score(ter(), [text], [[text]]) == 0


def test_rouge_keeps_precision_and_recall() -> None:
    # A subsequence of 3 words: P 3/3, R 3/6, F 2/3; the second row shares nothing.
    score = text_score(rouge("rougeL"), ["the cat sat", "x"], [["the cat really sat on it"], ["y"]])
    assert score == pytest.approx(1 / 3)
    assert score.details["precision"] == pytest.approx(1 / 2)
    assert score.details["recall"] == pytest.approx(1 / 4)
    assert score.details["f"] == score
    assert score.metric == "rougeL"
    assert score.signature.startswith("rougeL|nrefs:1|")


def test_rouge_options_reach_the_computation() -> None:
    texts = (["류현진이 공을"], [["류현진이 공을", "x"]])
    assert text_score(rouge(tokenizer="rouge-score"), *texts) == 0
    assert text_score(rouge(multi_reference="average"), *texts) < 1
    assert text_score(rouge("rouge1", stemmer=True), ["the words"], [["the word"]]) == 1
    assert "convention:rouge-1.5.5" in text_score(rouge(convention="rouge-1.5.5"), *texts).signature


@pytest.mark.parametrize(
    ("options", "output", "reference", "matches"),
    [
        ({}, " Paris \n", "Paris", True),
        ({"strip": False}, " Paris", "Paris", False),
        ({}, "paris", "Paris", False),
        ({"ignore_case": True}, "STRASSE", "Straße", True),
        ({}, "Paris.", "Paris", False),
        ({"ignore_punctuation": True}, "«Paris!» $", "Paris", True),
        ({"ignore_punctuation": True}, "你好，世界。", "你好世界", True),
        ({"ignore_punctuation": True}, "well known", "wellknown", False),
        ({"ignore_case": True}, "Paris.", "paris", False),
    ],
)
def test_exact_match_ignores_what_it_is_told_to_and_nothing_else(
    options: dict[str, bool], output: str, reference: str, matches: bool
) -> None:
    score = text_score(exact(**options), [output, "no"], [[reference], ["yes"]])
    assert score == (0.5 if matches else 0)
    assert score.details["matches"] == int(matches)


def test_exact_match_takes_any_reference() -> None:
    score = text_score(exact(), ["b", "d"], [["a", "b"], ["c"]])
    assert score == 0.5
    assert score.signature == "exact|nrefs:var|case:mixed|punct:yes|strip:yes"


def test_an_empty_output_everywhere_scores_nothing_and_does_not_crash() -> None:
    for metric in (bleu(), bleu(smooth_method="add-k"), chrf(), chrf(eps_smoothing=True), exact(), rouge()):
        assert text_score(metric, ["", "  "], [["a b c d e"], ["f g", "h"]]) == pytest.approx(0, abs=1e-9)
    # An edit rate is lower when better: every word of the reference is missing.
    assert text_score(ter(), ["", ""], [["a b c"], ["d"]]) == 100
    for metric in (bleu(), chrf(), ter()):
        assert text_score(metric, [""], [[""]]) == 0
