"""Student's t and the normal distribution against scipy's, against closed forms, and where there is none."""

from __future__ import annotations

import math

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.metrics.noise.student import normal_cdf, normal_quantile, t_cdf, t_quantile

degrees = st.floats(0.5, 1e5)


@given(t=st.floats(-1e4, 1e4), df=degrees)
def test_the_chance_is_scipys(t: float, df: float) -> None:
    wanted = float(scipy.stats.t.cdf(t, df))

    assert t_cdf(t, df) == pytest.approx(wanted, rel=1e-9, abs=1e-290)


@given(p=st.floats(1e-12, 1 - 1e-12), df=degrees)
def test_the_quantile_is_scipys(p: float, df: float) -> None:
    assert t_quantile(p, df) == pytest.approx(float(scipy.stats.t.ppf(p, df)), rel=1e-9, abs=1e-9)


@given(p=st.floats(1e-50, 0.5), df=degrees)
def test_the_chance_of_at_most_a_quantile_is_its_own(p: float, df: float) -> None:
    assert t_cdf(t_quantile(p, df), df) == pytest.approx(p, rel=1e-10)


@given(t=st.floats(-1e100, 1e100))
def test_with_one_and_two_degrees_of_freedom_there_is_a_closed_form(t: float) -> None:
    t = -abs(t)

    assert t_cdf(t, 1.0) == pytest.approx(math.atan2(1, -t) / math.pi, rel=1e-14)
    root = math.hypot(t, math.sqrt(2))
    assert t_cdf(t, 2.0) == pytest.approx(1 / (root * (root - t)), rel=1e-14)


def test_ends() -> None:
    assert (t_cdf(-math.inf, 3.0), t_cdf(0.0, 3.0), t_cdf(math.inf, 3.0)) == (0.0, 0.5, 1.0)
    assert math.isnan(t_cdf(math.nan, 3.0))
    assert t_quantile(0.5, 3.0) == 0.0
    assert (normal_quantile(0.0), normal_quantile(0.5), normal_quantile(1.0)) == (-math.inf, 0.0, math.inf)


@given(x=st.floats(-37, 37))
def test_the_normal_chance_is_scipys(x: float) -> None:
    assert normal_cdf(x) == pytest.approx(float(scipy.stats.norm.cdf(x)), rel=1e-12)


@given(p=st.floats(1e-300, 1, exclude_max=True))
def test_the_normal_quantile_is_scipys(p: float) -> None:
    assert normal_quantile(p) == pytest.approx(float(scipy.stats.norm.ppf(p)), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("df", [0.0, -1.0, math.nan, math.inf])
def test_no_such_distribution_is_an_error(df: float) -> None:
    with pytest.raises(ValueError, match="degrees of freedom above 0"):
        t_cdf(-1.0, df)
    with pytest.raises(ValueError, match="degrees of freedom from 1/2"):
        t_quantile(0.95, df)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, math.nan])
def test_no_such_quantile_is_an_error(p: float) -> None:
    with pytest.raises(ValueError, match="a chance from 1e-50 to 1"):
        t_quantile(p, 3.0)
