"""Holm's adjusted p-values, which `lmgate compare` uses, against R and by simulation."""

import math

import numpy as np
import pytest

from pytest_lmgate.stats.comparison import holm


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


@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_a_family_without_a_change_is_wrong_no_more_often_than_promised(shared: float) -> None:
    """Ten p-values that are uniform, independent or from correlated normal values."""
    generator, trials = np.random.default_rng(7), 2000
    common = generator.normal(size=(trials, 1)) * math.sqrt(shared)
    values = common + generator.normal(size=(trials, 10)) * math.sqrt(1 - shared)
    p_values = [[0.5 * math.erfc(value / math.sqrt(2)) for value in row] for row in values]
    wrong = sum(min(holm(row)) <= 0.05 for row in p_values) / trials
    assert wrong <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)
    assert sum(min(row) <= 0.05 for row in p_values) / trials > 0.08
