"""Where it got worse, from numbers made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_lmgate.gates.where import by_position, slope_of, worst_groups, worst_targets
from pytest_lmgate.metrics.noise.means import clustered_mean, mean_of_blocks


def test_groups_come_by_the_sum_of_their_rise_and_none_that_did_not_rise() -> None:
    rises = np.array([1.0, 1.0, 5.0, -2.0, 0.0, 0.0, 1.5])
    groups = np.array([0, 0, 1, 2, 3, 3, 4])
    assert worst_groups(rises, groups) == [(1, 5.0), (0, 2.0), (4, 1.5)]
    assert worst_groups(np.array([0.0, 3.0, -1.0])) == [(1, 3.0)]
    assert len(worst_groups(np.ones(100))) == 5


def test_targets_come_by_their_rise() -> None:
    rises = np.array([9.0, 0.5, -1.0, 2.0, 0.0])
    assert worst_targets(rises, np.array([1, 2, 3, 4])) == [3, 1]


def test_every_target_is_in_one_range_of_positions_with_the_noise_of_its_clusters() -> None:
    positions = np.tile(np.arange(1, 17), 10)
    clusters = np.repeat(np.arange(10), 16)
    rises = (positions > 12) * (1.0 + 0.1 * clusters)
    found = by_position(rises, positions, clusters, confidence=0.95)
    assert [(each.first, each.last) for each in found] == [(at, at + 1) for at in range(1, 17, 2)]
    assert sum(each.targets for each in found) == 160
    assert [each.change for each in found] == pytest.approx([0] * 6 + [1.45, 1.45])
    bounds = clustered_mean(2 * (1 + 0.1 * np.arange(10)), np.full(10, 2)).bounds(1 - 0.05 / 8)
    assert bounds is not None
    assert (found[-1].lower, found[-1].upper) == pytest.approx((bounds.lower, bounds.upper))


def test_a_single_position_is_one_range_and_has_no_slope() -> None:
    ones = np.ones(6, dtype=np.int64)
    found = by_position(np.arange(6.0), ones, np.arange(6), confidence=0.95)
    assert [(each.first, each.last, each.targets, each.change) for each in found] == [(1, 1, 6, 2.5)]
    assert slope_of(np.arange(6.0), ones, np.arange(6), confidence=0.95) is None


def test_a_slope_is_that_of_the_line_over_all_positions() -> None:
    positions, clusters = np.tile(np.arange(11), 8), np.repeat(np.arange(8), 11)
    rises = 0.3 * positions + np.repeat(np.linspace(-1, 1, 8), 11)
    found = slope_of(rises, positions, clusters, confidence=0.95)
    assert found is not None
    assert found.change == pytest.approx(3.0)
    assert found.lower == pytest.approx(3.0, abs=1e-6)  # a level of each cluster's own is no noise of the slope
    assert slope_of(rises[:22], positions[:22], clusters[:22], confidence=0.95) is None


def test_a_slope_that_rests_on_one_cluster_is_not_told() -> None:
    """As in sliding windows, of which the first alone has early positions."""
    positions = np.concatenate([np.arange(1, 32), np.tile(np.arange(32, 33), 100)])
    clusters = np.concatenate([np.zeros(31), np.repeat(np.arange(1, 11), 10)]).astype(np.int64)
    rises = np.where(positions < 32, -1.0, 0.0)
    assert slope_of(rises, positions, clusters, confidence=0.95) is None


@pytest.mark.parametrize("clusters_of", ["many", "few"])
def test_where_nothing_depends_on_the_position_a_slope_is_named_once_in_twenty(clusters_of: str) -> None:
    draw = np.random.default_rng(7)
    count = 40 if clusters_of == "many" else 8
    named = 0
    for _ in range(400):
        lengths = draw.integers(8, 64, count)
        positions = np.concatenate([np.arange(1, length + 1) for length in lengths])
        clusters = np.repeat(np.arange(count), lengths)
        rises = draw.normal(size=len(positions)) + draw.normal(size=count)[clusters]
        found = slope_of(rises, positions, clusters, confidence=0.95)
        assert found is not None
        named += not found.lower <= 0 <= found.upper
    assert named <= 400 * 0.05 + 3 * (400 * 0.05 * 0.95) ** 0.5


def test_blocks_of_a_text_have_the_noise_of_blocks_in_each_range_of_positions() -> None:
    positions, blocks = np.tile(np.arange(1, 17), 20), np.repeat(np.arange(20), 16)
    rises = np.random.default_rng(1).normal(size=320)

    found = by_position(rises, positions, blocks, confidence=0.95, rows=False)

    sums = rises.reshape(20, 16)[:, :2].sum(axis=1)
    bounds = mean_of_blocks(sums, np.full(20, 2)).bounds(1 - 0.05 / 8)
    assert bounds is not None
    assert (found[0].lower, found[0].upper) == pytest.approx((bounds.lower, bounds.upper))
    assert by_position(rises[:112], positions[:112], blocks[:112], confidence=0.95, rows=False)[0].lower is None
    assert slope_of(rises[:112], positions[:112], blocks[:112], confidence=0.95, rows=False) is None


def test_a_slope_that_lasts_over_neighbouring_blocks_is_no_surer_than_its_hidden_documents() -> None:
    """Each hidden document of about three blocks has a slope of its own, and none on average."""
    draw, named, as_rows = np.random.default_rng(3), 0, 0
    positions, blocks = np.tile(np.arange(16), 64), np.repeat(np.arange(64), 16)
    for _ in range(400):
        begin = draw.integers(3)
        slopes = np.repeat(draw.normal(size=23), 3)[begin : begin + 64]
        rises = slopes[blocks] * (positions - 7.5) + draw.normal(size=len(positions))
        for rows in (False, True):
            found = slope_of(rises, positions, blocks, confidence=0.95, rows=rows)
            assert found is not None
            wrong = not found.lower <= 0 <= found.upper
            named, as_rows = named + (wrong and not rows), as_rows + (wrong and rows)

    assert named <= 400 * 0.06 + 3 * (400 * 0.06 * 0.94) ** 0.5
    assert as_rows >= 400 * 0.15
