"""ROUGE: rows, worked examples, counting in the plainest way, tokens of every script, and both dialects of Porter."""

import re
import unicodedata
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_lmgate.errors import ConfigError, MetricInputError
from pytest_lmgate.metrics.porter import nltk_stem, program_stem
from pytest_lmgate.metrics.rouge import TOKENIZERS, rouge, shared_skip_bigrams, total_skip_bigrams
from pytest_lmgate.version import __version__
from tests.metrics.nltk_alone import PorterStemmer
from tests.metrics.rouge_rows import rouge_rows

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
    how = {"variant": variant, "convention": convention, "multi_reference": multi_reference}
    assert tuple(rouge_rows([prediction], [references], **how).mean()) == (0, 0, 0)


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
    how = {"variant": "rouge1", "multi_reference": "average", "convention": convention}
    rows = rouge_rows(["a b c d"], [["a b", "c x y z q"]], **how)
    assert (rows.match[0], rows.candidate[0], rows.reference[0]) == (3, 8, 7)
    assert rows.precision[0] == 3 / 8
    assert rows.recall[0] == pytest.approx(3 / 7, abs=5e-6)
    assert rows.chosen.tolist() == [-1]


def test_signature_names_everything():
    assert rouge(stemmer=True).signature == (
        f"rougeL|references:best|tokenizer:unicode|stemmer:porter-nltk|convention:lin2004|version:{__version__}"
    )
    how = {"multi_reference": "average", "stemmer": str.upper, "tokenizer": str.split, "convention": "rouge-1.5.5"}
    assert rouge("rougeSU4", **how).signature == (
        "rougeSU4|references:average|tokenizer:str.split|stemmer:str.upper|convention:rouge-1.5.5"
        f"|version:{__version__}"
    )


def test_own_tokenizer_and_stemmer_are_used_with_short_words_left_alone_and_refused_where_they_give_no_list():
    rows = rouge_rows(["Cats cats"], [["CATX catx"]], variant="rouge1", tokenizer=str.split, stemmer=lambda w: w[:3])
    assert rows.match[0] == 1  # "Cat" and "CAT" differ: the tokenizer keeps case
    assert rouge_rows(["abc"], [["abd"]], variant="rouge1", stemmer=lambda w: "").match[0] == 0
    with pytest.raises(MetricInputError, match=r"lower.*: expected a list of strings, got 'a'"):
        rouge_rows(["a"], [["a"]], tokenizer=str.lower)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *[
            ({"variant": variant}, r"unknown ROUGE variant .*: expected rouge1, rouge2")
            for variant in ("rouge0", "rouge", "rougeX", "rougeL2", "rougeS1.5", "rougeW0.5", "ROUGE-1", "", None)
        ],
        ({"convention": "lin2005"}, r"unknown convention 'lin2005' \(did you mean 'lin2004'\?\)"),
        ({"tokenizer": "unicod"}, r"unknown tokenizer 'unicod' \(did you mean 'unicode'\?\)"),
        ({"multi_reference": "max"}, "unknown multi_reference 'max'"),
        ({"stemmer": "porter"}, "stemmer: expected True, False or a function"),
    ],
)
def test_unknown_variants_and_names_are_errors(arguments, message):
    with pytest.raises(ConfigError, match=message):
        rouge(**arguments)


# Figures that can be checked by hand, most of them printed in Lin 2004.


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


def test_l_is_of_the_whole_text_and_lsum_of_its_sentences():
    assert f1("a b\nc d", "c d\na b", variant="rougeL") == 2 / 4
    assert f1("a b\nc d", "c d\na b", variant="rougeLsum") == 1
    assert f1("a b\nc d", "c d\na b", variant="rougeL", convention="rouge-1.5.5") == 1  # as the program has it
    # The candidate's only word is in the subsequence of both sentences, and counts once.
    rows = rouge_rows(["a"], [["a\na"]], variant="rougeLsum")
    assert (rows.match[0], rows.candidate[0], rows.reference[0]) == (1, 1, 2)


def test_program_takes_the_subsequence_whose_runs_weigh_most():
    # "a c" is a run of two in both, "c c" two runs of one.
    rows = rouge_rows(["a c c"], [["c a c b"]], variant="rougeW", convention="rouge-1.5.5")
    assert rows.match[0] == pytest.approx(2**1.2)


def test_program_leaves_out_the_last_unigram_and_weighs_the_reference_twice():
    rows = rouge_rows(["cat sat"], [["cat sat"]], variant="rougeSU", convention="rouge-1.5.5")
    assert (rows.match[0], rows.candidate[0], rows.reference[0]) == (2, 2, 2)  # the pair, and one unigram of two
    rows = rouge_rows(["cat sat"], [["cat sat"]], variant="rougeW", convention="rouge-1.5.5")
    assert rows.reference[0] == pytest.approx((2**1.2) ** 1.2)
    assert rows.precision[0] == 1
    assert rows.recall[0] == round((2**1.2 / (2**1.2) ** 1.2) ** (1 / 1.2), 5)


# What is counted, against counting in the plainest way; rouge-score is the oracle of n-grams and unions.


TOKENS = st.lists(st.sampled_from("abcdef"), max_size=14)


@given(TOKENS, TOKENS, st.none() | st.integers(0, 15))
def test_skip_bigrams_are_the_pairs_within_the_gap(candidate, reference, gap):
    def pairs(tokens: list[str]) -> Counter:
        return Counter(
            (tokens[i], tokens[j]) for i, j in combinations(range(len(tokens)), 2) if gap is None or j - i - 1 <= gap
        )

    assert shared_skip_bigrams(candidate, reference, gap) == (pairs(candidate) & pairs(reference)).total()
    assert total_skip_bigrams(len(candidate), gap) == pairs(candidate).total()


# Tokens of every script.


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


def test_program_lower_cases_ascii_alone():
    assert TOKENIZERS["rouge-1.5.5"]("İK \u212a A") == ["k", "a"]
    assert TOKENIZERS["rouge-score"]("İK \u212a A") == ["i", "k", "k", "a"]


# Both dialects of Porter's stemmer.


NLTK = PorterStemmer()
PIECES = [
    *["s", "es", "sses", "ies", "ied", "ss", "eed", "ed", "ing", "at", "bl", "iz", "ll", "tt", "y", "yy", "st", "7"],
    *["ational", "tional", "enci", "anci", "izer", "bli", "alli", "entli", "eli", "ousli", "ization", "ation", "ator"],
    *["alism", "iveness", "fulness", "ousness", "aliti", "iviti", "biliti", "logi", "logy", "fulli", "ly"],
    *["icate", "ative", "alize", "iciti", "ical", "ful", "ness", "al", "ance", "ence", "er", "ic", "able", "ible"],
    *["ant", "ement", "ment", "ent", "ion", "sion", "tion", "ou", "ism", "ate", "iti", "ous", "ive", "ize"],
    *["a", "e", "i", "o", "u", "b", "c", "l", "t", "w", "x"],
]
EXCEPTIONS = ["skies", "dying", "news", "innings", "cannings", "howe", "succeed", "spied", "died"]
WORDS = st.one_of(
    st.sampled_from(EXCEPTIONS),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join),
    st.text("abcdefghijklmnopqrstuvwxyz0123456789é", min_size=1, max_size=10),
)


@settings(max_examples=300)
@given(WORDS)
def test_random_words_stem_as_in_nltk(word):
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
