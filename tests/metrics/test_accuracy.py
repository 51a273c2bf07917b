"""Accuracy by hand: which choice is taken under each variant, ties, noise over rows and clusters."""

import math

import numpy as np
import pytest

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.likelihoods import ChoiceStatistics, accuracy, correct


def statistics(*rows: tuple[list[tuple[float, str]], int]) -> ChoiceStatistics:
    """Rows of (log-likelihood, choice) pairs and the answer's index."""
    choices = [choice for pairs, _ in rows for choice in pairs]
    return ChoiceStatistics(
        np.array([value for value, _ in choices], dtype=np.float64),
        np.array([len(text) for _, text in choices]),
        np.array([len(text.encode()) for _, text in choices]),
        np.array([len(pairs) for pairs, _ in rows]),
        np.array([at == answer for pairs, answer in rows for at in range(len(pairs))]),
    )


# The sum takes the first, per character -2.5, -1.5 and -2 the second, per byte -2.5, -1.5 and -2/3 the third.
UNEQUAL = [(-5.0, "ab"), (-6.0, "abcd"), (-8.0, "한국어가")]


def test_each_variant_takes_the_choice_with_its_own_highest_value() -> None:
    for variant, right in {"acc": 0, "acc_norm": 1, "acc_bytes": 2}.items():
        for answer in range(3):
            assert correct(statistics((UNEQUAL, answer)), variant).tolist() == [float(answer == right)]


def test_the_lowest_index_wins_ties() -> None:
    tied = [(-4.0, "xx"), (-2.0, "y"), (-2.0, "z"), (-4.0, "uv")]
    assert correct(statistics((tied, 1)), "acc").tolist() == [1.0]
    assert correct(statistics((tied, 2)), "acc").tolist() == [0.0]
    assert correct(statistics((tied, 0)), "acc_norm").tolist() == [1.0]


def test_choices_that_differ_by_rounding_are_a_tie() -> None:
    tied = [(-40.0 - 3e-5, "xx"), (-40.0, "yy"), (-40.0 + 3e-6, "zz")]
    for variant in ("acc", "acc_norm", "acc_bytes"):
        assert correct(statistics((tied, 0)), variant).tolist() == [1.0]
        assert correct(statistics(([(-40.0 - 6e-5, "xx"), *tied[1:]], 1)), variant).tolist() == [1.0]
    assert correct(statistics(([(0.0, "x"), (-1e-12, "y")], 0)), "acc").tolist() == [1.0]


def test_accuracy_is_the_share_of_rows_answered_right_with_the_standard_error_of_a_mean_over_rows() -> None:
    two, four = [(-1.0, "a"), (-2.0, "b")], [(-3.0, "a"), (-2.0, "b"), (-9.0, "c"), (-1.0, "d")]
    score = accuracy(statistics((two, 0), (four, 3), (two, 1), (four, 1)), signature="s")
    assert (float(score), score.metric, score.unit, score.n, score.signature) == (0.5, "accuracy", "row", 4, "s")
    assert score.stderr == pytest.approx(math.sqrt(0.5 * 0.5 / 3))


def _rows(right: list[bool]) -> ChoiceStatistics:
    return statistics(*(([(-1.0, "a"), (-2.0, "b")], 0 if each else 1) for each in right))


def test_the_interval_is_wilsons_and_never_certain() -> None:
    # 80 / (80 + 1.96^2), and 1 exactly.
    assert accuracy(_rows([True] * 80), signature="s").interval == (pytest.approx(80 / 83.841459, abs=1e-8), 1.0)
    assert accuracy(_rows([False] * 80), signature="s").interval == (0.0, pytest.approx(3.841459 / 83.841459, abs=1e-8))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_log_likelihood_that_is_not_finite_and_no_rows_are_errors(value: float) -> None:
    with pytest.raises(MetricInputError, match="accuracy: expected finite log-likelihoods, got NaN or infinity"):
        accuracy(statistics(([(-1.0, "a"), (value, "b")], 0)), signature="s")
    with pytest.raises(MetricInputError, match="accuracy: expected at least one row, got none"):
        accuracy(statistics(), signature="s")
