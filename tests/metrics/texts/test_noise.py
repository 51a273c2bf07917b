"""Standard errors and intervals by hand; clusters; the paired test's parts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.texts import (
    TextMetric,
    bleu,
    bootstrap,
    chrf,
    exact,
    paired_bootstrap,
    rouge,
    row_statistics,
    text_score,
)
from pytest_lmgate.metrics.texts.bootstrap import cluster_sums, percentile_interval, resampled_sums

Z_975 = 1.959963984540054
T_975_DF_1 = 12.706204736432095


def _wilson(right: float, n: float, z: float) -> tuple[float, float]:
    spread = z * math.sqrt(right * (n - right) / n + z**2 / 4)
    return (right + z**2 / 2 - spread) / (n + z**2), (right + z**2 / 2 + spread) / (n + z**2)


def test_the_interval_of_a_mean_over_rows_stays_within_the_metrics_range() -> None:
    nearly = text_score(rouge("rouge1"), ["a b", "a b", "a"], [["a b"], ["a b"], ["a b"]])
    assert nearly.interval is not None
    low, high = nearly.interval
    assert 0 <= low < nearly < high == 1
    assert text_score(rouge("rouge1"), ["x", "x", "a"], [["a b"]] * 3).interval[0] == 0


def test_the_noise_of_a_mean_over_rows_is_the_textbook_one() -> None:
    # 3 of 4 match: s^2 / n = (3/4 * 1/4 * 4/3) / 4 = 1/16.
    score = text_score(exact(), ["a", "b", "c", "x"], [["a"], ["b"], ["c"], ["d"]])
    assert score == 0.75
    assert score.stderr == pytest.approx(0.25)
    # Wilson's interval of 3 right of 4 with z^2 = 3.8415: (3 + z^2/2 -+ z sqrt(3/4 + z^2/4)) / (4 + z^2).
    assert score.interval == pytest.approx(_wilson(3, 4, Z_975))
    assert score.details["clusters"] == 4
    assert score.details["df"] == pytest.approx(3)


def test_clusters_of_rows_are_what_the_noise_is_judged_between() -> None:
    outputs, references = ["a", "a", "x", "a"], [["a"], ["a"], ["a"], ["a"]]
    score = text_score(exact(), outputs, references, clusters=["one", "one", "two", "two"])
    # Cluster means 1 and 1/2: their standard error is (1/2) / 2.
    assert score == 0.75
    assert score.stderr == pytest.approx(0.25)
    # Of the wrong row: CR2 variance 1/16 over 3/64 of independent rows, averaged with a wholly dependent cluster.
    effect = (4 / 3 + 2) / 2
    assert score.interval == pytest.approx(_wilson(3 / effect, 4 / effect, T_975_DF_1))
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


def test_thousands_of_rows_are_merged_into_few_clusters_and_keep_their_noise() -> None:
    generator = np.random.default_rng(0)
    matches = generator.random(3000) < 0.3
    outputs = ["a" if match else "x" for match in matches]
    score = text_score(exact(), outputs, [["a"]] * 3000)
    assert score == matches.mean()
    assert score.details["clusters"] == 500
    assert score.stderr == pytest.approx(math.sqrt(0.3 * 0.7 / 3000), rel=0.1)


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
    drawn = np.random.default_rng(12345).choice(37, size=(100, 37), replace=True)
    for at_once in (1, 37 * 7, 1 << 20):
        monkeypatch.setattr(bootstrap, "_DRAWS_AT_ONCE", at_once)
        np.testing.assert_allclose(resampled_sums(statistics, resamples=100), statistics[drawn].sum(axis=1))


def test_cluster_sums_add_up_rows() -> None:
    statistics = np.arange(8.0).reshape(4, 2)
    np.testing.assert_array_equal(cluster_sums(statistics, np.array([1, 0, 1, 0])), [[8, 10], [4, 6]])


def test_the_interval_cuts_one_in_forty_from_either_end() -> None:
    assert percentile_interval(np.arange(1000.0)[::-1]) == (25.0, 974.0)


def _means(values: list[float]) -> np.ndarray:
    return np.stack([np.array(values), np.ones(len(values))], axis=1)


def test_the_paired_test_keeps_the_sign_and_the_noise_of_the_difference() -> None:
    generator = np.random.default_rng(1)
    shared = generator.normal(size=200)
    gain = generator.normal(0.1, 0.5, size=200)
    result = paired_bootstrap(exact(), _means(list(shared)), _means(list(shared + gain)))
    assert result.difference == pytest.approx(gain.mean())
    # What the two have in common cancels.
    assert result.stderr == pytest.approx(gain.std(ddof=1) / math.sqrt(200), rel=0.1)
    assert result.differences.shape == (1000,)
    assert result.clusters == 200
    sizes = np.abs(result.differences)
    assert result.p_value == (np.sum(sizes - sizes.mean() > abs(result.difference)) + 1) / 1001
    turned = paired_bootstrap(exact(), _means(list(shared + gain)), _means(list(shared)))
    assert turned.difference == pytest.approx(-result.difference)
    assert turned.p_value == result.p_value


def test_a_clear_difference_has_the_smallest_p_value_there_is(english) -> None:
    perfect = [of_row[0] for of_row in english.references]
    baseline, candidate = (row_statistics(bleu(), outputs, english.references) for outputs in (perfect, [""] * 60))
    result = paired_bootstrap(bleu(), baseline, candidate, resamples=100)
    assert result.difference == pytest.approx(-100)
    assert result.p_value == 1 / 101


def test_the_paired_test_resamples_clusters() -> None:
    values = [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    result = paired_bootstrap(exact(), _means([0.0] * 6), _means(values), clusters=list("aabbcc"))
    assert result.clusters == 3
    assert set(np.round(result.differences * 3)) == {0, 1, 2, 3}


def test_the_paired_test_refuses_different_rows_and_a_single_one() -> None:
    with pytest.raises(MetricInputError, match=r"same rows for both systems.*\[2, 2\] \(baseline\) and \[3, 2\]"):
        paired_bootstrap(exact(), _means([1, 0]), _means([1, 0, 1]))
    with pytest.raises(MetricInputError, match="at least two rows or clusters to resample, got 1"):
        paired_bootstrap(exact(), _means([1]), _means([0]))
