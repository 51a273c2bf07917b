"""Candidate against reference: by hand, against scipy's paired t-test, and what a verdict may never be."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.errors import ConfigError, MetricInputError
from pytest_lmgate.gates.comparisons.comparison import Comparison
from pytest_lmgate.gates.comparisons.means import compare_means
from pytest_lmgate.metrics.sample import Scale

PERPLEXITY = Scale("lower", exponential=True)
ACCURACY = Scale("higher")
LOSS = Scale("lower")
ONE_PERCENT = Tolerance(0.01, relative=True)


def pairs(change: float, noise: float, clusters: int = 40, size: int = 100, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Sums of a candidate and a reference whose mean differs by exactly `change`, and the counts."""
    generator = np.random.default_rng(seed)
    effects = generator.normal(0, noise, clusters)
    reference = generator.normal(3, 0.3, clusters) * size
    return reference + (change + effects - effects.mean()) * size, reference, np.full(clusters, size)


def perplexity(change: float, noise: float, **options: int) -> Comparison:
    return compare_means(*pairs(change, noise, **options), scale=PERPLEXITY, tolerance=ONE_PERCENT)


# The numbers.


def test_three_clusters_by_hand() -> None:
    candidate, reference = np.array([4.0, 8.0, 7.0]), np.array([2.0, 2.0, 3.0])

    found = compare_means(
        candidate, reference, np.array([1, 2, 1]), scale=PERPLEXITY, tolerance=Tolerance(30.0, relative=True)
    )

    # Differences 2, 6, 4 of 1, 2, 1 targets: d = 3, e = -1, 0, 1, h = 1/4, 1/2, 1/4; se^2 = (4/3 + 4/3) / 16.
    # G = diag((1 - h)^-1/2) (diag(n) - n n'/4), so B = diag(n) - n n'/4 = [[3,-2,-1],[-2,4,-2],[-1,-2,3]] / 4, and
    # M = diag(w) B B' diag(w) with w^2 = 4/3, 2, 4/3: its trace is 14/12 + 3 + 14/12 = 16/3, that of M M 152/9 - 2/9.
    trace, trace_of_square = 16 / 3, (2 * (14 / 12) ** 2 + 3**2 + 4 * (4 / 3 * 2) * (12 / 16) ** 2 + 2 * (2 / 12) ** 2)
    df = trace**2 / trace_of_square
    t = scipy.stats.t(df)
    assert found.df == pytest.approx(df)
    assert found.degradation == found.change == pytest.approx(math.e**3 - 1)
    assert found.lower == pytest.approx(math.exp(3 - t.ppf(0.95) * math.sqrt(1 / 6)) - 1)
    assert found.upper == pytest.approx(math.exp(3 + t.ppf(0.95) * math.sqrt(1 / 6)) - 1)
    assert found.detectable == pytest.approx(math.exp((t.ppf(0.95) + t.ppf(0.8)) * math.sqrt(1 / 6)) - 1)
    assert found.p_pass == pytest.approx(t.cdf((3 - math.log(31)) / math.sqrt(1 / 6)))
    assert (found.candidate, found.reference) == pytest.approx((math.exp(19 / 4), math.exp(7 / 4)))
    assert (found.n, found.clusters, found.decision) == (4, 3, "inconclusive")


@given(st.integers(0, 200), st.integers(2, 60), st.sampled_from([0.6, 0.9, 0.95, 0.99]))
def test_clusters_of_one_row_give_the_paired_t_test(seed: int, rows: int, confidence: float) -> None:
    half, reference = np.random.default_rng(seed).normal(0.5, 0.2, (2, rows))
    # Differences that lie evenly around their mean are not skewed, so that Hall's bounds are no wider.
    candidate, reference = np.append(reference + half, reference - half) + 0.1, np.append(reference, reference)

    found = compare_means(
        candidate,
        reference,
        np.ones(2 * rows, dtype=np.int64),
        scale=ACCURACY,
        tolerance=Tolerance(0.05, relative=False),
        confidence=confidence,
    )

    assert found.change == pytest.approx(candidate.mean() - reference.mean())
    assert found.degradation == -found.change
    less = scipy.stats.ttest_1samp(reference - candidate, 0.05, alternative="less")
    more = scipy.stats.ttest_1samp(reference - candidate, 0.05, alternative="greater")
    assert found.p_pass == pytest.approx(less.pvalue)
    assert found.p_fail == pytest.approx(more.pvalue)
    assert found.upper == pytest.approx(less.confidence_interval(confidence).high)
    assert found.lower == pytest.approx(more.confidence_interval(confidence).low)


