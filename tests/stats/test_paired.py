"""Samples against each other: refused unless they are of the same, bootstrapped where there is no closed form."""

import itertools
import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.errors import ComparisonError, ConfigError, MetricInputError
from pytest_lmgate.metrics import sacrebleu_metrics, texts
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.bootstrap import Resamples
from pytest_lmgate.stats.comparison import Comparison, decision_of
from pytest_lmgate.stats.paired import Changes, compare, tango_bounds
from pytest_lmgate.stats.sample import Sample, Scale
from tests.stats.samples import outcomes, right_or_wrong, scores

ONE_PERCENT = Tolerance(0.01, relative=True)
FIVE_POINTS = Tolerance(0.05, relative=False)
PERPLEXITY, ACCURACY, LOSS = Scale("lower", exponential=True), Scale("higher"), Scale("lower")
Z = float(scipy.stats.norm.ppf(0.95))
WORDS = [f"w{index}" for index in range(30)]
IDENTITY = {"data": "d", "protocol": "p", "targets": "t"}


def compare_means(
    candidate: np.ndarray, reference: np.ndarray, counts: np.ndarray, *, scale: Scale, **how: Any
) -> Comparison:
    """Compare sums over clusters, at a tolerance of 1% if nothing else is said."""
    here, there = (Sample(sums[:, None], counts, scale) for sums in (candidate, reference))
    return compare(here, there, **{"tolerance": ONE_PERCENT, **how})


def corpus(rows: int, error: float, seed: int = 0) -> tuple[list[str], list[list[str]]]:
    """Sentences with a share of their words replaced, and what they were."""
    random = np.random.default_rng(seed)
    references = [random.choice(WORDS, 12).tolist() for _ in range(rows)]
    wrong = np.random.default_rng(seed + 1)
    written = [[w if wrong.random() > error else "x" for w in row] for row in references]
    return [" ".join(row) for row in written], [[" ".join(row)] for row in references]


def bleu_sample(rows: int, error: float) -> Sample:
    score = texts.text_score(sacrebleu_metrics.bleu(), *corpus(rows, error))
    assert score.sample is not None
    return replace(score.sample, identity=IDENTITY)


def likelihoods(sums: list[float]) -> Sample:
    return Sample(np.array(sums)[:, None], np.full(len(sums), 10), Scale("lower", exponential=True), identity=IDENTITY)


def test_the_same_texts_of_two_models_are_rows_without_a_change() -> None:
    found = compare(bleu_sample(40, 0.2), bleu_sample(40, 0.2), tolerance=ONE_PERCENT)
    # Of 40 rows none changed: z^2 / (40 + z^2) of others may, each by up to 100 points.
    assert (found.decision, found.bounds, found.p_value) == ("inconclusive", "unchanged", None)
    assert found.upper == pytest.approx(100 * Z**2 / (40 + Z**2) / found.reference)
    assert found.needed > 40


def test_the_bounds_are_those_of_the_resampled_change_of_ratios() -> None:
    candidate, reference = bleu_sample(50, 0.25), bleu_sample(50, 0.2)
    found = compare(candidate, reference, tolerance=ONE_PERCENT)
    metric, random = sacrebleu_metrics.bleu(), np.random.default_rng(12345)
    drawn = []
    for _ in range(1000):
        rows = random.choice(50, size=50)
        here, there = (metric.value(each.sums[rows].sum(axis=0)) for each in (candidate, reference))
        drawn.append(1 - here / there)
    assert found.degradation == pytest.approx(1 - candidate.value() / reference.value())
    assert (found.lower, found.upper) == pytest.approx(
        Resamples(np.sort(drawn), found.degradation, 50).bounds(0.95)[:2]
    )


