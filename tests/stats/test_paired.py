"""Samples against each other: refused unless they are of the same, bootstrapped where there is no closed form."""

import itertools
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.errors import ComparisonError, ConfigError, MetricInputError
from pytest_lmgate.metrics import sacrebleu_metrics, texts
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Comparison, decision_of
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.proportions import Changes, Outcomes, tango_bounds
from pytest_lmgate.stats.sample import Sample, Scale

PERCENT = Tolerance(0.01, relative=True)
WORDS = [f"w{index}" for index in range(30)]
IDENTITY = {"data": "d", "protocol": "p", "targets": "t"}


def compare_means(
    candidate: np.ndarray,
    reference: np.ndarray,
    counts: np.ndarray,
    *,
    scale: Scale,
    tolerance: Tolerance,
    confidence: float = 0.95,
    rows: bool = True,
) -> Comparison:
    """Compare sums over clusters."""
    here, there = (Sample(sums[:, None], counts, scale, rows=rows) for sums in (candidate, reference))
    return compare(here, there, tolerance=tolerance, confidence=confidence)


def compare_outcomes(candidate: Outcomes, reference: Outcomes, *, tolerance: Tolerance) -> Comparison:
    """Compare rows that are right or wrong."""
    here, there = (
        Sample(
            np.bincount(each.cluster, weights=each.right).astype(np.float64)[:, None],
            each.sizes,
            Scale("higher", lowest=0, highest=1, of_rows=True),
            outcomes=each,
        )
        for each in (candidate, reference)
    )
    return compare(here, there, tolerance=tolerance)


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
    found = compare(bleu_sample(40, 0.2), bleu_sample(40, 0.2), tolerance=PERCENT)
    z = float(scipy.stats.norm.ppf(0.95))
    # Of 40 rows none changed: z^2 / (40 + z^2) of others may, each by up to 100 points.
    assert (found.decision, found.bounds, found.p_value) == ("inconclusive", "unchanged", None)
    assert found.upper == pytest.approx(100 * z**2 / (40 + z**2) / found.reference)
    assert found.needed is not None
    assert found.needed > 40


def test_worse_texts_fail_and_better_ones_pass() -> None:
    good, bad = bleu_sample(60, 0.1), bleu_sample(60, 0.4)
    worse = compare(bad, good, tolerance=PERCENT)
    assert worse.decision == "fail"
    assert worse.change < 0 < worse.degradation
    assert worse.fails_build()
    better = compare(good, bad, tolerance=PERCENT)
    assert better.decision == "pass"
    assert better.degradation < 0 < better.change


def test_the_bounds_are_percentiles_of_the_resampled_change_of_ratios() -> None:
    candidate, reference = bleu_sample(50, 0.25), bleu_sample(50, 0.2)
    found = compare(candidate, reference, tolerance=PERCENT)
    metric, random = sacrebleu_metrics.bleu(), np.random.default_rng(12345)
    drawn = []
    for _ in range(1000):
        rows = random.choice(50, size=50)
        drawn.append(
            1 - metric.value(candidate.sums[rows].sum(axis=0)) / metric.value(reference.sums[rows].sum(axis=0))
        )
    # Student's t with 49 degrees of freedom at 95% is 1.6766; Phi(-sqrt(50/49) 1.6766) = 0.0452, 45 of 1,001.
    ordered, widening = sorted(drawn), math.sqrt(50 / 49)
    error = widening * float(np.std(drawn, ddof=1))
    students, k = 1.67655 * error, float(scipy.stats.skew(drawn))
    halls = [3 / k * (np.cbrt(1 + k * (y - k / 6)) - 1) * error for y in (-1.67655, 1.67655)]
    assert found.degradation == pytest.approx(1 - candidate.value() / reference.value())
    below, above = max(students, halls[1]), max(students, -halls[0])
    assert found.lower == pytest.approx(min(ordered[44], found.degradation - below), abs=1e-6)
    assert found.upper == pytest.approx(max(ordered[999 - 44], found.degradation + above), abs=1e-6)


def ratio(sums: np.ndarray) -> float:
    return float(sums[0] / sums[1])


