"""The smallest damage that a verdict says to find, by hand."""

import pytest
from msgspec.structs import replace

from pytest_lmgate.judge.result import Bounded, Verdict
from pytest_lmgate.judge.verdict import smallest_seen
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Comparison

PASSED = replace(
    Verdict.unmeasured(id="g", test="g", marker="ppl_max", metric="ppl", model="m", dataset="d", limit=12.0),
    verdict="pass",
    value=10.0,
    direction="lower",
)


def test_a_value_alone_fails_beyond_the_limit() -> None:
    assert smallest_seen(PASSED) == 2.0
    assert smallest_seen(replace(PASSED, limit=None)) is None


def test_a_bound_adds_its_distance_and_as_much_again_as_a_power_of_80_percent_needs() -> None:
    bounded = Bounded(0.95, lower=9.0, upper=11.5, bounds="t")
    more = 1 + 0.8416212 / 1.6448536  # normal quantiles of 80% and 95%
    assert smallest_seen(replace(PASSED, bounded=bounded)) == pytest.approx(2 + more * 1.0, rel=1e-6)
    higher = replace(PASSED, direction="higher", limit=8.0, bounded=bounded)
    assert smallest_seen(higher) == pytest.approx(2 + more * 1.5, rel=1e-6)


def test_a_comparison_adds_what_it_detects_to_the_tolerance() -> None:
    compared = Comparison("pass", 10.0, 10.0, 0.0, 0.0, Tolerance(0.02, relative=True), 0.95, 100, 50, detectable=0.01)
    assert smallest_seen(replace(PASSED, comparison=compared)) == pytest.approx(0.03)
    assert smallest_seen(replace(PASSED, comparison=replace(compared, detectable=None))) is None