@pytest.mark.parametrize("rows", [2, 4])
def test_few_rows_keep_their_level(rows: int) -> None:
    """At a change equal to the tolerance, of rows that are drawn from a normal: PASS and FAIL at most 5% each."""
    metric = texts.TextMetric("share", "higher", "share", lambda *_: [], value=lambda sums: float(sums[0] / sums[1]))
    random, runs, decisions = np.random.default_rng(rows), 200, []
    weights = np.ones(rows)
    reference = Sample(np.stack([50 * weights, weights], axis=1), np.ones(rows, dtype=np.int64), metric=metric)
    for _ in range(runs):
        sums = reference.sums - np.stack([1 + random.normal(size=rows), 0 * weights], axis=1)
        found = compare(replace(reference, sums=sums), reference, tolerance=Tolerance(1.0, relative=False))
        assert (found.decision == "pass") == (found.p_pass <= 0.05)
        assert (found.decision == "fail") == (found.p_fail <= 0.05)
        decisions.append(found.decision)
    most = 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    assert max(decisions.count("pass"), decisions.count("fail")) / runs <= most


def test_one_row_has_no_bounds_also_where_two_models_wrote_the_same() -> None:
    alike = compare(bleu_sample(1, 0.2), bleu_sample(1, 0.2), tolerance=ONE_PERCENT)
    other = compare(bleu_sample(1, 0.5), bleu_sample(1, 0.0), tolerance=ONE_PERCENT)
    answers = compare(right_or_wrong([True]), right_or_wrong([False]), tolerance=FIVE_POINTS)
    for found in (alike, answers):
        assert (found.decision, found.lower) == ("inconclusive", None)
    assert (other.decision, other.upper, other.fails_build()) == ("inconclusive", None, True)
    assert "at least two" in other.reason


@pytest.mark.parametrize(
    ("part", "says"),
    [("data", "different data"), ("protocol", r"\(p here, other there\)"), ("targets", "bits per byte")],
)
def test_samples_of_something_else_are_refused_with_what_differs(part: str, says: str) -> None:
    a = likelihoods([1.0, 2.0])
    with pytest.raises(ComparisonError, match=says):
        compare(a, replace(a, identity={**IDENTITY, part: "other"}), tolerance=ONE_PERCENT)


def test_resamples_in_which_nothing_is_right_are_unbounded_changes_not_errors() -> None:
    zeros = np.zeros(10)
    right = np.array([12, 12, 12, 11, 10, 9, 12, 11, 10, 9.0])
    wrong = np.concatenate([[12, 12], zeros[:4], [12, 11, 10, 9]])
    rows = [right, *[wrong] * 5]

    def sample(statistics: list[np.ndarray]) -> Sample:
        return Sample(np.array(statistics), np.ones(6, dtype=np.int64), metric=sacrebleu_metrics.bleu())

    reference = sample(rows)
    assert compare(reference, reference, tolerance=ONE_PERCENT, same=True).decision == "pass"
    worse = compare(sample([*rows[1:], wrong]), reference, tolerance=ONE_PERCENT)
    assert worse.degradation == 1
    better = compare(sample([right, right, *rows[2:]]), reference, tolerance=ONE_PERCENT)
    assert (better.lower, better.detectable, better.decision) == (-math.inf, None, "pass")


# Candidate against reference: by hand, by formulas, and what a verdict may never be.