@pytest.mark.parametrize("rows", [2, 4])
def test_few_rows_keep_their_level(rows: int) -> None:
    """At a change equal to the tolerance, of rows that are drawn from a normal: PASS and FAIL at most 5% each."""
    metric = texts.TextMetric("share", "higher", "share", lambda *_: [], value=ratio)
    random, runs, decisions = np.random.default_rng(rows), 200, []
    weights = np.ones(rows)
    reference = Sample(np.stack([50 * weights, weights], axis=1), np.ones(rows, dtype=np.int64), metric=metric)
    for _ in range(runs):
        sums = reference.sums - np.stack([1 + random.normal(size=rows), 0 * weights], axis=1)
        found = compare(replace(reference, sums=sums), reference, tolerance=Tolerance(1.0, relative=False))
        assert found.p_pass is not None
        assert found.p_fail is not None
        assert (found.decision == "pass") == (found.p_pass <= 0.05)
        assert (found.decision == "fail") == (found.p_fail <= 0.05)
        decisions.append(found.decision)
    most = 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    assert decisions.count("pass") / runs <= most
    assert decisions.count("fail") / runs <= most


def test_an_inconclusive_comparison_says_how_many_rows_it_would_take() -> None:
    found = compare(bleu_sample(40, 0.21), bleu_sample(40, 0.2), tolerance=Tolerance(0.03, relative=True))
    assert found.decision == "inconclusive"
    assert found.needed is not None
    assert found.needed > 40
    assert found.detectable is not None
    assert found.detectable > 0.03


def test_one_row_has_no_bounds_and_passes_only_if_it_is_the_same_model() -> None:
    same = compare(bleu_sample(1, 0.2), bleu_sample(1, 0.2), tolerance=PERCENT, same=True)
    alike = compare(bleu_sample(1, 0.2), bleu_sample(1, 0.2), tolerance=PERCENT)
    other = compare(bleu_sample(1, 0.5), bleu_sample(1, 0.0), tolerance=PERCENT)
    assert (same.decision, same.reason) == ("pass", "both are the same measurement")
    assert (alike.decision, alike.lower) == ("inconclusive", None)
    assert (other.decision, other.upper) == ("inconclusive", None)
    assert "at least two" in other.reason
    assert other.fails_build()


@pytest.mark.parametrize(
    ("part", "says"),
    [("data", "different data"), ("protocol", r"\(p here, other there\)"), ("targets", "bits per byte")],
)
def test_samples_of_something_else_are_refused_with_what_differs(part: str, says: str) -> None:
    a = likelihoods([1.0, 2.0])
    with pytest.raises(ComparisonError, match=says):
        compare(a, replace(a, identity={**IDENTITY, part: "other"}), tolerance=PERCENT)


def test_resamples_in_which_nothing_is_right_are_unbounded_changes_not_errors() -> None:
    zeros = np.zeros(10)
    right = np.array([12, 12, 12, 11, 10, 9, 12, 11, 10, 9.0])
    wrong = np.concatenate([[12, 12], zeros[:4], [12, 11, 10, 9]])
    rows = [right, *[wrong] * 5]

    def sample(statistics: list[np.ndarray]) -> Sample:
        return Sample(
            np.array(statistics), np.ones(6, dtype=np.int64), metric=sacrebleu_metrics.bleu(), identity=IDENTITY
        )

    reference = sample(rows)
    assert compare(reference, reference, tolerance=PERCENT, same=True).decision == "pass"
    worse = compare(sample([*rows[1:], wrong]), reference, tolerance=PERCENT)
    assert worse.degradation == 1
    better = compare(sample([right, right, *rows[2:]]), reference, tolerance=PERCENT)
    assert better.lower == -math.inf
    assert better.detectable is None
    assert better.decision == "pass"


# Candidate against reference: by hand, by formulas, and what a verdict may never be.


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


@pytest.mark.parametrize(
    ("change", "noise", "decision"),
    [
        (0.0, 0.01, "pass"),
        (-0.05, 0.01, "pass"),
        (0.03, 0.01, "fail"),
        (0.008, 0.02, "inconclusive"),
        (0.012, 0.02, "inconclusive"),
        (0.0, 0.2, "inconclusive"),
    ],
)
def test_bounds_within_beyond_and_around_the_tolerance(change: float, noise: float, decision: str) -> None:
    assert perplexity(change, noise).decision == decision


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


@given(st.floats(-0.2, 0.2), st.floats(0.001, 0.3), st.booleans())
def test_direction_belongs_to_the_metric(change: float, noise: float, relative: bool) -> None:
    """What makes a loss worse makes an accuracy better: the bounds change places."""
    sums = pairs(change, noise)
    tolerance = Tolerance(0.01, relative)

    loss, accuracy = (compare_means(*sums, scale=scale, tolerance=tolerance) for scale in (LOSS, ACCURACY))

    assert loss.change == pytest.approx(accuracy.change)
    assert (loss.lower, loss.upper) == pytest.approx((-accuracy.upper, -accuracy.lower))
    assert not (loss.decision == accuracy.decision == "pass" and abs(change) > 0.1)