@given(st.integers(0, 200), st.integers(3, 60), st.sampled_from([0.6, 0.9, 0.95, 0.99]))
def test_a_bound_is_halls_where_that_is_wider_than_the_paired_t_tests(seed: int, rows: int, confidence: float) -> None:
    lost = np.random.default_rng(seed).lognormal(-3, 1, rows)

    found = compare_means(
        -lost,
        np.zeros(rows),
        np.ones(rows, dtype=np.int64),
        scale=ACCURACY,
        tolerance=Tolerance(0.05, relative=False),
        confidence=confidence,
    )

    # Rows alone: CR2 residuals are the plain ones times a constant, so k is their skewness over sqrt(n).
    mean, error, k = lost.mean(), lost.std(ddof=1) / math.sqrt(rows), scipy.stats.skew(lost) / math.sqrt(rows)
    t = scipy.stats.t.ppf(confidence, rows - 1)
    above, below = (3 / k * (np.cbrt(1 + k * (y - k / 6)) - 1) for y in (-t, t))
    assert found.upper == pytest.approx(mean + max(t, -above) * error)
    assert found.lower == pytest.approx(mean - max(t, below) * error)
    beyond = found.degradation > 0.05
    assert found.bounds == ("hall" if (below > t if beyond else -above > t) else "student")


def test_perplexity_per_word_and_bits_per_byte_count_what_the_text_holds() -> None:
    sums = pairs(0.02, 0.01)
    per_token = compare_means(*sums, scale=PERPLEXITY, tolerance=ONE_PERCENT)

    per_word = compare_means(
        *sums, scale=Scale("lower", exponential=True, factor=1.5), tolerance=Tolerance(0.01, relative=True)
    )
    bits = compare_means(*sums, scale=Scale("lower", factor=0.4), tolerance=Tolerance(0.001, relative=False))

    assert per_word.candidate == pytest.approx(per_token.candidate**1.5)
    assert 1 + per_word.upper == pytest.approx((1 + per_token.upper) ** 1.5)
    assert bits.degradation == pytest.approx(0.4 * 0.02)
    assert bits.upper == pytest.approx(0.4 * math.log1p(per_token.upper))


@pytest.mark.parametrize("scale", [ACCURACY, LOSS, PERPLEXITY], ids=["higher", "lower", "exponential"])
@pytest.mark.parametrize("relative", [True, False])
def test_the_noise_of_each_kind_of_change_is_that_of_the_jackknife(scale: Scale, relative: bool) -> None:
    """Another estimate of the same noise, from the values themselves: equal to first order."""
    generator = np.random.default_rng(3)
    clusters = 400
    counts = generator.integers(50, 150, clusters)
    reference = counts * generator.normal(0.6, 0.05, clusters)
    candidate = reference - counts * generator.normal(0.03, 0.05, clusters)

    found = compare_means(candidate, reference, counts, scale=scale, tolerance=Tolerance(0.05, relative=relative))

    def degradation(kept: np.ndarray) -> float:
        c, r = (scale.value(sums[kept].sum() / counts[kept].sum()) for sums in (candidate, reference))
        return (c - r) / (r if relative else 1) * (1 if scale.direction == "lower" else -1)

    every = np.arange(clusters)
    left_out = np.array([degradation(np.delete(every, each)) for each in every])
    jackknife = math.sqrt((clusters - 1) * left_out.var())
    assert found.degradation == pytest.approx(degradation(every))
    margin = scipy.stats.t.ppf(0.95, found.df) * jackknife
    assert found.upper - found.degradation == pytest.approx(margin, rel=0.03)
    assert found.degradation - found.lower == pytest.approx(margin, rel=0.03)


# The verdicts.


@pytest.mark.parametrize(
    ("change", "noise", "decision", "build_fails"),
    [
        (0.0, 0.01, "pass", False),
        (-0.05, 0.01, "pass", False),
        (0.03, 0.01, "fail", True),
        (0.008, 0.02, "inconclusive", False),
        (0.012, 0.02, "inconclusive", True),
        (0.0, 0.2, "inconclusive", False),
    ],
)
def test_bounds_within_beyond_and_around_the_tolerance(
    change: float, noise: float, decision: str, build_fails: bool
) -> None:
    found = perplexity(change, noise)

    assert found.decision == decision
    assert found.fails_build() is build_fails
    assert found.fails_build(strict=True) is (decision != "pass")


