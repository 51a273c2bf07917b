"""Samples against each other: refused unless they are of the same, bootstrapped where there is no closed form."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.errors import ComparisonError, MetricInputError
from pytest_lmgate.gates.comparisons.holm import correct_family
from pytest_lmgate.gates.comparisons.means import compare_means
from pytest_lmgate.gates.comparisons.paired import compare, differences
from pytest_lmgate.metrics import texts
from pytest_lmgate.metrics.sample import Sample, Scale

PERCENT = Tolerance(0.01, relative=True)
WORDS = [f"w{index}" for index in range(30)]
IDENTITY = {"data": "d", "protocol": "p", "targets": "t"}


def corpus(rows: int, error: float, seed: int = 0) -> tuple[list[str], list[list[str]]]:
    """Sentences with a share of their words replaced, and what they were."""
    random = np.random.default_rng(seed)
    references = [random.choice(WORDS, 12).tolist() for _ in range(rows)]
    wrong = np.random.default_rng(seed + 1)
    written = [[w if wrong.random() > error else "x" for w in row] for row in references]
    return [" ".join(row) for row in written], [[" ".join(row)] for row in references]


def bleu_sample(rows: int, error: float) -> Sample:
    score = texts.text_score(texts.bleu(), *corpus(rows, error))
    assert score.sample is not None
    return replace(score.sample, identity=IDENTITY)


def likelihoods(sums: list[float]) -> Sample:
    return Sample(np.array(sums)[:, None], np.full(len(sums), 10), Scale("lower", exponential=True), identity=IDENTITY)


def test_likelihoods_are_compared_in_closed_form() -> None:
    a, b = likelihoods([20.0, 21.0, 19.5]), likelihoods([19.0, 20.5, 19.0])
    assert b.scale is not None
    expected = compare_means(a.sums[:, 0], b.sums[:, 0], a.counts, scale=b.scale, tolerance=PERCENT)
    assert compare(a, b, tolerance=PERCENT) == expected


def test_the_same_texts_pass_with_a_change_of_exactly_zero() -> None:
    sample = bleu_sample(40, 0.2)
    for tolerance in (PERCENT, Tolerance(0.0, relative=False)):
        found = compare(sample, sample, tolerance=tolerance, same=True)
        assert found.decision == "pass"
        assert found.change == found.degradation == found.lower == found.upper == 0
        assert {f"{number:+}" for number in (found.degradation, found.lower, found.upper)} == {"+0.0"}
        # Nothing was tested; sacrebleu's formula says 1/1001 of identical systems, which would mislead.
        assert found.p_pass is found.p_fail is found.p_value is found.detectable is None


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
    metric, random = texts.bleu(), np.random.default_rng(12345)
    drawn = []
    for _ in range(1000):
        rows = random.choice(50, size=50)
        drawn.append(
            1 - metric.value(candidate.sums[rows].sum(axis=0)) / metric.value(reference.sums[rows].sum(axis=0))
        )
    # Student's t with 49 degrees of freedom at 95 % is 1.6766; Phi(-sqrt(50/49) 1.6766) = 0.0452, 45 of 1,001.
    ordered, widening = sorted(drawn), math.sqrt(50 / 49)
    error = widening * float(np.std(drawn, ddof=1))
    students, k = 1.67655 * error, float(scipy.stats.skew(drawn))
    halls = [3 / k * (np.cbrt(1 + k * (y - k / 6)) - 1) * error for y in (-1.67655, 1.67655)]
    assert found.degradation == pytest.approx(1 - candidate.value() / reference.value())
    below, above = max(students, halls[1]), max(students, -halls[0])
    assert found.lower == pytest.approx(min(ordered[44], found.degradation - below), abs=1e-6)
    assert found.upper == pytest.approx(max(ordered[999 - 44], found.degradation + above), abs=1e-6)
    # The p-values are of the same scale: that of the plain share, widened as the bounds are.
    student = scipy.stats.t(49)
    at = ordered[20]
    near = compare(candidate, reference, tolerance=Tolerance(at, relative=True))
    share = scipy.stats.norm.ppf((sum(d <= at for d in drawn) + 1) / 1001)

    def by_t(size: float) -> float:
        """Student's p-value, or Hall's where it is larger: the t whose Hall bound is `size` (k turned, as x is)."""
        x = (size - found.degradation) / error
        return max(student.cdf(x), student.cdf(((1 - k * x / 3) ** 3 - 1) / -k - k / 6))

    assert near.p_fail == pytest.approx(max(student.cdf(share / widening), by_t(at)), rel=1e-4)
    assert ordered[0] > 0.01  # where no resample is a hit, the closed form alone tells how small the p-value is
    assert found.p_fail == pytest.approx(by_t(0.01), rel=1e-3)
    assert found.p_pass == pytest.approx(1, abs=1e-3)


def ratio(sums: np.ndarray) -> float:
    return float(sums[0] / sums[1])


@pytest.mark.parametrize("rows", [2, 3, 4, 6, 15])
def test_few_rows_keep_their_level(rows: int) -> None:
    """At a change equal to the tolerance, of rows that are drawn from a normal: PASS and FAIL at most 5 % each."""
    metric = texts.TextMetric("share", "higher", "share", lambda *_: [], value=ratio)
    random, runs, decisions = np.random.default_rng(rows), 600, []
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


@pytest.mark.parametrize("confidence", [0.95, 0.999, 0.9999, 0.999999])
def test_a_higher_confidence_has_wider_bounds_however_few_resamples_there_are(confidence: float) -> None:
    candidate, reference = bleu_sample(12, 0.25), bleu_sample(12, 0.2)
    less = compare(candidate, reference, tolerance=PERCENT, confidence=1 - 2 * (1 - confidence))
    more = compare(candidate, reference, tolerance=PERCENT, confidence=confidence)
    assert less.lower is not None
    assert more.lower is not None
    assert more.lower < less.lower
    assert more.upper is not None
    edge = compare(candidate, reference, tolerance=Tolerance(more.upper, relative=True), confidence=confidence)
    assert edge.decision == "pass"
    assert edge.p_pass == pytest.approx(1 - confidence, rel=1e-6) or edge.p_pass < 1 - confidence


def test_a_family_of_hundreds_can_still_pass() -> None:
    good, bad = bleu_sample(60, 0.1), bleu_sample(60, 0.4)
    family = [compare(good, bad, tolerance=PERCENT)] * 500
    assert {each.decision for each in correct_family(family)} == {"pass"}


@pytest.mark.parametrize("rows", [3, 20])
def test_the_correction_for_a_family_of_one_never_decides_what_was_open(rows: int) -> None:
    candidate, reference = bleu_sample(rows, 0.3), bleu_sample(rows, 0.25)
    bounds = compare(candidate, reference, tolerance=Tolerance(0.0, relative=False))
    assert bounds.upper is not None
    decisions = set()
    for tolerance in np.linspace(0, bounds.upper + 0.1, 25):
        found = compare(candidate, reference, tolerance=Tolerance(float(tolerance), relative=False))
        (corrected,) = correct_family([found])
        assert corrected.decision in (found.decision, "inconclusive")
        decisions.add(found.decision)
    assert {"pass", "inconclusive"} <= decisions


def test_few_rows_have_wider_bounds_than_percentiles() -> None:
    few = compare(bleu_sample(4, 0.3), bleu_sample(4, 0.1), tolerance=PERCENT)
    assert few.lower is not None
    assert few.upper is not None
    assert few.upper - few.lower > 0.1
    assert few.df == 3


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
    assert (same.decision, same.reason) == ("pass", "the same measurement twice")
    assert (alike.decision, alike.lower) == ("inconclusive", None)
    assert (other.decision, other.upper) == ("inconclusive", None)
    assert "at least two" in other.reason
    assert other.fails_build()


def test_a_percentage_of_nothing_is_refused() -> None:
    with pytest.raises(MetricInputError, match="reference above 0"):
        compare(bleu_sample(5, 0.1), bleu_sample(5, 1.0), tolerance=PERCENT)


def test_a_value_that_is_not_finite_is_an_error() -> None:
    sample = bleu_sample(5, 0.1)
    broken = replace(sample, sums=sample.sums * math.nan)
    with pytest.raises(MetricInputError, match="candidate: expected finite"):
        compare(broken, sample, tolerance=PERCENT)
    with pytest.raises(MetricInputError, match="reference: expected finite"):
        compare(sample, broken, tolerance=PERCENT)
    with pytest.raises(MetricInputError, match="finite"):
        compare(likelihoods([math.nan, 1.0]), likelihoods([1.0, 1.0]), tolerance=PERCENT)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("data", "the data differs"),
        ("protocol", "the protocol differs (p here, other there)"),
        ("targets", "the tokens differ"),
    ],
)
def test_samples_of_something_else_are_refused_with_what_differs(part: str, says: str) -> None:
    a = likelihoods([1.0, 2.0])
    b = replace(a, identity={**IDENTITY, part: "other"})
    with pytest.raises(ComparisonError) as caught:
        compare(a, b, tolerance=PERCENT)
    assert says in str(caught.value)
    assert ("bits per byte" in str(caught.value)) == (part == "targets")


def test_of_other_data_nothing_is_said_of_its_tokens() -> None:
    assert differences({"data": "d", "targets": "t"}, {"data": "e", "targets": "u"}) == [
        "the data differs: other rows, prompts, references or clusters"
    ]


def test_a_part_that_only_one_side_has_is_a_difference() -> None:
    assert differences({"data": "d"}, {}) == ["the data differs: other rows, prompts, references or clusters"]
    assert differences({}, {}) == []


def test_other_clusters_are_refused() -> None:
    with pytest.raises(ComparisonError, match="expected the same rows on both sides, got 2 and 3"):
        compare(likelihoods([1.0, 2.0]), likelihoods([1.0, 2.0, 3.0]), tolerance=PERCENT)


def test_resamples_in_which_nothing_is_right_are_unbounded_changes_not_errors() -> None:
    zeros = np.zeros(10)
    right = np.array([12, 12, 12, 11, 10, 9, 12, 11, 10, 9.0])
    wrong = np.concatenate([[12, 12], zeros[:4], [12, 11, 10, 9]])
    rows = [right, *[wrong] * 5]

    def sample(statistics: list[np.ndarray]) -> Sample:
        return Sample(np.array(statistics), np.ones(6, dtype=np.int64), metric=texts.bleu(), identity=IDENTITY)

    reference = sample(rows)
    assert compare(reference, reference, tolerance=PERCENT, same=True).decision == "pass"
    worse = compare(sample([*rows[1:], wrong]), reference, tolerance=PERCENT)
    assert worse.degradation == 1
    better = compare(sample([right, right, *rows[2:]]), reference, tolerance=PERCENT)
    assert better.lower == -math.inf
    assert better.detectable is None
    assert better.decision == "pass"
