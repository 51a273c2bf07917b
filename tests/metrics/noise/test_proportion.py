"""Wilson's interval against scipy's, and the design effect of rows in clusters by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_lmgate.metrics.noise.proportion import Outcomes, wilson_bounds


def outcomes(right: int, n: int, clusters: list[int] | None = None) -> Outcomes:
    made = np.arange(n) if clusters is None else np.array(clusters)
    return Outcomes(np.arange(n) < right, made)


@settings(max_examples=300)
@given(
    counts=st.integers(2, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    level=st.sampled_from([0.6, 0.9, 0.95, 0.975, 0.999]),
)
def test_bounds_are_wilsons_as_scipy_has_them(counts: tuple[int, int], level: float) -> None:
    right, n = counts

    bounds = wilson_bounds(outcomes(right, n), level)

    expected = scipy.stats.binomtest(right, n).proportion_ci(2 * level - 1, method="wilson")
    assert bounds[:2] == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-9)
    assert bounds[2:] == ("wilson", "wilson")
    assert 0 <= bounds.lower <= right / n <= bounds.upper <= 1


def test_80_right_of_80_are_not_certain_to_be_right() -> None:
    lower, upper, *_ = wilson_bounds(outcomes(80, 80), 0.975)

    # 80 / (80 + 1.96^2).
    assert (lower, upper) == (pytest.approx(80 / 83.8414588), 1)


def test_one_row_and_one_cluster_of_rows_have_no_interval() -> None:
    assert wilson_bounds(outcomes(1, 1), 0.95) is None
    assert wilson_bounds(outcomes(2, 4, [0] * 4), 0.95) is None


def test_rows_in_clusters_count_as_fewer_by_hand() -> None:
    # Rows 1, 1 and 0, 1 of two clusters: three right of four, the wrong one in the second cluster.
    made = Outcomes(np.array([True, True, False, True]), np.array([0, 0, 1, 1]))

    # Of the wrong ones: mean 1/4, e = -1/2 and 1/2, h = 1/2: CR2 variance (1/4 + 1/4) 2 / 16 = 1/16, over
    # 3/16 / 4 = 3/64 of independent rows: 4/3. One cluster has a wrong row; wholly dependent rows have 8 / 4 = 2.
    n = 4 / ((4 / 3 + 2) / 2)
    z, p = scipy.stats.t.ppf(0.95, 1), 3 / 4
    centre, spread = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    assert wilson_bounds(made, 0.95)[:2] == pytest.approx(
        ((centre - spread) / (1 + z**2 / n), (centre + spread) / (1 + z**2 / n)), rel=1e-9
    )


@given(st.lists(st.booleans(), min_size=2, max_size=60), st.integers(2, 6))
def test_clusters_of_rows_never_narrow_the_interval(right: list[bool], size: int) -> None:
    alone = Outcomes(np.array(right), np.arange(len(right)))
    together = Outcomes(np.array(right), np.arange(len(right)) // size)
    wide, narrow = wilson_bounds(together, 0.95), wilson_bounds(alone, 0.95)

    if wide is not None:
        assert wide.lower <= narrow.lower + 1e-12
        assert wide.upper >= narrow.upper - 1e-12
