"""The smallest damage that a verdict says to find, by hand."""

import math

import pytest
from msgspec.structs import replace

from pytest_lmgate.judge.result import Bounded
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Comparison
from pytest_lmgate.tools.drill.plan import smallest_seen
from tests.tools.drill.test_outcome import verdict

PASSED = verdict(10.0)


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
    texts = replace(PASSED, metric="bleu", comparison=compared)
    assert smallest_seen(texts) == pytest.approx(0.03)
    half = 1.6448536 / (1.6448536 + 0.8416212)  # of the distance for 80%, without that of 80% above the bound
    assert smallest_seen(texts, 0.5) == pytest.approx(0.02 + half * 0.01, rel=1e-6)
    assert smallest_seen(replace(PASSED, comparison=replace(compared, detectable=None))) is None


def test_a_loss_of_perplexity_brings_noise_that_an_unbroken_model_does_not_have() -> None:
    compared = Comparison("pass", 10.0, 10.0, 0.0, 0.0, Tolerance(0.02, relative=True), 0.95, 1600, 50, detectable=1e-4)
    seen = smallest_seen(replace(PASSED, comparison=compared))
    assert seen is not None
    loss = math.log(1 + seen)
    assert loss == pytest.approx(math.log(1.02) + (1.6448536 + 0.8416212) * math.sqrt(2 * loss / 1600), rel=1e-6)
    noisier = replace(compared, detectable=0.5)
    assert smallest_seen(replace(PASSED, comparison=noisier)) == pytest.approx(0.52)


def test_a_share_of_right_rows_is_noisier_at_its_limit_than_at_its_value() -> None:
    z, n = 1.6448536, 40
    exact = replace(PASSED, metric="exact", value=1.0, limit=0.8, direction="higher")
    bounded = Bounded(0.95, lower=1 / (1 + z**2 / n), upper=1.0, bounds="wilson")  # 40 of 40
    share = 0.8 - z * math.sqrt(0.8 * 0.2 / n)  # whose upper score bound is 0.8
    upper = (share + z**2 / (2 * n) + z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))) / (1 + z**2 / n)
    assert upper == pytest.approx(0.8, rel=1e-6)
    assert smallest_seen(replace(exact, bounded=bounded), 0.5) == pytest.approx(1 - share, rel=1e-6)
    more = 0.8416212 * math.sqrt(share * (1 - share) / n)
    assert smallest_seen(replace(exact, bounded=bounded)) == pytest.approx(1 - share + more, rel=1e-6)
    mirrored = replace(exact, value=0.0, limit=0.2, direction="lower")
    wrong = Bounded(0.95, lower=0.0, upper=1 - 1 / (1 + z**2 / n), bounds="wilson")
    assert smallest_seen(replace(mirrored, bounded=wrong), 0.5) == pytest.approx(1 - share, rel=1e-6)
