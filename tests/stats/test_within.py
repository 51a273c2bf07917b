"""A two-sided tolerance: PASS by two one-sided tests, FAIL beyond it on either side, and how often each is wrong."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.errors import ConfigError
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Comparison, decision_of
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.sample import Sample, Scale
from tests.stats.samples import right_or_wrong

WITHIN = Tolerance(0.02, relative=True, two_sided=True)
ROWS = 100
PERPLEXITY = Scale("lower", exponential=True)
REPETITIONS = 600
ERROR = 3 * math.sqrt(0.05 * 0.95 / REPETITIONS)  # three Monte Carlo standard errors of 5%


def perplexities(changes: np.ndarray, tolerance: Tolerance, scale: Scale = PERPLEXITY) -> Comparison:
    """Compare rows of 10 tokens whose mean loss differs by `changes`."""
    counts, sums = np.full(len(changes), 10), np.full((len(changes), 1), 20.0)
    here, there = (Sample(each, counts, scale) for each in (sums + 10 * changes[:, None], sums))
    return compare(here, there, tolerance=tolerance)


def spread(mean: float, noise: float) -> np.ndarray:
    """Changes with this mean, and this standard error of it."""
    drawn = np.random.default_rng(3).normal(size=ROWS)
    return mean + noise * math.sqrt(ROWS) * (drawn - drawn.mean()) / drawn.std(ddof=1)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("size", "noise", "decision", "fails"),
    [
        (0.0, 0.005, "pass", False),
        (0.04, 0.005, "fail", True),
        (0.015, 0.005, "inconclusive", False),
        (0.025, 0.005, "inconclusive", True),
        (0.0, 0.05, "inconclusive", False),
    ],
)
def test_a_gain_is_judged_as_a_loss_is(sign: int, size: float, noise: float, decision: str, fails: bool) -> None:
    mean = sign * size
    found = perplexities(spread(mean, noise), WITHIN)
    assert (found.decision, found.fails_build()) == (decision, fails)
    assert found.fails_build(strict=True) == (decision != "pass")
    one_sided = perplexities(spread(mean, noise), Tolerance(0.02, relative=True))
    assert (found.lower, found.upper) == (one_sided.lower, one_sided.upper)
    if mean < 0:
        assert one_sided.decision == "pass"


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_decision_is_that_of_both_sides(lower: float, width: float, size: float) -> None:
    upper = lower + width
    both, one = Tolerance(size, relative=False, two_sided=True), Tolerance(size, relative=False)
    loss, gain = decision_of(lower, upper, one), decision_of(-upper, -lower, one)
    expected = "fail" if "fail" in (loss, gain) else "pass" if loss == gain == "pass" else "inconclusive"
    assert decision_of(lower, upper, both) == expected


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("mean", [-0.03, -0.02, -0.01, 0.0, 0.01, 0.02, 0.03])
def test_p_values_say_what_the_verdict_says(mean: float, relative: bool) -> None:
    tolerance = Tolerance(0.02 if relative else 0.15, relative=relative, two_sided=True)
    for found in (
        perplexities(spread(mean, 0.006), tolerance),
        perplexities(spread(mean, 0.006), tolerance, Scale("lower")),
        compare(*_rows(round(1000 * mean), 40), tolerance=Tolerance(0.02, relative=False, two_sided=True)),
    ):
        assert (found.p_pass <= 0.05) == (found.decision == "pass")
        assert (found.p_fail <= 0.05) == (found.decision == "fail")


def _rows(lost: int, changed: int) -> tuple[Sample, Sample]:
    """1,000 rows of which so many changed, and by which so many fewer are right."""
    reference, candidate = np.arange(1000) < 500, np.arange(1000) < 500
    candidate[: (changed + lost) // 2] = False
    candidate[500 : 500 + (changed - lost) // 2] = True
    return right_or_wrong(candidate), right_or_wrong(reference)


def test_four_of_five_unchanged_models_pass_at_the_smallest_visible_change() -> None:
    random, noise = np.random.default_rng(5), 0.01
    sizes = [perplexities(random.normal(0, noise * 10, ROWS), WITHIN).detectable for _ in range(50)]
    tolerance = Tolerance(float(np.median(np.array(sizes, dtype=float))), relative=True, two_sided=True)
    passed = [perplexities(random.normal(0, noise * 10, ROWS), tolerance).decision == "pass" for _ in range(600)]
    assert 0.75 < np.mean(passed) < 0.87


def rates(true: float, noise: float, tolerance: float, seed: int) -> tuple[float, float]:
    """Return the shares of PASS and FAIL of models whose true relative change is `true`."""
    random = np.random.default_rng(seed)
    allowed = Tolerance(tolerance, relative=True, two_sided=True)
    drawn = math.log1p(true) + noise * math.sqrt(ROWS) * random.normal(size=(REPETITIONS, ROWS))
    decisions = [perplexities(changes, allowed).decision for changes in drawn]
    return decisions.count("pass") / REPETITIONS, decisions.count("fail") / REPETITIONS


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("noise", [0.002, 0.01])
def test_a_model_at_the_end_of_what_is_allowed_passes_or_fails_in_a_twentieth(side: int, noise: float) -> None:
    passed, failed = rates(side * 0.02, noise, 0.02, seed=side + 7)
    assert passed <= 0.05 + ERROR
    assert failed <= 0.05 + ERROR


def test_noise_far_above_what_is_allowed_fails_a_tenth_since_both_sides_have_their_level() -> None:
    passed, failed = rates(0.0, 0.02, 0.0002, seed=9)
    assert passed == 0
    assert 0.05 + ERROR < failed <= 0.1 + 1.4 * ERROR


def test_all_rows_of_two_sides_that_differ_by_nothing_are_within_nothing() -> None:
    nothing = Tolerance(0.0, relative=True, two_sided=True)
    assert perplexities(np.zeros(ROWS), nothing).decision == "pass"
    assert perplexities(np.full(ROWS, -0.01), nothing).decision == "fail"


def test_within_is_read_as_a_tolerance_is() -> None:
    assert Tolerance.parse("2%", "within") == WITHIN
    assert (str(WITHIN), WITHIN.written) == ("±2%", "2%")
    for written in ("2", -1, True, "200%"):
        with pytest.raises(ConfigError, match="within: expected"):
            Tolerance.parse(written, "within")