def test_an_upper_bound_on_the_tolerance_itself_passes_and_a_lower_one_does_not_fail() -> None:
    bound = perplexity(0.002, 0.01)
    sums = pairs(0.002, 0.01)

    at_the_upper = compare_means(*sums, scale=PERPLEXITY, tolerance=Tolerance(bound.upper, relative=True))
    below_it = compare_means(*sums, scale=PERPLEXITY, tolerance=Tolerance(bound.upper * (1 - 1e-12), relative=True))

    assert (at_the_upper.decision, below_it.decision) == ("pass", "inconclusive")
    five = Tolerance(0.05, relative=False)
    assert decision_of(0.05, 0.05, five) == decision_of(-1.0, 0.05, five) == "pass"
    assert decision_of(0.05, 0.06, five) == "inconclusive"
    assert decision_of(math.nextafter(0.05, 1), 0.06, five) == "fail"


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


# What the gate can see, and what it would take.


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

    with pytest.raises(MetricInputError, match="expected finite sums, got 1 NaN or infinite") as refused:
        compare_means(candidate, reference, counts, scale=PERPLEXITY, tolerance=ONE_PERCENT)

    assert str(refused.value).startswith("reference" if side == "reference" else "candidate")


@pytest.mark.parametrize("reference", [0.0, -1.0])
def test_a_percentage_of_a_mean_of_nothing_is_refused(reference: float) -> None:
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


# Models compared row by row: right-or-wrong rows by Tango's test, and models that agree in every row.


Z = float(scipy.stats.norm.ppf(0.95))
FIVE_POINTS = Tolerance(0.05, relative=False)


def outcomes(right: list[bool], clusters: list[int] | None = None) -> Outcomes:
    return Outcomes(np.array(right, dtype=bool), np.array(range(len(right)) if clusters is None else clusters))


def sample(right: list[bool], clusters: list[int] | None = None) -> Sample:
    """An accuracy of rows."""
    made = outcomes(right, clusters)
    sums = np.bincount(made.cluster, weights=made.right).astype(np.float64)
    scale = Scale("higher", lowest=0, highest=1, of_rows=True)
    return Sample(sums[:, None], made.sizes, scale, identity={"data": "d"}, outcomes=made)


def of_counts(n: int, lost: int, gained: int, right: int) -> tuple[list[bool], list[bool]]:
    """Rows of a candidate and a reference: `right` under both, then lost, then gained, then wrong under both."""
    wrong = n - lost - gained - right
    candidate = [True] * right + [False] * lost + [True] * gained + [False] * wrong
    return candidate, [True] * (right + lost) + [False] * (gained + wrong)


def judged(n: int, lost: int, gained: int, right: int, tolerance: Tolerance = FIVE_POINTS) -> Comparison:
    candidate, reference = of_counts(n, lost, gained, right)
    return compare_outcomes(outcomes(candidate), outcomes(reference), tolerance=tolerance)


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
    found = compare_outcomes(
        outcomes(candidate, clusters), outcomes(reference, clusters), tolerance=Tolerance(tolerance, relative)
    )

    if max(clusters) == 0:
        assert (found.decision, found.lower, found.clusters) == ("inconclusive", None, 1)
        return
    assert found.lower <= found.degradation + 1e-12
    assert found.degradation - 1e-12 <= found.upper
    assert found.decision == (
        "pass" if found.upper <= tolerance else "fail" if found.lower > tolerance else "inconclusive"
    )
    if min(abs(found.upper - tolerance), abs(found.lower - tolerance)) > 1e-9:
        assert (found.p_pass <= 0.05) == (found.decision == "pass")
        assert (found.p_fail <= 0.05) == (found.decision == "fail")
    assert (found.needed is None) or found.decision == "inconclusive"


@pytest.mark.parametrize("rows", [20, 51, 52])
def test_equal_answers_of_two_models_pass_only_with_as_many_rows_as_that_takes(rows: int) -> None:
    found = compare(sample([True] * rows), sample([True] * rows), tolerance=FIVE_POINTS)

    assert found.decision == ("pass" if rows == 52 else "inconclusive")
    assert found.needed == (None if rows == 52 else 52)
    assert (found.degradation, found.bounds) == (0, "tango")
    assert not found.fails_build()


def test_other_answers_of_one_model_are_judged_although_it_is_the_same() -> None:
    candidate, reference = of_counts(40, 1, 1, 30)

    found = compare(sample(candidate), sample(reference), tolerance=FIVE_POINTS, same=True)

    assert (found.degradation, found.decision, found.bounds) == (0, "inconclusive", "tango")