@settings(max_examples=200)
@given(
    change=st.floats(-0.3, 0.3),
    noise=st.floats(0, 0.5),
    tolerance=st.floats(0, 0.3),
    relative=st.booleans(),
    scale=st.sampled_from([PERPLEXITY, ACCURACY, LOSS]),
    clusters=st.integers(2, 30),
)
def test_the_verdict_is_what_its_bounds_and_its_p_values_say(
    change: float, noise: float, tolerance: float, relative: bool, scale: Scale, clusters: int
) -> None:
    found = compare_means(
        *pairs(change, noise, clusters=clusters), scale=scale, tolerance=Tolerance(tolerance, relative)
    )

    assert found.lower <= found.degradation <= found.upper
    assert found.decision == (
        "pass" if found.upper <= tolerance else "fail" if found.lower > tolerance else "inconclusive"
    )
    if min(abs(found.upper - tolerance), abs(found.lower - tolerance)) > 1e-9:
        assert (found.p_pass < 0.05) is (found.decision == "pass")
        assert (found.p_fail < 0.05) is (found.decision == "fail")
    # Each is the larger of Student's, which add up to 1, and Hall's.
    assert found.p_pass + found.p_fail >= 1 - 1e-9
    assert found.fails_build() is (found.degradation > tolerance), "outside strict mode, by the point estimate"
    assert (found.needed is None) or found.decision == "inconclusive"


@settings(max_examples=50)
@given(st.floats(-0.2, 0.2), st.floats(0.001, 0.3), st.booleans())
def test_direction_belongs_to_the_metric(change: float, noise: float, relative: bool) -> None:
    """What makes a loss worse makes an accuracy better: the bounds change places."""
    sums = pairs(change, noise)
    tolerance = Tolerance(0.01, relative)

    loss, accuracy = (compare_means(*sums, scale=scale, tolerance=tolerance) for scale in (LOSS, ACCURACY))

    assert loss.change == pytest.approx(accuracy.change)
    assert (loss.lower, loss.upper) == pytest.approx((-accuracy.upper, -accuracy.lower))
    assert not (loss.decision == accuracy.decision == "pass" and abs(change) > 0.1)


def test_a_one_percent_tolerance_passes_neither_a_worse_perplexity_nor_a_worse_accuracy() -> None:
    worse_perplexity = perplexity(0.1, 0.001)
    worse_accuracy = compare_means(*pairs(-0.3, 0.001), scale=ACCURACY, tolerance=ONE_PERCENT)
    better_accuracy = compare_means(*pairs(0.3, 0.001), scale=ACCURACY, tolerance=ONE_PERCENT)

    assert (worse_perplexity.decision, worse_accuracy.decision, better_accuracy.decision) == ("fail", "fail", "pass")


def test_an_upper_bound_on_the_tolerance_itself_passes_and_a_lower_one_does_not_fail() -> None:
    bound = perplexity(0.002, 0.01)
    sums = pairs(0.002, 0.01)

    at_the_upper = compare_means(*sums, scale=PERPLEXITY, tolerance=Tolerance(bound.upper, relative=True))
    below_it = compare_means(*sums, scale=PERPLEXITY, tolerance=Tolerance(bound.upper * (1 - 1e-12), relative=True))

    assert (at_the_upper.decision, below_it.decision) == ("pass", "inconclusive")


@pytest.mark.parametrize("tolerance", [Tolerance(0.0, relative=True), Tolerance(0.0, relative=False), ONE_PERCENT])
@pytest.mark.parametrize("scale", [PERPLEXITY, ACCURACY, LOSS])
@pytest.mark.parametrize("clusters", [2, 40])
def test_equal_sums_of_tokens_pass_with_a_change_of_exactly_0(
    tolerance: Tolerance, scale: Scale, clusters: int
) -> None:
    _, reference, counts = pairs(0, 0.1, clusters=clusters)

    found = compare_means(reference.copy(), reference, counts, scale=scale, tolerance=tolerance)

    assert found.decision == "pass"
    assert repr((found.change, found.degradation)) == "(0.0, 0.0)"
    assert not found.fails_build(strict=True)
    assert (found.lower, found.upper) == (0.0, 0.0)


