"""``convention="rouge-1.5.5"`` against the Perl program's own scores and counts, digit for digit."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_lmgate.metrics.porter import program_stem
from pytest_lmgate.metrics.rouge import TOKENIZERS
from tests.metrics.nltk_alone import RougeScorer
from tests.metrics.rouge_rows import Rows, rouge_rows

pytestmark = pytest.mark.shared

NAMES = {f"ROUGE-{name}": f"rouge{name}" for name in ("1", "2", "3", "L", "S4", "SU4")}
NAMES |= {"ROUGE-W-1.2": "rougeW", "ROUGE-S*": "rougeS", "ROUGE-SU*": "rougeSU"}
MODES = {"single": "best", "multi_A": "average", "multi_B": "best"}
# The entries of the program's WordNet table that decide rows of the oracles: irregular English, not the table itself.
IRREGULAR = {
    **{"been": "be", "came": "come", "drove": "drive", "found": "find", "knew": "know", "said": "say", "told": "tell"},
    **{"went": "go", "were": "be", "written": "write", "tying": "tie"},
    **{"children": "child", "oxen": "ox", "better": "good"},
}


def with_irregular_forms(word: str) -> str:
    return IRREGULAR.get(word) or program_stem(word)


def pairs_of(shared_data: Path, name: str) -> list[dict]:
    return json.loads((shared_data / "oracles/rouge" / name).read_text(encoding="utf-8"))["pairs"]


def computed(pair: dict, mode: str, metric: str, **arguments: object) -> Rows:
    references = ["\n".join(reference) for reference in pair["references"]]
    how = {"variant": NAMES[metric], "multi_reference": MODES[mode], "convention": "rouge-1.5.5", **arguments}
    return rouge_rows(["\n".join(pair["candidate"])], [references[:1] if mode == "single" else references], **how)


def differences(pair: dict, stemming: str, **arguments: object) -> list[str]:
    """Compare every printed figure and count of a pair; the program itself died on some."""
    found = []
    for mode, metrics in pair["scores"][stemming].items():
        assert set(metrics) == set(NAMES)
        for metric, printed in metrics.items():
            rows = computed(pair, mode, metric, **arguments)
            if "died" in printed:
                assert rows.mean() == (0, 0, 0)
                continue
            scores = {"R": rows.recall[0], "P": rows.precision[0], "F": rows.fmeasure[0]}
            counts = {"model": rows.reference[0], "peer": rows.candidate[0], "hit": rows.match[0]}
            if any(scores[key] != printed[key] for key in scores) or counts != pytest.approx(printed["counts"]):
                found.append(f"{pair['id']} {mode} {metric}: {scores} {counts}, printed {printed}")
    return found


def test_every_pair_without_stemming_equals_the_program(shared_data):
    pairs = pairs_of(shared_data, "rouge155_clean.json")
    assert len(pairs) == 73
    assert [line for pair in pairs for line in differences(pair, "nostem")] == []


def test_korean_pairs_equal_the_programs_unicode_variant(shared_data):
    pairs = pairs_of(shared_data, "rouge155_unicode_ko.json")
    assert len(pairs) == 40
    for stemming in ("nostem", "stem"):
        how = {"tokenizer": "unicode", "stemmer": stemming == "stem"}
        assert [line for pair in pairs for line in differences(pair, stemming, **how)] == []


def test_pairs_with_stemming_differ_only_where_an_irregular_form_stands(shared_data):
    pairs = pairs_of(shared_data, "rouge155_clean.json")
    differing = [pair for pair in pairs if differences(pair, "stem", stemmer=True)]
    assert len(differing) == 13
    for pair in differing:
        texts = [pair["candidate"], *pair["references"]]
        words = {word for text in texts for line in text for word in TOKENIZERS["rouge-1.5.5"](line)}
        assert words & IRREGULAR.keys(), pair["id"]


def test_every_pair_with_stemming_equals_the_program_given_the_irregular_forms(shared_data):
    pairs = pairs_of(shared_data, "rouge155_clean.json")
    assert [line for pair in pairs for line in differences(pair, "stem", stemmer=with_irregular_forms)] == []


def test_googles_250_pairs_equal_the_program(shared_data):
    oracle = json.loads((shared_data / "oracles/rouge/rouge155_google250.json").read_text(encoding="utf-8"))
    predictions = ["\n".join(pair["candidate"]) for pair in oracle["pairs"]]
    references = [["\n".join(pair["reference"])] for pair in oracle["pairs"]]
    scores = oracle["scores"]["stem"]
    assert len(scores["eval"]) == 7
    how = {"stemmer": with_irregular_forms, "convention": "rouge-1.5.5"}
    for metric, printed in scores["eval"].items():
        rows = rouge_rows(predictions, references, variant=NAMES[metric], **how)
        assert list(map(list, zip(rows.recall, rows.precision, rows.fmeasure, strict=True))) == printed, metric
        # The program prints bootstrap means, random: the plain means lie well inside its intervals.
        for key, mean in zip("PRF", rows.mean(), strict=True):
            middle, low, high = scores["average"][metric][key]
            assert mean == pytest.approx(middle, abs=(high - low) / 10), (metric, key)


# The default convention against Google's rouge-score 0.1.2, given its tokenizer.


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
# Sentences whose subsequences can be taken in many ways, and words that a union holds more often than the candidate.
SENTENCES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=8).map(" ".join)
OF_FEW_WORDS = st.lists(SENTENCES, max_size=5).map("\n".join)


def assert_equal(predictions: list[str], references: list[list[str]], *, stemmer: bool) -> None:
    scorer = RougeScorer(VARIANTS, use_stemmer=stemmer)
    theirs = [scorer.score_multi(options, text) for text, options in zip(predictions, references, strict=True)]
    for variant in VARIANTS:
        ours = rouge_rows(predictions, references, variant=variant, stemmer=stemmer, tokenizer="rouge-score")
        wanted = list(zip(*(row[variant] for row in theirs), strict=True))
        assert [*ours[:3]] == [pytest.approx(want, abs=1e-9) for want in wanted], variant


@settings(max_examples=100)
@given(st.one_of(*(st.lists(each, min_size=2, max_size=4) for each in (TEXTS, OF_FEW_WORDS))), st.booleans())
def test_random_texts_score_as_in_rouge_score(texts, stemmer):
    assert_equal(texts[:1], [texts[1:]], stemmer=stemmer)


@pytest.mark.parametrize("name", ["wiki.test.raw", "ko_gsd_test.txt", "zh_gsdsimp_test.txt"])
@pytest.mark.parametrize("stemmer", [False, True])
def test_running_text_scores_as_in_rouge_score(shared_data, name, stemmer):
    text = (shared_data / "text" / name).read_text(encoding="utf-8")
    pieces = [text[start : start + 600].replace(" . ", " .\n") for start in range(0, 60_000, 600)]
    assert_equal(pieces[:-1], [[piece] for piece in pieces[1:]], stemmer=stemmer)
