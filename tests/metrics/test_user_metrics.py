"""Metrics that users write: what they may do, and what is said of those that are wrong."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.errors import ConfigError, MetricInputError
from pytest_lmgate.metrics.texts import TextMetric, collected_metrics, found_metric, text_score


def _keywords(predictions: Sequence[str], references: object, rows: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Found and wanted keywords of each row."""
    wanted = [row["keywords"] for row in rows]
    return [[sum(map(text.__contains__, of)), len(of)] for text, of in zip(predictions, wanted, strict=True)]


def _metric(statistics: Callable[..., Any] = _keywords, **changes: Any) -> TextMetric:
    fields = {"name": "keyword_recall", "direction": "higher", "signature": "keyword_recall|v:1"}
    return TextMetric(**{**fields, "statistics": statistics, "needs_references": False, **changes})


ROWS = [{"keywords": ["sun", "wind"]}, {"keywords": ["rain"]}, {"keywords": []}]
OUTPUTS = ["sun all day", "rain", "clouds"]


def test_a_users_mean_reads_columns_and_has_noise_and_worst_rows_like_any_other() -> None:
    score = text_score(_metric(), OUTPUTS, None, rows=ROWS)
    assert score == pytest.approx(2 / 3)
    assert (score.metric, score.signature) == ("keyword_recall", "keyword_recall|nrefs:0|v:1")
    # m = 2/3, e = (1 - 4/3, 1 - 2/3), h = (2/3, 1/3); a row that counts nothing is no cluster.
    assert score.stderr == pytest.approx(((1 / 9) / (1 / 3) + (1 / 9) / (2 / 3)) ** 0.5 / 3)
    worst = score.details["worst"]
    assert [found.row for found in worst] == [0, 1, 2]
    assert [found.score for found in worst[:2]] == [0.5, 1.0]
    assert np.isnan(worst[2].score)  # nothing to count: no score of its own, and never the worst
    assert (worst[0].prediction, worst[0].references) == ("sun all day", ())


def test_a_users_value_need_not_be_a_mean() -> None:
    def lengths(predictions: Sequence[str], references: Sequence[Sequence[str]], rows: object) -> np.ndarray:
        return np.array([[len(p), len(r[0])] for p, r in zip(predictions, references, strict=True)])

    own = {"value": lambda sums: abs(1 - sums[0] / sums[1]), "details": lambda sums: {"chars": int(sums[0])}}
    metric = _metric(lengths, name="ratio", direction="lower", signature="ratio", needs_references=True, **own)
    score = text_score(metric, ["ab", "abcd", "abc"], [["abc"], ["abcd"], ["abcdef"]])
    assert score == pytest.approx(4 / 13)
    assert (score.direction, score.signature) == ("lower", "ratio|nrefs:1")
    assert (score.details["chars"], score.details["resamples"]) == (9, 1000)
    low, high = score.interval
    assert 0 <= low < score < high
    assert [found.row for found in score.details["worst"]] == [2, 0, 1]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, r"array of numbers \[rows, k\], got NoneType|shape .*got \[\]"),
        ([[1, 2], [1], [2, 3]], r"array of numbers \[rows, k\], got list"),
        ([1, 1, 1], r"shape \[3, k\] with k >= 2, the last column counting .*; got \[3\]"),
        ([[1, 1]] * 2, r"shape \[3, k\] .*; got \[2, 2\]"),
        ([[1]] * 3, r"shape \[3, k\] .*; got \[3, 1\]"),
        ([[[1, 1]]] * 3, r"shape \[3, k\] .*; got \[3, 1, 2\]"),
        ([[1, 1], [float("nan"), 1], [float("inf"), 1]], r"got nan in row 1, column 0 \(2 in all\)"),
        ([[1, 1], [1, 0.5], [1, 1]], "whole numbers from 0, got 0.5 in row 1; give the metric a `value`"),
        ([[1, 1], [1, 1], [1, -1]], "whole numbers from 0, got -1 in row 2"),
        ([[0, 0]] * 3, "expected a count above 0 in some row to take the mean over, got 0 in every row"),
    ],
)
def test_statistics_of_the_wrong_kind_are_told_by_metric_and_row(returned: object, message: str) -> None:
    metric = _metric(lambda predictions, references, rows: returned)
    with pytest.raises(MetricInputError, match=message) as caught:
        text_score(metric, OUTPUTS, None)
    assert str(caught.value).startswith("text metric 'keyword_recall': expected ")


