"""Metrics of texts: options, what is refused, worst rows, noise and properties."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.errors import ConfigError, MetricInputError
from pytest_lmgate.metrics.rouge import rouge
from pytest_lmgate.metrics.sacrebleu_metrics import bleu, chrf, ter
from pytest_lmgate.metrics.score import ScoredRow
from pytest_lmgate.metrics.texts import TextMetric, exact, text_score
from pytest_lmgate.stats import bootstrap
from pytest_lmgate.stats.bootstrap import cluster_sums, paired_bootstrap, percentile_interval, resampled_sums
from pytest_lmgate.stats.comparison import Tolerance
from pytest_lmgate.stats.paired import compare
from tests.stats.samples import right_or_wrong


def test_rouge_keeps_precision_and_recall() -> None:
    # A subsequence of 3 words: P 3/3, R 3/6, F 2/3; the second row shares nothing.
    score = text_score(rouge("rougeL"), ["the cat sat", "x"], [["the cat really sat on it"], ["y"]])
    assert score == pytest.approx(1 / 3) == score.details["f"]
    assert (score.details["precision"], score.details["recall"]) == pytest.approx((1 / 2, 1 / 4))
    assert score.signature.startswith("rougeL|nrefs:1|")


@pytest.mark.parametrize(
    ("options", "output", "reference", "matches"),
    [
        ({}, " Paris \n", "Paris", True),
        ({"strip": False}, " Paris", "Paris", False),
        ({}, "paris", "Paris", False),
        ({"ignore_case": True}, "PARIS", "Paris", True),
        ({"ignore_case": True}, "STRASSE", "Straße", False),
        ({}, "Paris.", "Paris", False),
        ({"ignore_punctuation": True}, '"Paris!" $', "Paris", True),
        ({"ignore_punctuation": True}, "你好，世界", "你好世界", False),
        ({"ignore_numbers": True}, "room 101", "room", True),
        ({"ignore": ["(?s).*####", ","]}, "so\n#### 1,000", "1000", True),
        ({"ignore": r"\.$"}, "18.", "18", True),
        ({"numeric": True}, "1,000", "1000.0", True),
        ({"numeric": True}, "$1e3.", "1000", True),
        ({"numeric": True}, "-.5", "\u22120.50", True),
        ({"numeric": True}, "1,00", "100", False),
        ({"numeric": True}, "5 apples", "5", False),
        ({"numeric": True}, "0.1", "0.10000000000000001", False),
        ({"ignore_punctuation": True}, "well known", "wellknown", False),
    ],
)
def test_exact_match_ignores_what_it_is_told_to_and_nothing_else(
    options: dict[str, Any], output: str, reference: str, matches: bool
) -> None:
    score = text_score(exact(**options), [output, "no"], [[reference], ["7" if "numeric" in options else "yes"]])
    assert score == (0.5 if matches else 0)
    assert score.details["matches"] == int(matches)


def test_exact_match_takes_any_reference() -> None:
    score = text_score(exact(), ["b", "d"], [["a", "b"], ["c"]])
    assert score == 0.5
    assert score.signature == "exact|nrefs:var|case:mixed|punct:yes|strip:yes"


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({"ignore_numbers": True}, "1234"),
        ({"ignore_punctuation": True}, "?!"),
        ({"ignore_numbers": True, "strip": False}, "1 2"),
        ({"ignore": ["a"], "ignore_punctuation": True}, "a."),
        ({"ignore_numbers": True}, ""),
    ],
)
def test_a_reference_of_which_nothing_is_left_is_an_error_as_any_text_would_be_right(
    options: dict[str, Any], reference: str
) -> None:
    with pytest.raises(MetricInputError, match="exact: row 1: nothing is left of the reference"):
        text_score(exact(**options), ["a", "b"], [["yes"], ["no", reference]] if reference else [["yes"], [""]])


def test_silence_is_right_where_it_is_the_only_reference() -> None:
    assert text_score(exact(ignore_case=True), ["", "a"], [[""], [""]]) == 0.5


@pytest.mark.parametrize(
    ("metric", "reference", "said"),
    [
        (rouge(), "", "row 1: the tokenizer finds no word in its reference ''"),
        (rouge(), "👍!", "row 1: the tokenizer finds no word"),
        (rouge(tokenizer="rouge-score"), "비가 옵니다", "row 1: the tokenizer finds no word .*, or choose another"),
        (rouge("rouge2"), "rain", "every reference is shorter than what the variant counts"),
    ],
)
def test_a_reference_that_no_text_can_score_on_is_an_error(metric: TextMetric, reference: str, said: str) -> None:
    with pytest.raises(MetricInputError, match=f"ROUGE: {said}"):
        text_score(metric, ["a", reference], [["a"], [reference]])


def test_an_empty_output_everywhere_scores_nothing_and_does_not_crash() -> None:
    overlaps = (rouge(), rouge("rougeSU4", convention="rouge-1.5.5"))
    for metric in (bleu(), bleu(smooth_method="add-k"), chrf(), chrf(eps_smoothing=True), exact(), *overlaps):
        assert text_score(metric, ["", "  "], [["a b c d e"], ["f g", "h"]]) == pytest.approx(0, abs=1e-9)
    # An edit rate is lower when better: every word of the reference is missing.
    assert text_score(ter(), ["", ""], [["a b c"], ["d"]]) == 100
    for metric in (bleu(), chrf(), ter()):
        assert text_score(metric, [""], [[""]]) == 0


# Texts that cannot be scored: each error says what was expected, what came, and in which row.


BAD = {
    "no rows": ([], [], "at least one prediction, got none"),
    "predictions are one string": ("abc", [["abc"]], "predictions to be a list of strings, got str 'abc'"),
    "predictions are a number": (3, [["abc"]], "predictions to be a list of strings, got int 3"),
    "predictions are a mapping": ({"a": "b"}, [["abc"]], "predictions to be a list of strings, got dict"),
    "a prediction is missing": (["a", None], [["a"], ["b"]], "predictions to be .* got NoneType None at index 1"),
    "no references": (["a"], None, "expected references, got None: pass a list"),
    "references are one string": (["a"], "a", "references to be a list of lists.*got str 'a'"),
    "references are strings": (["a", "b"], [["a"], "b"], r"row 1: references to be .*\[text\], got str 'b'"),
    "fewer references": (["a", "b"], [["a"]], "references of 2 rows, a list for each prediction, got 1"),
    "references by stream": (["a", "b", "c"], [["a", "b", "c"]], r"sacrebleu lists them per stream.*list\(zip"),
    "a row without references": (["a", "b"], [["a"], []], "row 1: expected at least one reference, got none"),
    "a row of missing references": (["a", "b"], [["a"], [None]], "row 1: expected at least one reference, got none"),
    "a row whose references are None": (["a", "b"], [["a"], None], "row 1: expected at least one reference, got none"),
    "an empty reference next to another": (["a", "b"], [["a"], ["b", " "]], "row 1: one of its 2 references is empty"),
    "a reference is a number": (["a"], [["a", 5]], r"row 0: references to be .*, got int 5 at index 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_texts_are_refused_with_their_row(case: str) -> None:
    predictions, references, message = BAD[case]
    with pytest.raises(MetricInputError, match=message) as caught:
        text_score(exact(), predictions, references)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": [{}]}, "expected rows of 2 predictions, got 1"),
        ({"rows": [{}, "x"]}, "rows to be a list of mappings, got str 'x' at index 1"),
        ({"rows": {"text": ["a", "b"]}}, "rows to be a list of mappings"),
        ({"clusters": [1]}, "a cluster label for each of 2 rows, got "),
        ({"clusters": [1, None]}, "row 1: expected a cluster label such as a string or an integer, got None"),
        ({"clusters": [[1], 2]}, r"row 0: expected a cluster label .*, got \[1\]"),
        ({"clusters": "ab"}, "a list with a cluster label"),
    ],
)
def test_bad_rows_and_clusters_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MetricInputError, match=message):
        text_score(exact(), ["a", "b"], [["a"], ["b"]], **arguments)


# The rows that people are shown when a gate fails.


def worst_rows(metric: TextMetric, *texts: Any) -> list[ScoredRow]:
    return text_score(metric, *texts).details["worst"]


OUTPUTS = ["a b c d", "x", "a b c x", "a b c d", "", "x y"]
REFERENCES = [["a b c d"], ["a b c d"], ["a b c d", "z"], ["q"], ["a b c d"], ["a b c d"]]


@pytest.mark.parametrize("metric", [bleu(), chrf(), rouge("rouge1")], ids=["bleu", "chrf", "rouge"])
def test_the_worst_come_first_and_equals_in_the_order_of_the_data(metric: TextMetric) -> None:
    worst = worst_rows(metric, OUTPUTS, REFERENCES)
    assert [found.row for found in worst] == [1, 3, 4, 5, 2]
    assert [found.score for found in worst[:4]] == [0, 0, 0, 0]
    assert 0 < worst[4].score < metric.highest
    assert (worst[4].prediction, worst[4].references) == ("a b c x", ("a b c d", "z"))


def test_a_high_edit_rate_is_worse() -> None:
    worst = worst_rows(ter(), OUTPUTS, REFERENCES)[:3]
    assert [(found.row, found.score) for found in worst] == [(3, 400), (1, 100), (4, 100)]


# Standard errors and intervals by hand; clusters; the paired test's parts.


def test_the_interval_of_a_mean_over_rows_stays_within_the_metrics_range() -> None:
    nearly = text_score(rouge("rouge1"), ["a b", "a b", "a"], [["a b"]] * 3)
    low, high = nearly.interval
    assert 0 <= low < nearly < high == 1
    assert text_score(rouge("rouge1"), ["x", "x", "a"], [["a b"]] * 3).interval[0] == 0


def test_clusters_of_rows_are_what_the_noise_is_judged_between() -> None:
    outputs, references = ["a", "a", "x", "a"], [["a"], ["a"], ["a"], ["a"]]
    score = text_score(exact(), outputs, references, clusters=["one", "one", "two", "two"])
    # Cluster means 1 and 1/2: their standard error is (1/2) / 2.
    assert score == 0.75
    assert score.stderr == pytest.approx(0.25)
    assert score.interval == pytest.approx(right_or_wrong([1, 1, 0, 1], [0, 0, 1, 1]).interval)
    assert score.n == 4
    # Labels may come in any order and be of any kind.
    mixed = text_score(exact(), ["a", "x", "a", "a"], references, clusters=[7, ("b",), 7, ("b",)])
    assert mixed.stderr == pytest.approx(score.stderr)


@pytest.mark.parametrize("metric", [bleu(), exact(), rouge()], ids=["bleu", "exact", "rouge"])
def test_one_row_or_one_cluster_tells_nothing_of_the_noise(metric: TextMetric) -> None:
    alone = text_score(metric, ["a b c d"], [["a b c d e"]])
    together = text_score(metric, ["a b c d", "e"], [["a b c d e"], ["e"]], clusters=[1, 1])
    for score in (alone, together):
        assert score.stderr is None
        assert score.interval is None
        assert score.details["clusters"] == 1


def test_clusters_widen_the_bootstrap_where_rows_repeat_each_other(english) -> None:
    outputs, references = english.predictions * 4, english.references * 4
    documents = list(range(len(english.predictions))) * 4
    as_rows = text_score(chrf(), outputs, references)
    as_documents = text_score(chrf(), outputs, references, clusters=documents)
    once = text_score(chrf(), english.predictions, english.references)
    assert float(as_rows) == pytest.approx(float(as_documents))
    assert as_documents.stderr == pytest.approx(once.stderr, rel=1e-9)
    assert as_rows.stderr == pytest.approx(once.stderr / 2, rel=0.15)


def test_resampled_sums_are_sums_of_drawn_rows_in_batches_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = np.random.default_rng(5).random((37, 3))
    drawn = np.random.default_rng(12345).choice(37, size=(1000, 37), replace=True)
    for at_once in (1, 37 * 7, 1 << 20):
        monkeypatch.setattr(bootstrap, "_DRAWS_AT_ONCE", at_once)
        np.testing.assert_allclose(resampled_sums(statistics), statistics[drawn].sum(axis=1))


def test_the_interval_cuts_one_in_forty_from_either_end() -> None:
    assert percentile_interval(np.arange(1000.0)[::-1]) == (25.0, 974.0)


def _means(values: list[float]) -> np.ndarray:
    return np.stack([np.array(values), np.ones(len(values))], axis=1)


def test_the_paired_test_resamples_clusters() -> None:
    groups = np.array([0, 0, 1, 1, 2, 2])
    baseline, candidate = (cluster_sums(_means(values), groups) for values in ([0.0] * 6, [1.0, 1, 0, 0, 1, 1]))
    result = paired_bootstrap(exact(), baseline, candidate)
    assert set(np.round(result.differences * 3)) == {0, 1, 2, 3}
    assert result.p_value == 1 / 1001, "no resample is further from their mean than the two are from each other"


# What holds for any texts.


METRICS = [bleu(), bleu(tokenize="char", smooth_method="add-k"), chrf(word_order=2), ter(), exact(), rouge("rouge2")]

texts = st.lists(st.sampled_from(["a", "b", "the", "cat.", "1,5", "공을", "好", "Cat", "&amp;", ""]), max_size=8).map(
    " ".join
)
rows = st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=3)), min_size=1, max_size=6)


@pytest.mark.parametrize("metric", METRICS, ids=[metric.signature for metric in METRICS])
@given(rows=rows)
def test_statistics_of_a_corpus_are_those_of_its_rows(metric, rows) -> None:
    outputs, references = zip(*rows, strict=True)
    if metric.name == "rouge2":  # which refuses references without two words
        references = [[f"the cat {text}" for text in of_row] for of_row in references]
    together = metric.statistics(outputs, references, [])
    apart = [metric.statistics([output], [of_row], [])[0] for output, of_row in zip(outputs, references, strict=True)]
    np.testing.assert_array_equal(together, apart)


# Several texts of each row.


@pytest.mark.parametrize(("n", "c", "k"), [(4, 0, 2), (4, 1, 2), (4, 3, 2), (5, 2, 3), (8, 8, 1), (6, 1, 6), (7, 3, 1)])
def test_pass_at_k_is_the_share_of_draws_of_k_texts_with_a_right_one(n: int, c: int, k: int) -> None:
    right = [True] * c + [False] * (n - c)
    draws = list(itertools.combinations(right, k))
    outputs = ["a" if each else f"b{index}" for index, each in enumerate(right)]
    score = text_score(exact(variant=f"pass@{k}"), outputs, [["a"]], repeats=n)
    assert score.value == pytest.approx(sum(map(any, draws)) / len(draws), rel=1e-12)
    assert score.n == 1
    assert f"variant:pass@{k}" in score.signature


# Three rows; the texts of each are a column.
_REPEATED = [["1", "2", "no"], ["1.0", "3", "no"], ["5", "2.0", "yes"], ["5", "3", "maybe"]]


@pytest.mark.parametrize(
    ("how", "of_rows"),
    [
        ({}, [1 / 4, 1 / 4, 1 / 4]),
        ({"numeric": True}, [1 / 2, 1 / 2, 0]),
        ({"variant": "majority"}, [0, 0, 0]),  # 5 twice, then 3 twice, then no twice
        ({"variant": "majority", "numeric": True}, [1, 1, 0]),  # of equals the first
        ({"variant": "pass@2"}, [1 / 2, 1 / 2, 1 / 2]),
        ({"variant": "pass@3", "numeric": True}, [1, 1, 0]),
    ],
)
def test_a_row_of_several_texts_is_one_row(how: dict[str, Any], of_rows: list[float]) -> None:
    references = [["1"], ["2"], ["7"] if how.get("numeric") else ["yes"]]
    outputs = [text for of_all in _REPEATED for text in of_all]
    score = text_score(exact(**how), outputs, references, prompts=["p", "q", "r"], repeats=4)
    assert score.value == pytest.approx(np.mean(of_rows), rel=1e-12)
    assert (score.n, score.details["clusters"]) == (3, 3)
    assert (score.sample.outcomes is not None) == ({*of_rows} <= {0, 1})
    worst = {each.row: each.score for each in score.details["worst"]}
    assert [worst[row] for row in range(3)] == pytest.approx(of_rows)


@pytest.mark.parametrize("variant", ["", "pass@2", "majority"])
def test_rows_whose_texts_all_agree_have_the_interval_of_as_many_single_texts(variant: str) -> None:
    once = text_score(exact(), ["a"] * 10, [["a"]] * 10)
    score = text_score(exact(variant=variant), ["a"] * 80, [["a"]] * 10, repeats=8)
    assert score.interval == once.interval
    assert score.interval[0] < 0.8
    lost = text_score(exact(variant=variant), ["a"] * 9 + ["b"] + ["a"] * 9 + ["b"], [["a"]] * 10, repeats=2)
    found = compare(lost.sample, score.sample, tolerance=Tolerance(0.2, relative=False))
    assert found.decision == "inconclusive"


@pytest.mark.parametrize(("variant", "repeats"), [("pass@5", 4), ("majority", 1), ("pass@1", 1)])
def test_a_variant_of_repeats_needs_as_many_texts(variant: str, repeats: int) -> None:
    with pytest.raises(ConfigError, match=r"expected repeats="):
        text_score(exact(variant=variant), ["a"] * repeats, [["a"]], repeats=repeats)


def test_groups_of_rows_count_alike_in_a_mean_and_have_none_of_bleu() -> None:
    texts, references = ["a", "b", "x", "x", "x", "d"], [["a"], ["b"], ["c"], ["c"], ["c"], ["d"]]
    groups = ["one", "one", "two", "two", "two", "two"]
    score = text_score(exact(), texts, references, groups=groups)
    assert score == pytest.approx((1 + 1 / 4) / 2)
    assert text_score(exact(), texts, references) == pytest.approx(3 / 6)
    with pytest.raises(MetricInputError, match="average_by: bleu is not a mean over rows"):
        text_score(bleu(), texts, references, groups=groups)