@pytest.mark.parametrize(("change", "build_fails"), [(0.005, False), (0.5, True), (-0.5, False)])
@pytest.mark.parametrize("empty", [0, 3])
def test_a_single_cluster_is_inconclusive_however_large_the_change_and_says_why(
    change: float, build_fails: bool, empty: int
) -> None:
    candidate, reference, counts = (
        np.append(part, np.zeros(empty, part.dtype)) for part in pairs(change, 0, clusters=1)
    )

    found = compare_means(candidate, reference, counts, scale=PERPLEXITY, tolerance=ONE_PERCENT)

    assert found.decision == "inconclusive"
    assert found.reason == "1 independent row: the noise is estimated from at least two"
    assert found.lower is found.upper is found.p_pass is found.p_fail is found.detectable is found.needed is None
    assert found.fails_build() is build_fails


@pytest.mark.parametrize(("change", "decision"), [(0.5, "fail"), (0.001, "pass")])
def test_the_same_change_in_every_cluster_has_no_noise_to_doubt_it(change: float, decision: str) -> None:
    counts = np.full(5, 4)

    found = compare_means(counts * (2.0 + change), counts * 2.0, counts, scale=LOSS, tolerance=Tolerance(0.1, False))

    assert found.decision == decision
    assert (found.p_pass < 1e-9) is (decision == "pass")


def test_an_inconclusive_build_fails_by_its_point_estimate() -> None:
    found = perplexity(0.0, 0.01)
    assert found.tolerance == ONE_PERCENT

    failing = {
        (decision, degradation, strict)
        for decision, degradation, strict in itertools.product(
            ("pass", "fail", "inconclusive"), (0.0, 0.01, 0.02), (False, True)
        )
        if replace(found, decision=decision, degradation=degradation).fails_build(strict=strict)
    }

    assert failing == {
        *itertools.product(["fail"], (0.0, 0.01, 0.02), (False, True)),
        *itertools.product(["inconclusive"], (0.0, 0.01, 0.02), [True]),
        ("inconclusive", 0.02, False),
    }


# What the gate can see, and what it would take.


def test_an_unchanged_model_passes_four_times_in_five_where_the_tolerance_is_the_detectable_change() -> None:
    generator = np.random.default_rng(1)
    clusters, noise, trials = 50, 0.02, 3000
    counts = np.full(clusters, 100)
    t = scipy.stats.t(clusters - 1)
    se = noise / math.sqrt(clusters)
    tolerance = Tolerance(math.expm1((t.ppf(0.95) + t.ppf(0.8)) * se), relative=True)
    zero = np.zeros(clusters)

    found = [
        compare_means(100 * generator.normal(0, noise, clusters), zero, counts, scale=PERPLEXITY, tolerance=tolerance)
        for _ in range(trials)
    ]

    passed = sum(one.decision == "pass" for one in found) / trials
    assert passed == pytest.approx(0.8, abs=3 * math.sqrt(0.8 * 0.2 / trials) + 0.005)
    # Of the wider bound, which chance makes Hall's on one side: a little more.
    assert 1 <= np.mean([one.detectable for one in found]) / tolerance.size <= 1.03


@pytest.mark.parametrize(("change", "noise"), [(0.006, 0.02), (0.012, 0.03), (0.0, 0.1)])
def test_as_much_more_of_the_same_text_as_is_said_to_be_needed_decides(change: float, noise: float) -> None:
    candidate, reference, counts = pairs(change, noise)
    found = compare_means(candidate, reference, counts, scale=PERPLEXITY, tolerance=ONE_PERCENT)
    times = math.ceil(found.needed / found.n)

    more = compare_means(
        *(np.tile(part, times) for part in (candidate, reference, counts)), scale=PERPLEXITY, tolerance=ONE_PERCENT
    )

    assert found.decision == "inconclusive"
    assert found.needed > found.n
    assert more.decision == ("pass" if change < 0.01 else "fail")


def test_a_degradation_on_the_tolerance_is_decided_by_no_amount_of_text() -> None:
    candidate, reference, counts = np.array([1.0, 4.0]), np.array([0.0, 0.0]), np.array([5, 5])

    found = compare_means(candidate, reference, counts, scale=LOSS, tolerance=Tolerance(0.5, relative=False))

    assert (found.decision, found.degradation, found.needed) == ("inconclusive", 0.5, None)