@pytest.mark.parametrize("row", [[2, 1], [0.5, 1], [1, 2]])
def test_rows_that_are_neither_right_nor_wrong_are_told_where_they_should_be(row: list[float]) -> None:
    metric = _metric(lambda *_: [[1, 1], row, [0, 1]], right_or_wrong=True)
    with pytest.raises(MetricInputError, match=r"to be \[0, 1\] or \[1, 1\], .* in row 1$"):
        text_score(metric, OUTPUTS, None)


def test_a_value_that_is_not_finite_is_an_error_never_a_score() -> None:
    def ones(predictions: Sequence[str], references: object, rows: object) -> np.ndarray:
        return np.array([[float(text == "a")] for text in predictions])

    never = _metric(ones, value=lambda sums: float("nan"))
    with pytest.raises(MetricInputError, match=r"a finite value, got nan from the sums \[1.0\]"):
        text_score(never, ["a", "b", "b"], None)
    at_times = _metric(ones, value=lambda sums: 1 / sums[0] if sums[0] else float("inf"))
    with pytest.raises(MetricInputError, match=r"for every resample of the rows, got inf for \d+ of 1000, .*\[0.0\]"):
        text_score(at_times, ["a", "b", "b"], None)


@pytest.mark.parametrize("returned", [None, 0.5j, np.complex128(1), np.array([0.5]), [0.5], "0.5", {}, 10**400])
@pytest.mark.parametrize("field", ["value", "row_value"])
def test_a_value_that_is_no_number_is_told_by_metric_and_function(field: str, returned: object) -> None:
    metric = _metric(**{"value": lambda sums: 0.5, field: lambda sums: returned})
    with pytest.raises(MetricInputError, match=f"'keyword_recall': expected its {field} to be a number, got "):
        text_score(metric, OUTPUTS, None, rows=ROWS)


@pytest.mark.parametrize("returned", [None, 0.5, [("a", 1)], {1: 2}])
def test_details_that_are_no_mapping_from_names_are_told_by_metric(returned: object) -> None:
    with pytest.raises(MetricInputError, match="'keyword_recall': expected its details to be a mapping"):
        text_score(_metric(details=lambda sums: returned), OUTPUTS, None, rows=ROWS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Recall"}, "a letter in lower case, .*got 'Recall'"),
        ({"name": "keyword-recall"}, "got 'keyword-recall'"),
        ({"name": 5}, "got 5"),
        ({"direction": "up"}, "text metric 'keyword_recall': expected direction 'higher' .*, got 'up'"),
        ({"signature": ""}, "a one-line signature"),
        ({"signature": "a\nb"}, "a one-line signature"),
        ({"statistics": 3}, "expected statistics to be a function, got int"),
        ({"value": None}, "expected value to be a function, got NoneType"),
        ({"row_value": 1.0}, "expected row_value to be a function, got float"),
        ({"right_or_wrong": True, "value": lambda sums: 0.5}, "right_or_wrong is for a share of rows, which has no `v"),
        ({"details": {}}, "expected details to be a function, got dict"),
        ({"extraction": 3}, "expected extraction to be the name of one, got 3"),
    ],
)
def test_a_metric_that_cannot_be_is_refused_when_it_is_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _metric(**changes)


def test_metrics_are_collected_by_name_and_found() -> None:
    metrics = collected_metrics([_metric(), _metric(name="other")])
    assert list(metrics) == ["keyword_recall", "other"]
    assert found_metric(metrics, "other").name == "other"
    with pytest.raises(ConfigError, match="registered: none"):
        found_metric({}, "keyword_recall")
    with pytest.raises(ConfigError, match="'bleu' is a built-in metric: use its own markers and fixture"):
        found_metric(metrics, "bleu")


NEAR = {"perplexity": "ppl", "Pseudo-Perplexity": "pppl", "pll": "ppl", "keyword_recal": "keyword_recall"}


@pytest.mark.parametrize(("name", "meant"), NEAR.items())
def test_a_metric_that_is_not_there_is_told_with_the_nearest_of_all_there_are(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"got {name!r} .did you mean {meant!r}.*; registered: keyword_recall; "):
        found_metric(collected_metrics([_metric()]), name)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([_keywords], "expected TextMetric objects, got function"),
        ([_metric(name="bleu")], "the name 'bleu' is that of a built-in metric"),
        ([_metric(), _metric(signature="b")], "two metrics are named 'keyword_recall', .*'keyword_recall|v:1' and 'b'"),
    ],
)
def test_what_cannot_be_collected_is_refused(given: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        collected_metrics(given)
