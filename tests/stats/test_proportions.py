"""Wilson's interval against scipy's, and the design effect of rows in clusters by hand."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_lmgate.stats.paired import Changes, rows_without_change, tango_bounds, tango_z
from pytest_lmgate.stats.sample import wilson_bounds
from tests.stats.samples import outcomes


@given(
    counts=st.integers(2, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    level=st.sampled_from([0.6, 0.9, 0.95, 0.975, 0.999]),
)
def test_bounds_are_wilsons_as_scipy_has_them(counts: tuple[int, int], level: float) -> None:
    right, n = counts
    bounds = wilson_bounds(outcomes(np.arange(n) < right), level)
    expected = scipy.stats.binomtest(right, n).proportion_ci(2 * level - 1, method="wilson")
    assert bounds[:2] == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-9)
    assert bounds[2:] == ("wilson", "wilson")
    assert 0 <= bounds.lower <= right / n <= bounds.upper <= 1


def test_one_row_and_one_cluster_of_rows_have_no_interval() -> None:
    assert wilson_bounds(outcomes([True]), 0.95) is None
    assert wilson_bounds(outcomes([True, True, False, False], [0] * 4), 0.95) is None


@pytest.mark.parametrize(
    ("right", "effect"),
    [
        # Of the wrong ones: mean 1/4, e = -1/2 and 1/2, h = 1/2: CR2 variance (1/4 + 1/4) 2 / 16 = 1/16, over
        # 3/16 / 4 = 3/64 of independent rows: 4/3. One cluster has a wrong row; wholly dependent rows have 8 / 4 = 2.
        ([1, 1, 0, 1], (4 / 3 + 2) / 2),
        # The clusters do not differ: a design effect of 1, and not 0. Two clusters have a wrong row.
        ([1, 0, 1, 0], (2 * 1 + 2) / 3),
    ],
)
def test_rows_in_clusters_count_as_fewer_but_never_more_by_hand(right: list[int], effect: float) -> None:
    n, z, p = 4 / effect, scipy.stats.t.ppf(0.95, 1), np.mean(right)
    centre, spread = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    ends = (centre - spread) / (1 + z**2 / n), (centre + spread) / (1 + z**2 / n)
    assert wilson_bounds(outcomes(right, [0, 0, 1, 1]), 0.95)[:2] == pytest.approx(ends, rel=1e-9)


# Tango's score test against maximum likelihood found by an optimizer, and against published intervals.


def z_by_maximum_likelihood(n: int, lost: int, gained: int, loss: float) -> float:
    """The score test from its definition: maximize the trinomial likelihood of the rows where the true loss is `loss`.

    Probabilities are q of a row gained, ``q + loss`` of a row lost and the rest of a row without a change; the score
    divides the measured loss above the supposed one by its standard error under them.
    """

    def slope(q: float) -> float:
        """Derivative of the log-likelihood, which falls in q."""
        same, unchanged = n - lost - gained, 1 - 2 * q - loss
        return (lost / (q + loss) if lost else 0) + (gained / q if gained else 0) - 2 * same / unchanged

    least, most = max(0.0, -loss), (1 - loss) / 2
    edge = 1e-15
    if lost + gained == n:
        q = most
    elif slope(least + edge) <= 0:
        q = least
    else:
        q = scipy.optimize.brentq(slope, least + edge, most - edge, xtol=1e-16, rtol=1e-14)
    variance = (2 * q + loss - loss**2) / n
    return ((lost - gained) / n - loss) / math.sqrt(variance)


counts = st.integers(1, 400).flatmap(
    lambda n: st.integers(0, n).flatmap(lambda b: st.tuples(st.just(n), st.just(b), st.integers(0, n - b)))
)


@given(counts=counts, loss=st.floats(0.001, 0.9))
def test_the_score_is_that_of_restricted_maximum_likelihood(counts: tuple[int, int, int], loss: float) -> None:
    n, lost, gained = counts
    for supposed in (loss, -loss):
        expected = z_by_maximum_likelihood(n, lost, gained, supposed)
        assert tango_z(Changes(n, lost, gained), supposed) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("lost", "gained", "n", "level", "interval"),
    [
        # R, PropCIs 0.3-0: -scoreci.mp(25, 28, 618, conf.level = 0.90), as published to four decimals.
        (25, 28, 618, 0.95, (-0.0247, 0.0148)),
        # Airway hyper-responsiveness (Bentur et al. 2009) in Fagerland, Lydersen and Laake 2014, Statistics in
        # Medicine 33, 2850-2875: 1 and 7 changed of 21, 95% interval -0.517 to -0.026.
        (1, 7, 21, 0.975, (-0.517, -0.026)),
    ],
)
def test_published_intervals_are_reproduced(
    lost: int, gained: int, n: int, level: float, interval: tuple[float, float]
) -> None:
    bounds = tango_bounds(Changes(n, lost, gained), scipy.stats.norm.ppf(level))
    assert bounds == pytest.approx(interval, abs=10.0 ** -len(str(abs(interval[0])).partition(".")[2]))


@given(counts=counts, level=st.sampled_from([0.6, 0.9, 0.95, 0.999]))
def test_a_bound_is_the_loss_at_which_the_score_is_the_quantile(counts: tuple[int, int, int], level: float) -> None:
    n, lost, gained = counts
    changes, z = Changes(n, lost, gained), float(scipy.stats.norm.ppf(level))
    lower, upper = tango_bounds(changes, z)
    assert -1 <= lower <= changes.loss <= upper <= 1
    assume(-0.999 < lower < upper < 0.999)
    by_optimizer = [
        scipy.optimize.brentq(lambda loss, at=at: z_by_maximum_likelihood(n, lost, gained, loss) - at, *bracket)
        for at, bracket in ((z, (-1 + 1e-9, changes.loss - 1e-12)), (-z, (changes.loss + 1e-12, 1 - 1e-9)))
        if abs(changes.loss) < 0.99
    ]
    assert [lower, upper][: len(by_optimizer)] == pytest.approx(by_optimizer, abs=1e-9)


@pytest.mark.parametrize(("tolerance", "rows"), [(0.02, 133), (0.05, 52), (0.01, 268), (0.5, 3)])
def test_so_many_rows_without_a_change_show_a_loss_below_the_tolerance_and_one_row_less_does_not(
    tolerance: float, rows: int
) -> None:
    z = float(scipy.stats.norm.ppf(0.95))
    assert rows_without_change(tolerance, z) == rows
    assert tango_bounds(Changes(rows, 0, 0), z)[1] <= tolerance
    assert tango_bounds(Changes(rows - 1, 0, 0), z)[1] > tolerance


def test_changed_rows_are_counted_by_their_direction() -> None:
    changes = Changes.of(outcomes([1, 0, 0, 1, 0, 1]), outcomes([1, 1, 1, 0, 0, 1]))
    assert (changes.n, changes.lost, changes.gained) == (6, 2, 1)


def test_rows_in_clusters_are_divided_by_the_design_effect_of_their_changes() -> None:
    # Of three clusters of two rows the first lost both.
    clusters = [0, 0, 1, 1, 2, 2]
    changes = Changes.of(outcomes([0, 0, 1, 1, 1, 1], clusters), outcomes([1] * 6, clusters))
    # Mean 1/3; e = 4/3, -2/3, -2/3; h = 1/3: CR2 variance (24/9) (3/2) / 36 = 1/9. Of independent rows
    # (2 - 4/6) / 36 = 1/27, so a ratio of 3. One cluster has changes, and wholly dependent rows have 12 / 6 = 2.
    effect = (1 * 3 + 2) / (1 + 1)
    assert (changes.n, changes.lost, changes.gained) == pytest.approx((6 / effect, 2 / effect, 0))
