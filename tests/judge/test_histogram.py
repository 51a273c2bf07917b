"""How a change is spread over rows: counts by hand, then properties."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.judge import attribution as module
from pytest_lmgate.judge import verdict
from pytest_lmgate.judge.attribution import BINS, ChangeHistogram, change_histogram
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.texts import TextMetric
from pytest_lmgate.stats.sample import ByRow, Sample, Scale

PPL = Scale("lower", exponential=True, lowest=1)


def sample(sums: list[float], counts: list[int], scale: Scale = PPL, *, rows: bool = True) -> Sample:
    array, sizes = np.array(sums)[:, None], np.array(counts)
    by_row = ByRow(array, sizes, np.arange(len(sums))) if rows else None
    return Sample(array, sizes, scale, rows=rows, by_row=by_row)


def of_texts(rows: list[list[float]], value: Callable[[Any], float]) -> Sample:
    metric = TextMetric("f", "higher", "f|v:1", lambda *_: [], value=value)
    counts = np.ones(len(rows), dtype=np.int64)
    return Sample(np.array(rows), counts, metric=metric, by_row=ByRow(np.array(rows), counts, np.arange(len(rows))))


def spread(candidate: Sample, reference: Sample, metric: str = "ppl", unit: str = "token") -> ChangeHistogram:
    found = change_histogram(candidate, reference, metric=metric, unit=unit)
    assert found is not None
    return found


def test_rows_are_counted_by_the_change_of_their_mean_loss() -> None:
    reference = sample([10.0, 20.0, 30.0, 40.0, 0.0], [10, 10, 10, 20, 0])
    candidate = sample([14.0, 20.0, 28.0, 44.0, 0.0], [10, 10, 10, 20, 0])
    found = spread(candidate, reference)
    assert (found.of, found.unit) == ("rows", "nats per token")
    assert (found.worse, found.same, found.better) == (2, 1, 1)
    assert (found.lowest, found.median, found.highest) == pytest.approx((-0.2, 0.1, 0.4))
    # A quarter of the way from -0.2 to 0.4 is 0.15; zero is an edge, so the bins begin at -0.3.
    assert (found.begin, found.width) == pytest.approx((-0.3, 0.15))
    assert found.bins == (1, 0, 0, 1, 1)


def test_rows_that_alone_have_no_value_are_left_out_and_with_none_or_an_error_there_is_no_spread() -> None:
    def ratio(sums: Any) -> float:
        return float(sums[0] / sums[1]) if sums[1] else math.nan

    found = spread(of_texts([[1, 2], [3, 0]], ratio), of_texts([[2, 2], [3, 4]], ratio), "f", "row")
    assert (found.worse, found.same, found.better) == (1, 0, 0)
    none = of_texts([[1, 0], [3, 0]], ratio)
    assert change_histogram(none, none, metric="f", unit="row") is None

    def refuses(sums: Any) -> float:
        if len(np.shape(sums)) == 1 and sums[1] < 6:
            raise MetricInputError("expected several rows")
        return float(sums[0] / sums[1])

    both = of_texts([[1, 2], [3, 4]], refuses), of_texts([[2, 2], [3, 4]], refuses)
    assert verdict.histogram_of(Score(4 / 6, metric="f", unit="row", n=2, signature="f|v:1"), *both) is None


def test_a_metric_of_texts_is_not_computed_of_very_many_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (of_texts([[1, 2]] * count, lambda sums: float(sums[0])) for count in (2, 3))
    monkeypatch.setattr(module, "_MOST_TEXTS", 2)
    assert spread(few, few, "f", "row").same == 2
    assert change_histogram(many, many, metric="f", unit="row") is None


def test_without_rows_blocks_are_compared_and_other_blocks_are_not() -> None:
    one, other = sample([1.0, 2.0], [5, 5], rows=False), sample([1.0, 2.0], [4, 6], rows=False)
    assert spread(one, one).of == "blocks"
    assert change_histogram(one, other, metric="ppl", unit="token") is None


def test_a_divergence_is_itself_a_distance_which_no_row_has_less_than_none_of() -> None:
    losses = sample([0.0, 1.0, 4.0, 9.0, -1e-9], [10] * 5, Scale("lower", lowest=0))
    kl = change_histogram(losses, None, metric="kl", unit="")
    assert (kl.what, kl.of, kl.unit) == ("distance", "rows", "nats per token")
    assert (kl.worse, kl.same, kl.better) == (3, 2, 0)
    assert (kl.lowest, kl.median, kl.highest) == pytest.approx((0, 0.1, 0.9))
    # Of 0, 0, 0.1, 0.4 and 0.9, 90% lie at 0.6 of the way from the fourth to the fifth.
    assert (kl.p90, kl.p99) == pytest.approx((0.7, 0.88))
    assert (kl.begin, kl.bins) == (0.0, (1, 1, 0, 1))
    same = Scale("higher", lowest=0, highest=1)
    top1 = change_histogram(sample([10, 9, 5], [10] * 3, same), None, metric="top1", unit="")
    assert (top1.worse, top1.same, top1.median, top1.highest) == (2, 1, pytest.approx(0.1), 0.5)
    assert "a different top prediction" in top1.unit


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_every_change_is_in_a_bin_on_its_own_side_of_zero(changes: list[float]) -> None:
    ones, before = [1] * len(changes), [100.0] * len(changes)
    found = spread(sample([100 + each for each in changes], ones), sample(before, ones))
    assert found.worse + found.same + found.better == len(changes)
    assert len(found.bins) <= BINS
    assert sum(found.bins) == found.worse + found.better
    if found.bins:
        at = round(-found.begin / found.width)
        assert (sum(found.bins[:at]), sum(found.bins[at:])) == (found.better, found.worse)
