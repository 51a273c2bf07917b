"""Holm's correction: against hand-worked numbers, the step-down procedure as Holm wrote it, and by simulation."""

import math
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sides import compare_means
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Comparison, correct_family, holm
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.sample import Sample, Scale

LOSS = Scale("lower")
TOLERANCE = Tolerance(0.1, relative=False)


def compared(change: float, noise: float = 0.1, clusters: int = 20, confidence: float = 0.95) -> Comparison:
    """A comparison whose measured degradation is `change`, with a standard error of ``noise / sqrt(clusters)``."""
    effects = np.random.default_rng(0).normal(0, 1, clusters)
    effects = (effects - effects.mean()) / effects.std(ddof=1) if clusters > 1 else effects * 0
    counts = np.full(clusters, 10)
    return compare_means(
        counts * (change + noise * effects),
        counts * 0.0,
        counts,
        scale=LOSS,
        tolerance=TOLERANCE,
        confidence=confidence,
    )


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        # R's p.adjust(p, "holm").
        ([0.01, 0.02, 0.03, 0.04], [0.04, 0.06, 0.06, 0.06]),
        ([0.04, 0.01, 0.03], [0.06, 0.03, 0.06]),
        ([0.5, 0.001, 0.9], [1.0, 0.003, 1.0]),
        ([0.05], [0.05]),
        ([0.0, 0.025], [0.0, 0.025]),
        ([], []),
    ],
)
def test_adjusted_p_values_by_hand(p_values: list[float], adjusted: list[float]) -> None:
    assert holm(p_values) == pytest.approx(adjusted)


@pytest.mark.parametrize("p", [math.nan, -0.1, 1.1])
def test_what_is_no_p_value_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="expected p-values from 0 to 1"):
        holm([0.5, p])


@given(st.lists(st.floats(-0.2, 0.4), min_size=1, max_size=8))
def test_a_correction_only_turns_verdicts_into_inconclusive(changes: list[float]) -> None:
    family = [compared(change) for change in changes]

    for one, corrected in zip(family, correct_family(family), strict=True):
        assert corrected.decision in (one.decision, "inconclusive")
        assert corrected.p_pass >= one.p_pass
        assert corrected.p_fail >= one.p_fail


@pytest.mark.parametrize("change", [-0.1, 0.0, 0.05, 0.1, 0.15, 0.3])
def test_a_family_of_one_is_judged_as_it_was(change: float) -> None:
    one = compared(change)

    assert correct_family([one]) == [one]


def test_a_failure_that_twenty_gates_make_likely_is_no_verdict() -> None:
    beyond = compared(0.145)
    family = [beyond, *[compared(0.1) for _ in range(19)]]

    assert beyond.decision == "fail"
    assert beyond.p_fail > 0.05 / 20
    assert {one.decision for one in correct_family(family)} == {"inconclusive"}


def test_clear_passes_do_not_dilute_each_other() -> None:
    """Step down: the last of twenty is tested at the full level."""
    marginal = compared(0.06)
    family = [*[compared(-0.5) for _ in range(19)], marginal]

    assert 0.05 / 20 < marginal.p_pass < 0.05
    assert [one.decision for one in correct_family(family)] == ["pass"] * 20


def test_comparisons_without_an_interval_keep_their_verdict_and_do_not_count() -> None:
    marginal, alone = compared(0.06), compared(0.5, clusters=1)
    row = Sample(np.array([[1.0]]), np.array([1]), LOSS)
    same = compare(row, row, tolerance=TOLERANCE, same=True)
    lonely_family = correct_family([alone, same])

    family = correct_family([alone, marginal, same])

    assert [one.decision for one in family] == ["inconclusive", "pass", "pass"]
    assert family[1].p_pass == marginal.p_pass
    assert family[0].p_pass is family[0].p_fail is None
    assert lonely_family == [family[0], family[2]]
    assert correct_family([]) == []


def test_the_highest_confidence_of_the_members_is_the_familys() -> None:
    marginal = compared(0.06)
    demanding = msgspec.structs.replace(compared(-0.5), confidence=0.99)

    assert marginal.decision == "pass"
    assert [one.decision for one in correct_family([marginal, demanding])] == ["inconclusive", "pass"]


@pytest.mark.parametrize("correlated", [False, True])
def test_the_family_is_wrong_no_more_often_than_promised(correlated: bool) -> None:
    """Ten gates, each with its true degradation on the tolerance: the hardest case of both kinds."""
    generator = np.random.default_rng(7)
    trials, gates, clusters = 100, 10, 15
    counts = np.full(clusters, 10)
    wrong, wrong_without = Counter[str](), Counter[str]()
    for _ in range(trials):
        shared = generator.normal(0, 0.1, clusters) * correlated
        effects = [shared + generator.normal(0.1, 0.1, clusters) for _ in range(gates)]
        family = [
            compare_means(counts * each, counts * 0.0, counts, scale=LOSS, tolerance=TOLERANCE) for each in effects
        ]
        wrong.update({one.decision for one in correct_family(family)})
        wrong_without.update({one.decision for one in family})

    for kind in ("pass", "fail"):
        assert wrong[kind] / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)
        assert wrong_without[kind] / trials > 0.15
