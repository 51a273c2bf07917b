"""Which costs stand out of others: one damaged layer among ordinary ones, and none where all are ordinary."""

from __future__ import annotations

import numpy as np

from pytest_lmgate.gates.standing_out import standing_out

SMALLEST = 1e-7


def test_a_cost_beyond_the_spread_of_the_others_is_named_and_ordinary_ones_are_not():
    costs = [0.010, 0.012, 0.009, 0.011, 0.2, 0.013, 0.008]
    assert standing_out(costs, [0.9 * cost for cost in costs], smallest=SMALLEST) == [4]


def test_the_largest_comes_first():
    costs = [0.010, 0.3, 0.009, 0.011, 0.9, 0.013, 0.008, 0.012, 0.010]
    assert standing_out(costs, costs, smallest=SMALLEST) == [4, 1]


def test_the_only_part_that_changed_is_named():
    assert standing_out([0.0, 0.0, 2e-4, 0.0], [0.0, 0.0, 1e-4, 0.0], smallest=SMALLEST) == [2]


def test_a_cost_that_its_noise_could_have_made_is_not_named():
    assert standing_out([0.0, 0.0, 2e-4, 0.0], [0.0, 0.0, -1e-4, 0.0], smallest=SMALLEST) == []
    assert standing_out([0.0, 0.0, 2e-4, 0.0], [0.0, 0.0, None, 0.0], smallest=SMALLEST) == []


def test_differences_of_rounding_name_nothing():
    assert standing_out([0.0, 0.0, 5e-8, 0.0], [0.0, 0.0, 4e-8, 0.0], smallest=SMALLEST) == []


def test_layers_whose_costs_differ_by_chance_are_rarely_named():
    random = np.random.default_rng(7)
    named = [bool(standing_out(costs, costs, smallest=SMALLEST)) for costs in random.lognormal(-5, 0.5, (2000, 13))]
    assert np.mean(named) < 0.06
