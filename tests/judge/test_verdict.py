"""One verdict per gate: compared unrounded, never a pass by accident, the same on the other side of a pipe."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_lmgate.judge.verdict import judge_bounds, judge_limit
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.stats.sample import Sample, Scale
from tests.stats.samples import right_or_wrong


def _score(value: float, direction: Any) -> Score:
    return Score(value, metric="m", n=10, signature="s", direction=direction)


@pytest.mark.parametrize(
    ("direction", "value", "limit", "outcome"),
    [
        ("lower", 100.0, 100.0, "pass"),
        ("lower", math.nextafter(100.0, 200.0), 100.0, "fail"),
        ("higher", 0.9451, 0.95, "fail"),
        ("higher", math.nextafter(0.95, 0.0), 0.95, "fail"),
        ("higher", 0.95, 0.95, "pass"),
    ],
)
def test_a_value_is_compared_unrounded_and_the_limit_passes(direction: Any, value: float, limit: float, outcome: str):
    assert judge_limit(_score(value, direction), limit) == outcome


@pytest.mark.parametrize("direction", ["lower", "higher"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_an_error_and_never_a_pass(direction: Any, value: float):
    assert judge_limit(_score(value, direction), 16.5) == "error"
    assert judge_limit(_score(16.5, direction), value) == "error"
    assert judge_limit(_score(value, direction), value) == "error"
    assert judge_bounds(_score(value, direction), 1.0, 0.95)[0] == "error"


def _share(right: int, n: int) -> Score:
    """An accuracy of rows."""
    sample = right_or_wrong(np.arange(n) < right)
    return Score(right / n, metric="accuracy", n=n, unit="row", signature="s", direction="higher", sample=sample)


@given(
    counts=st.integers(2, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    limit=st.floats(0, 1),
    confidence=st.sampled_from([0.9, 0.95, 0.999]),
)
def test_a_limit_gate_with_a_confidence_needs_the_bound_on_the_right_side(counts: Any, limit: float, confidence: float):
    right, n = counts
    interval = scipy.stats.binomtest(right, n).proportion_ci(2 * confidence - 1, method="wilson")
    assume(min(abs(interval.low - limit), abs(interval.high - limit)) > 1e-9)
    outcome, bounded = judge_bounds(_share(right, n), limit, confidence)
    assert outcome == ("pass" if interval.low >= limit else "fail" if interval.high < limit else "inconclusive")
    assert (bounded.lower, bounded.upper) == pytest.approx((interval.low, interval.high), abs=1e-9)
    assert (bounded.bounds, bounded.clusters, bounded.clustered_by) == ("wilson", n, "rows")
    assert (bounded.needed is None) or outcome == "inconclusive"


def test_a_perplexity_with_a_confidence_needs_its_upper_bound_within_the_limit():
    sums = np.array([20.0, 22.0, 21.0, 23.0, 19.0])
    sample = Sample(sums[:, None], np.full(5, 10), Scale("lower", exponential=True, lowest=1))
    score = Score(sample.value(), metric="ppl", n=50, signature="s", sample=sample)
    margin = scipy.stats.t.ppf(0.95, 4) * sums.std(ddof=1) / 10 / math.sqrt(5)
    lower, upper = math.exp(2.1 - margin), math.exp(2.1 + margin)
    for limit, outcome in {upper + 0.01: "pass", upper - 0.01: "inconclusive", lower + 0.01: "inconclusive"}.items():
        assert judge_bounds(score, limit, 0.95)[0] == outcome
    found, bounded = judge_bounds(score, lower - 0.01, 0.95)
    assert (found, bounded.bounds) == ("fail", "student")
    assert (bounded.lower, bounded.upper) == pytest.approx((lower, upper))