def pairs(change: float, noise: float, clusters: int = 40, size: int = 100, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Sums of a candidate and a reference whose mean differs by exactly `change`, and the counts."""
    generator = np.random.default_rng(seed)
    effects = generator.normal(0, noise, clusters)
    reference = generator.normal(3, 0.3, clusters) * size
    return reference + (change + effects - effects.mean()) * size, reference, np.full(clusters, size)


def perplexity(change: float, noise: float, **options: int) -> Comparison:
    return compare_means(*pairs(change, noise, **options), scale=PERPLEXITY)


def assert_verdict_is_what_bounds_and_p_values_say(found: Comparison) -> None:
    tolerance = found.tolerance.size
    assert found.lower <= found.degradation + 1e-12
    assert found.degradation - 1e-12 <= found.upper
    assert found.decision == (
        "pass" if found.upper <= tolerance else "fail" if found.lower > tolerance else "inconclusive"
    )
    if min(abs(found.upper - tolerance), abs(found.lower - tolerance)) > 1e-9:
        assert (found.p_pass < 0.05) is (found.decision == "pass")
        assert (found.p_fail < 0.05) is (found.decision == "fail")
    assert (found.needed is None) or found.decision == "inconclusive"


def test_three_clusters_by_hand() -> None:
    candidate, reference, counts = np.array([4.0, 8.0, 7.0]), np.array([2.0, 2.0, 3.0]), np.array([1, 2, 1])
    found = compare_means(candidate, reference, counts, scale=PERPLEXITY, tolerance=Tolerance(30.0, relative=True))
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


@given(st.integers(0, 200), st.integers(3, 60), st.sampled_from([0.6, 0.9, 0.95, 0.99]))
def test_a_bound_is_halls_where_that_is_wider_than_the_paired_t_tests(seed: int, rows: int, confidence: float) -> None:
    lost = np.random.default_rng(seed).lognormal(-3, 1, rows)
    rows_alone = -lost, np.zeros(rows), np.ones(rows, dtype=np.int64)

    def at(tolerance: float) -> Comparison:
        size = Tolerance(tolerance, relative=False)
        return compare_means(*rows_alone, scale=ACCURACY, tolerance=size, confidence=confidence)

    found = at(0.05)
    # Rows alone: CR2 residuals are the plain ones times a constant, so k is their skewness over sqrt(n).
    mean, error, k = lost.mean(), lost.std(ddof=1) / math.sqrt(rows), scipy.stats.skew(lost) / math.sqrt(rows)
    t = scipy.stats.t.ppf(confidence, rows - 1)
    above, below = (3 / k * (np.cbrt(1 + k * (y - k / 6)) - 1) for y in (-t, t))
    assert found.upper == pytest.approx(mean + max(t, -above) * error)
    assert found.lower == pytest.approx(mean - max(t, below) * error)
    beyond = found.degradation > 0.05
    assert found.bounds == ("hall" if (below > t if beyond else -above > t) else "student")
    # At a bound the p-value is what the confidence leaves.
    assert at(found.upper).p_pass == pytest.approx(1 - confidence)
    assert found.lower < 0 or at(found.lower).p_fail == pytest.approx(1 - confidence)


@pytest.mark.parametrize("scale", [ACCURACY, LOSS, PERPLEXITY], ids=["higher", "lower", "exponential"])
@pytest.mark.parametrize("relative", [True, False])
def test_the_noise_of_each_kind_of_change_is_that_of_the_jackknife(scale: Scale, relative: bool) -> None:
    """Another estimate of the same noise, from the values themselves: equal to first order."""
    generator, clusters = np.random.default_rng(3), 400
    counts = generator.integers(50, 150, clusters)
    reference = counts * generator.normal(0.6, 0.2, clusters)
    candidate = reference - counts * generator.normal(0.2, 0.05, clusters)
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
    sums = pairs(change, noise, clusters=clusters)
    found = compare_means(*sums, scale=scale, tolerance=Tolerance(tolerance, relative))
    assert_verdict_is_what_bounds_and_p_values_say(found)
    # Each is the larger of Student's, which add up to 1, and Hall's.
    assert found.p_pass + found.p_fail >= 1 - 1e-9
    assert found.fails_build() is (found.degradation > tolerance), "outside strict mode, by the point estimate"


@given(st.floats(-0.2, 0.2), st.floats(0.001, 0.3), st.booleans())
def test_direction_belongs_to_the_metric(change: float, noise: float, relative: bool) -> None:
    """What makes a loss worse makes an accuracy better: the bounds change places."""
    how = {"tolerance": Tolerance(0.01, relative)}
    loss, accuracy = (compare_means(*pairs(change, noise), scale=scale, **how) for scale in (LOSS, ACCURACY))
    assert loss.change == pytest.approx(accuracy.change)
    assert (loss.lower, loss.upper) == pytest.approx((-accuracy.upper, -accuracy.lower))
    assert not (loss.decision == accuracy.decision == "pass" and abs(change) > 0.1)


def test_an_upper_bound_on_the_tolerance_itself_passes_and_a_lower_one_does_not_fail() -> None:
    sums, upper = pairs(0.002, 0.01), perplexity(0.002, 0.01).upper
    for tolerance, decision in ((upper, "pass"), (upper * (1 - 1e-12), "inconclusive")):
        found = compare_means(*sums, scale=PERPLEXITY, tolerance=Tolerance(tolerance, relative=True))
        assert found.decision == decision
    assert decision_of(0.05, 0.05, FIVE_POINTS) == decision_of(-1.0, 0.05, FIVE_POINTS) == "pass"
    assert decision_of(0.05, 0.06, FIVE_POINTS) == "inconclusive"
    assert decision_of(math.nextafter(0.05, 1), 0.06, FIVE_POINTS) == "fail"


@pytest.mark.parametrize(("change", "build_fails"), [(0.005, False), (0.5, True), (-0.5, False)])
@pytest.mark.parametrize("empty", [0, 3])
def test_a_single_cluster_is_inconclusive_however_large_the_change_and_says_why(
    change: float, build_fails: bool, empty: int
) -> None:
    sums = (np.append(part, np.zeros(empty, part.dtype)) for part in pairs(change, 0, clusters=1))
    found = compare_means(*sums, scale=PERPLEXITY)
    assert found.decision == "inconclusive"
    assert found.reason == "1 independent row: the noise needs at least two"
    assert found.lower is found.upper is found.p_pass is found.p_fail is found.detectable is found.needed is None
    assert found.fails_build() is build_fails


@pytest.mark.parametrize(("change", "decision"), [(0.5, "fail"), (0.001, "pass")])
def test_the_same_change_in_every_cluster_has_no_noise_to_doubt_it(change: float, decision: str) -> None:
    counts = np.full(5, 4)
    found = compare_means(counts * (2.0 + change), counts * 2.0, counts, scale=LOSS, tolerance=Tolerance(0.1, False))
    assert found.decision == decision
    assert (found.p_pass < 1e-9) is (decision == "pass")


def test_an_inconclusive_build_fails_by_its_point_estimate() -> None:
    found = perplexity(0.0, 0.01)  # at a tolerance of 1%
    for degradation, strict in itertools.product((0.0, 0.01, 0.02), (False, True)):
        expected = {"pass": False, "fail": True, "inconclusive": strict or degradation > 0.01}
        for decision, fails in expected.items():
            one = msgspec.structs.replace(found, decision=decision, degradation=degradation)
            assert one.fails_build(strict=strict) is fails


@pytest.mark.parametrize(("change", "noise"), [(0.006, 0.02), (0.012, 0.03), (0.0, 0.1)])
def test_as_much_more_of_the_same_text_as_is_said_to_be_needed_decides(change: float, noise: float) -> None:
    found = perplexity(change, noise)
    assert found.decision == "inconclusive"
    assert found.needed > found.n
    times = math.ceil(found.needed / found.n)
    more = compare_means(*(np.tile(part, times) for part in pairs(change, noise)), scale=PERPLEXITY)
    assert more.decision == ("pass" if change < 0.01 else "fail")


def test_a_degradation_on_the_tolerance_is_decided_by_no_amount_of_text() -> None:
    sums = np.array([1.0, 4.0]), np.array([0.0, 0.0]), np.array([5, 5])
    found = compare_means(*sums, scale=LOSS, tolerance=Tolerance(0.5, relative=False))
    assert (found.decision, found.degradation, found.needed) == ("inconclusive", 0.5, None)


def test_noise_beyond_the_largest_float_leaves_open_how_much_text_would_decide() -> None:
    counts, reference = np.full(40, 10), np.full(40, 20.0)
    candidate = counts * (705 + np.arange(40) % 3)  # perplexities of 1e306
    with np.errstate(over="ignore", invalid="ignore"):
        found = compare_means(candidate, reference, counts, scale=PERPLEXITY, tolerance=Tolerance(1.5, relative=False))
    assert (found.decision, found.needed) == ("inconclusive", None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["candidate", "reference", "both"])
def test_nan_and_infinity_are_errors_that_name_the_side(value: float, side: str) -> None:
    candidate, reference, counts = pairs(0, 0.01)
    for name, sums in (("candidate", candidate), ("reference", reference)):
        if side in (name, "both"):
            sums[3] = value
    with pytest.raises(MetricInputError, match="expected finite sums, got 1 NaN or infinite") as refused:
        compare_means(candidate, reference, counts, scale=PERPLEXITY)
    assert str(refused.value).startswith("reference" if side == "reference" else "candidate")


@pytest.mark.parametrize("reference", [0.0, -1.0])
def test_a_percentage_of_a_mean_of_nothing_is_refused(reference: float) -> None:
    with pytest.raises(MetricInputError, match="a change in percent needs a reference above 0"):
        compare_means(np.ones(4), np.full(4, reference), np.full(4, 2), scale=ACCURACY)


@pytest.mark.parametrize("tolerance", [ONE_PERCENT, Tolerance(1.0, relative=False)])
def test_a_perplexity_beyond_every_float_is_no_verdict_on_either_side(tolerance: Tolerance) -> None:
    high, low, counts = np.array([8000.0, 8100.0]), np.array([5.0, 6.0]), np.array([10, 10])
    for sides in ((high, low), (low, high), (high, high)):
        with pytest.raises(MetricInputError, match="a change needs finite values"):
            compare_means(*sides, counts, scale=PERPLEXITY, tolerance=tolerance)


def test_a_ratio_that_one_cluster_makes_alone_has_no_interval() -> None:
    candidate, reference, counts = np.array([1.004, 0, 0]), np.array([1.0, 0, 0]), np.array([3, 1, 1])
    found = compare_means(candidate, reference, counts, scale=LOSS)
    assert (found.decision, found.clusters, found.upper) == ("inconclusive", 1, None)
    two = compare_means(np.array([1.004, 2, 0]), np.array([1.0, 1, 0]), counts, scale=LOSS)
    assert (two.clusters, two.lower < two.degradation < two.upper) == (3, True)
    same = compare_means(reference, reference, counts, scale=LOSS)
    assert (same.decision, same.degradation) == ("inconclusive", 0)


@pytest.mark.parametrize("confidence", [0.5, 1.0, 95, 0.0, -0.95, math.nan])
def test_a_confidence_is_a_level(confidence: float) -> None:
    with pytest.raises(ConfigError, match="confidence: expected a one-sided level"):
        compare_means(*pairs(0, 0.01), scale=LOSS, confidence=confidence)


@pytest.mark.parametrize("made", [("higher", True), ("lower", False, 0.0), ("lower", False, -1.0)])
def test_a_scale_that_cannot_be_is_refused(made: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Scale(*made)


# Models compared row by row: right-or-wrong rows by Tango's test, and models that agree in every row.


def of_counts(n: int, lost: int, gained: int, right: int) -> tuple[list[bool], list[bool]]:
    """Rows of a candidate and a reference: `right` under both, then lost, then gained, then wrong under both."""
    wrong = n - lost - gained - right
    candidate = [True] * right + [False] * lost + [True] * gained + [False] * wrong
    return candidate, [True] * (right + lost) + [False] * (gained + wrong)


def judged(n: int, lost: int, gained: int, right: int, tolerance: Tolerance = FIVE_POINTS) -> Comparison:
    candidate, reference = of_counts(n, lost, gained, right)
    return compare(right_or_wrong(candidate), right_or_wrong(reference), tolerance=tolerance)


def test_a_share_of_right_rows_has_tangos_bounds() -> None:
    found = judged(200, 6, 2, 150)
    assert (found.candidate, found.reference) == (0.76, 0.78)
    assert found.degradation == pytest.approx(0.02)
    assert (found.lower, found.upper) == pytest.approx(tango_bounds(Changes(200, 6, 2), Z))
    assert (found.bounds, found.n, found.clusters) == ("tango", 200, 200)


def test_a_relative_tolerance_is_one_of_the_references_measured_share() -> None:
    relative = judged(200, 6, 2, 150, Tolerance(0.1, relative=True))
    absolute = judged(200, 6, 2, 150, Tolerance(0.078, relative=False))
    assert relative.degradation == pytest.approx(absolute.degradation / 0.78)
    assert (relative.lower, relative.upper) == pytest.approx((absolute.lower / 0.78, absolute.upper / 0.78))
    assert (relative.p_pass, relative.p_fail) == pytest.approx((absolute.p_pass, absolute.p_fail))
    assert relative.decision == absolute.decision


shares = st.integers(2, 300).flatmap(
    lambda n: st.integers(0, n).flatmap(
        lambda lost: st.integers(0, n - lost).flatmap(
            lambda gained: st.tuples(st.just(n), st.just(lost), st.just(gained), st.integers(0, n - lost - gained))
        )
    )
)


@given(counts=shares, tolerance=st.floats(0, 0.5), relative=st.booleans(), size=st.integers(1, 5))
def test_the_verdict_on_rows_is_what_its_bounds_and_its_p_values_say(
    counts: tuple[int, int, int, int], tolerance: float, relative: bool, size: int
) -> None:
    candidate, reference = of_counts(*counts)
    if relative and not any(reference):
        return
    clusters = [row // size for row in range(len(candidate))]
    sides = (right_or_wrong(each, clusters) for each in (candidate, reference))
    found = compare(*sides, tolerance=Tolerance(tolerance, relative))
    if max(clusters) == 0:
        assert (found.decision, found.lower, found.clusters) == ("inconclusive", None, 1)
    else:
        assert_verdict_is_what_bounds_and_p_values_say(found)


def test_other_answers_of_one_model_are_judged_although_it_is_the_same() -> None:
    candidate, reference = of_counts(40, 1, 1, 30)
    found = compare(right_or_wrong(candidate), right_or_wrong(reference), tolerance=FIVE_POINTS, same=True)
    assert (found.degradation, found.decision, found.bounds) == (0, "inconclusive", "tango")


def test_rows_in_clusters_are_wider_and_by_students_t() -> None:
    right, lost, clusters = [True] * 100, [False] * 5 + [True] * 95, [row // 5 for row in range(100)]
    together = compare(right_or_wrong(lost, clusters), right_or_wrong(right, clusters), tolerance=FIVE_POINTS)
    assert together.degradation == pytest.approx(0.05)
    assert together.upper > judged(100, 5, 0, 95).upper
    assert (together.clusters, together.df) == (20, pytest.approx(19))
    t = float(scipy.stats.t.ppf(0.95, 19))
    changes = Changes.of(outcomes(lost, clusters), outcomes(right, clusters))
    assert together.upper == pytest.approx(tango_bounds(changes, t)[1])


def test_more_rows_of_the_same_kind_than_needed_decide() -> None:
    found = judged(100, 2, 1, 80)
    assert found.decision == "inconclusive"
    times = math.ceil(found.needed / 100)
    assert judged(100 * times, 2 * times, times, 80 * times).decision == "pass"


# Two models that agree in every row, by right-or-wrong rows and by scores between two ends; and one model twice.


@pytest.mark.parametrize("rows", [20, 51, 52])
@pytest.mark.parametrize("rule", ["tango", "unchanged"])
def test_two_models_that_agree_in_every_row_pass_only_with_as_many_rows_as_that_takes(rule: str, rows: int) -> None:
    made = right_or_wrong([True] * rows) if rule == "tango" else scores(np.random.default_rng(0).random(rows))
    found = compare(made, made, tolerance=FIVE_POINTS)
    assert found.decision == ("pass" if rows == 52 else "inconclusive")
    assert found.needed == (None if rows == 52 else 52)
    assert (found.degradation, found.bounds, found.fails_build()) == (0, rule, False)
    # z^2 / (n + z^2) of the rows may change, each by the whole range.
    assert (-found.lower, found.upper) == pytest.approx((Z**2 / (rows + Z**2),) * 2)


@pytest.mark.parametrize("tolerance", [Tolerance(0.0, relative=False), Tolerance(0.01, relative=True)])
@pytest.mark.parametrize("clusters", [1, 2, 40])
@pytest.mark.parametrize("kind", ["means", "likelihoods", "right or wrong", "bleu"])
def test_one_model_measured_twice_passes_with_a_change_of_exactly_0(
    tolerance: Tolerance, clusters: int, kind: str
) -> None:
    values = np.random.default_rng(1).random(clusters)
    made = {
        "means": scores(values),
        "likelihoods": likelihoods(values.tolist()),
        "right or wrong": right_or_wrong(values > 0.5),
        "bleu": bleu_sample(clusters, 0.2),
    }[kind]
    found = compare(made, made, tolerance=tolerance, same=True)
    assert (found.decision, found.reason) == ("pass", "both are the same measurement")
    assert repr((found.change, found.degradation, found.lower, found.upper)) == "(0.0, 0.0, 0.0, 0.0)"
    # Nothing was tested; sacrebleu's formula says 1/1001 of identical systems, which would mislead.
    assert found.p_pass is found.p_fail is found.p_value is found.detectable is found.bounds is None
    assert not found.fails_build(strict=True)


def test_the_share_of_rows_that_a_sample_may_hold_none_of_is_three_in_n_for_unbounded_means_over_rows() -> None:
    clean, same = likelihoods([10.0] * 60), likelihoods([10.1, 9.9] * 30)
    assert compare(clean, same, tolerance=ONE_PERCENT).unseen == 3 / 60
    assert compare(replace(clean, rows=False), replace(same, rows=False), tolerance=ONE_PERCENT).unseen is None
    assert compare(bleu_sample(40, 0.2), bleu_sample(40, 0.1), tolerance=ONE_PERCENT).unseen is None
    assert likelihoods([10.0]).unseen == 1.0


def test_two_samples_that_score_other_parts_of_the_same_rows_are_compared_as_two_ratios() -> None:
    """The change of two ratios with its delta-method noise, by another way: residuals of each ratio, row by row."""
    rng = np.random.default_rng(5)
    ours, theirs = rng.uniform(20, 90, 30), rng.uniform(30, 99, 30)
    effects = rng.normal(0, 0.2, 30)
    here, there = (1.1 + effects + rng.normal(0, 0.05, 30)) * ours, (1 + effects) * theirs

    def of(sums: np.ndarray, counts: np.ndarray, scale: Scale, *, of_text: bool = True) -> Sample:
        return Sample(sums[:, None], counts, scale, of_text=of_text)

    a, b = here.sum() / ours.sum(), there.sum() / theirs.sum()
    residuals = (here - a * ours) / ours.sum() - (there - b * theirs) / theirs.sum()
    shares = (ours / ours.sum() + theirs / theirs.sum()) / 2
    stderr = math.sqrt(float((residuals**2 / (1 - shares)).sum()))

    for scale, tolerance, outward in (
        (Scale("lower", exponential=True, factor=2.0), Tolerance(0.05, relative=True), math.expm1),
        (Scale("lower", factor=2.0), Tolerance(0.05, relative=False), float),
    ):
        found = compare(of(here, ours, scale), of(there, theirs, scale), tolerance=tolerance)
        assert (found.candidate, found.reference) == pytest.approx((scale.value(a), scale.value(b)), rel=1e-12)
        assert found.degradation == pytest.approx(outward(2 * (a - b)), rel=1e-9)
        student = outward(2 * (a - b + float(scipy.stats.t.ppf(0.95, found.df)) * stderr))
        assert student - 1e-9 <= found.upper <= 1.05 * student  # or Hall's, which is a little wider
    with pytest.raises(ComparisonError, match="the same rows"):
        compare(of(here, ours, scale, of_text=False), of(there, theirs, scale), tolerance=tolerance)