# What cannot be compared.


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["candidate", "reference", "both"])
def test_nan_and_infinity_are_errors_that_name_the_side(value: float, side: str) -> None:
    candidate, reference, counts = pairs(0, 0.01)
    for name, sums in (("candidate", candidate), ("reference", reference)):
        if side in (name, "both"):
            sums[3] = value

    with pytest.raises(MetricInputError, match="expected finite sums, got 1 of 40 clusters") as refused:
        compare_means(candidate, reference, counts, scale=PERPLEXITY, tolerance=ONE_PERCENT)

    assert str(refused.value).startswith("reference" if side == "reference" else "candidate")


@pytest.mark.parametrize(
    ("candidate", "reference", "counts", "message"),
    [
        ([1.0, 2.0], [1.0], [1, 1], "the same clusters, got shapes"),
        ([1.0, 2.0], [1.0, 2.0], [1], "the same clusters, got shapes"),
        ([[1.0]], [[1.0]], [[1]], "the same clusters, got shapes"),
        ([], [], [], "at least one above 0"),
        ([0.0, 0.0], [0.0, 0.0], [0, 0], "at least one above 0"),
        ([1.0, 2.0], [1.0, 2.0], [2, -1], "expected whole numbers"),
        ([1.0, 2.0], [1.0, 2.0], [2.0, 1.0], "expected whole numbers"),
        ([1.0, 2.0], [1.0, 0.0], [2, 0], "candidate: expected a sum of 0 where a cluster has no targets"),
    ],
)
def test_clusters_that_are_no_pairs_are_refused(candidate: list, reference: list, counts: list, message: str) -> None:
    with pytest.raises(MetricInputError, match=message):
        compare_means(
            np.array(candidate, dtype=float),
            np.array(reference, dtype=float),
            np.array(counts) if counts else np.array([], dtype=np.int64),
            scale=LOSS,
            tolerance=ONE_PERCENT,
        )


@pytest.mark.parametrize("reference", [0.0, -1.0])
def test_a_percentage_of_nothing_is_refused(reference: float) -> None:
    with pytest.raises(MetricInputError, match="a change in percent needs a reference above 0"):
        compare_means(
            np.ones(4), np.full(4, reference), np.full(4, 2), scale=ACCURACY, tolerance=Tolerance(0.01, relative=True)
        )


@pytest.mark.parametrize("tolerance", [ONE_PERCENT, Tolerance(1.0, relative=False)])
def test_a_perplexity_beyond_every_float_is_no_verdict_on_either_side(tolerance: Tolerance) -> None:
    high, low, counts = np.array([8000.0, 8100.0]), np.array([5.0, 6.0]), np.array([10, 10])
    for sides in ((high, low), (low, high), (high, high)):
        with pytest.raises(MetricInputError, match="a change needs finite values"):
            compare_means(*sides, counts, scale=PERPLEXITY, tolerance=tolerance)


def test_a_ratio_that_one_cluster_makes_alone_has_no_interval() -> None:
    candidate, reference, counts = np.array([1.004, 0, 0]), np.array([1.0, 0, 0]), np.array([3, 1, 1])
    found = compare_means(candidate, reference, counts, scale=LOSS, tolerance=ONE_PERCENT)
    assert (found.decision, found.clusters, found.upper) == ("inconclusive", 1, None)
    same = compare_means(reference, reference, counts, scale=LOSS, tolerance=ONE_PERCENT)
    assert (same.decision, same.degradation) == ("inconclusive", 0)


@pytest.mark.parametrize("confidence", [0.5, 1.0, 95, 0.0, -0.95, math.nan])
def test_a_confidence_is_a_level(confidence: float) -> None:
    with pytest.raises(ConfigError, match="confidence: expected a one-sided level"):
        compare_means(*pairs(0, 0.01), scale=LOSS, tolerance=ONE_PERCENT, confidence=confidence)


@pytest.mark.parametrize(
    "options",
    [
        {"direction": "higher", "exponential": True},
        {"direction": "lower", "factor": 0.0},
        {"direction": "lower", "factor": -1.0},
    ],
)
def test_a_scale_that_cannot_be_is_refused(options: dict) -> None:
    with pytest.raises(ValueError, match="expected"):
        Scale(**options)
