"""Models compared row by row: right-or-wrong rows by Tango's test, and models that agree in every row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.gates.comparisons.comparison import Comparison
from pytest_lmgate.gates.comparisons.paired import compare
from pytest_lmgate.gates.comparisons.rows import compare_outcomes
from pytest_lmgate.gates.comparisons.tango import Changes, tango_bounds
from pytest_lmgate.metrics.noise.proportion import Outcomes
from pytest_lmgate.metrics.sample import Sample, Scale

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


def test_a_change_in_percent_of_nothing_right_is_refused() -> None:
    with pytest.raises(MetricInputError, match="a change in percent needs a reference above 0"):
        judged(10, 0, 2, 0, Tolerance(0.1, relative=True))


shares = st.integers(2, 300).flatmap(
    lambda n: st.integers(0, n).flatmap(
        lambda lost: st.integers(0, n - lost).flatmap(
            lambda gained: st.tuples(st.just(n), st.just(lost), st.just(gained), st.integers(0, n - lost - gained))
        )
    )
)


@settings(max_examples=200)
@given(counts=shares, tolerance=st.floats(0, 0.5), relative=st.booleans(), size=st.integers(1, 5))
def test_the_verdict_is_what_its_bounds_and_its_p_values_say(
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


def test_equal_answers_of_one_model_pass_with_any_rows() -> None:
    found = compare(sample([True] * 3), sample([True] * 3), tolerance=FIVE_POINTS, same=True)

    assert (found.decision, found.reason) == ("pass", "the same measurement twice")
    assert (found.degradation, found.lower, found.upper) == (0, 0, 0)
    assert found.p_pass is found.p_fail is found.bounds is None


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


def test_the_range_of_the_metric_is_what_an_unseen_change_may_cost() -> None:
    values = np.random.default_rng(0).uniform(20, 30, 60).tolist()
    found = compare(
        rouge_like(values, highest=100), rouge_like(values, highest=100), tolerance=Tolerance(0.2, relative=True)
    )

    assert found.upper == pytest.approx(100 * Z**2 / (60 + Z**2) / np.mean(values))


def test_tokens_and_scores_without_an_end_have_no_such_bound() -> None:
    values = [1.0, 2.0, 3.0]
    for made in (rouge_like(values, direction="lower", highest=math.inf), _likelihoods(values)):
        found = compare(made, made, tolerance=FIVE_POINTS)
        assert (found.decision, found.bounds, found.lower, found.upper) == ("pass", "student", 0, 0)


def _likelihoods(values: list[float]) -> Sample:
    counts = np.full(len(values), 4)
    return Sample(np.array(values)[:, None], counts, Scale("lower", exponential=True), identity={"data": "d"})


@pytest.mark.parametrize("tolerance", [Tolerance(0.0, relative=False), Tolerance(0.01, relative=True)])
@pytest.mark.parametrize("clusters", [1, 2, 40])
@pytest.mark.parametrize("make", [rouge_like, _likelihoods])
def test_one_model_measured_twice_passes_with_a_change_of_exactly_0(
    tolerance: Tolerance, clusters: int, make: object
) -> None:
    assert callable(make)
    made = make(np.random.default_rng(1).random(clusters).tolist())

    found = compare(made, made, tolerance=tolerance, same=True)

    assert (found.decision, found.reason) == ("pass", "the same measurement twice")
    assert repr((found.change, found.degradation, found.lower, found.upper)) == "(0.0, 0.0, 0.0, 0.0)"
    assert not found.fails_build(strict=True)