def test_rows_in_clusters_are_wider_and_by_students_t() -> None:
    right = [True] * 100
    lost = [*([False] * 5), *([True] * 95)]
    clusters = [row // 5 for row in range(100)]

    alone = compare(sample(lost), sample(right), tolerance=FIVE_POINTS)
    together = compare(sample(lost, clusters), sample(right, clusters), tolerance=FIVE_POINTS)

    assert together.degradation == alone.degradation == pytest.approx(0.05)
    assert together.upper > alone.upper
    assert (together.clusters, together.df) == (20, pytest.approx(19))
    t = float(scipy.stats.t.ppf(0.95, 19))
    changes = Changes.of(outcomes(lost, clusters), outcomes(right, clusters))
    assert together.upper == pytest.approx(tango_bounds(changes, t)[1])


def test_more_rows_of_the_same_kind_than_needed_decide() -> None:
    found = judged(100, 2, 1, 80)
    assert found.decision == "inconclusive"
    assert found.needed is not None

    times = math.ceil(found.needed / 100)
    assert judged(100 * times, 2 * times, times, 80 * times).decision == "pass"


# Metrics of rows with a score between two ends.


def rouge_like(values: list[float], *, direction: str = "higher", highest: float = 1) -> Sample:
    scale = Scale(direction, lowest=0, highest=highest, of_rows=True)
    return Sample(np.array(values)[:, None], np.ones(len(values), dtype=np.int64), scale, identity={"data": "d"})


@pytest.mark.parametrize(("rows", "decision"), [(20, "inconclusive"), (51, "inconclusive"), (52, "pass")])
def test_two_models_with_the_same_score_in_every_row_are_judged_as_rows_without_a_change(
    rows: int, decision: str
) -> None:
    values = np.random.default_rng(0).random(rows).tolist()

    found = compare(rouge_like(values), rouge_like(values), tolerance=FIVE_POINTS)

    # z^2 / (n + z^2) of the rows may change, each by the whole range.
    assert (found.decision, found.bounds) == (decision, "unchanged")
    assert found.upper == pytest.approx(Z**2 / (rows + Z**2))
    assert found.lower == pytest.approx(-found.upper)
    assert found.needed == (None if decision == "pass" else 52)


@pytest.mark.parametrize("tolerance", [Tolerance(0.0, relative=False), Tolerance(0.01, relative=True)])
@pytest.mark.parametrize("clusters", [1, 2, 40])
@pytest.mark.parametrize(
    "make",
    [
        rouge_like,
        likelihoods,
        lambda values: sample([value > 0.5 for value in values]),
        lambda values: bleu_sample(len(values), 0.2),
    ],
    ids=["means", "likelihoods", "right or wrong", "bleu"],
)
def test_one_model_measured_twice_passes_with_a_change_of_exactly_0(
    tolerance: Tolerance, clusters: int, make: object
) -> None:
    assert callable(make)
    made = make(np.random.default_rng(1).random(clusters).tolist())

    found = compare(made, made, tolerance=tolerance, same=True)

    assert (found.decision, found.reason) == ("pass", "both are the same measurement")
    assert repr((found.change, found.degradation, found.lower, found.upper)) == "(0.0, 0.0, 0.0, 0.0)"
    # Nothing was tested; sacrebleu's formula says 1/1001 of identical systems, which would mislead.
    assert found.p_pass is found.p_fail is found.p_value is found.detectable is found.bounds is None
    assert not found.fails_build(strict=True)


def test_the_share_of_rows_that_a_sample_may_hold_none_of_is_three_in_n_for_unbounded_means_over_rows() -> None:
    clean, same = likelihoods([10.0] * 60), likelihoods([10.1, 9.9] * 30)
    assert compare(clean, same, tolerance=PERCENT).unseen == 3 / 60
    assert compare(replace(clean, rows=False), replace(same, rows=False), tolerance=PERCENT).unseen is None
    assert compare(bleu_sample(40, 0.2), bleu_sample(40, 0.1), tolerance=PERCENT).unseen is None
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
        assert found.df is not None
        assert found.upper is not None
        student = outward(2 * (a - b + float(scipy.stats.t.ppf(0.95, found.df)) * stderr))
        assert student - 1e-9 <= found.upper <= 1.05 * student  # or Hall's, which is a little wider
    with pytest.raises(ComparisonError, match="the same rows"):
        compare(of(here, ours, scale, of_text=False), of(there, theirs, scale), tolerance=tolerance)
