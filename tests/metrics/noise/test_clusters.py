"""Which targets are one cluster: whole rows wherever rows are known, else 64 blocks of windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_lmgate.metrics.noise.clusters import BLOCKS, MAX_CLUSTERS, merged_rows, window_blocks
from pytest_lmgate.metrics.targets import TargetLayout


def layout(windows: list[int], rows: list[int] | None) -> TargetLayout:
    return TargetLayout(
        window_targets=np.array(windows),
        window_document=np.zeros(len(windows), dtype=np.int64),
        running_text=True,
        row_targets=None if rows is None else np.array(rows),
    )


@given(st.lists(st.integers(0, 30), min_size=2, max_size=40), st.integers(1, 25), st.integers(0, 99))
def test_rows_are_clusters_wherever_the_windows_are_cut(rows: list[int], window: int, seed: int) -> None:
    total = sum(rows)
    if sum(row > 0 for row in rows) < 2:
        return
    values = np.random.default_rng(seed).normal(size=total)
    windows = [min(window, total - begin) for begin in range(0, total, window)]

    sums, counts = layout(windows, rows).of_targets(values)

    ends = np.cumsum(rows)
    by_hand = [values[end - row : end].sum() for row, end in zip(rows, ends, strict=True) if row > 0]
    assert sums == pytest.approx(by_hand)
    assert counts.tolist() == [row for row in rows if row > 0]


def test_a_row_that_holds_nearly_everything_is_not_cut() -> None:
    _, counts = layout([10] * 100, [980, 10, 10]).of_targets(np.zeros(1000))

    assert counts.tolist() == [980, 10, 10]


@pytest.mark.parametrize("rows", [None, [1280], [0, 1280, 0]])
def test_a_text_without_rows_is_cut_into_64_blocks_of_even_targets(rows: list[int] | None) -> None:
    sums, counts = layout([10] * 128, rows).of_targets(np.arange(1280.0))

    assert counts.tolist() == [20] * 64
    assert sums.tolist() == [sum(range(begin, begin + 20)) for begin in range(0, 1280, 20)]


@settings(max_examples=200)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=400))
def test_blocks_are_whole_windows_in_order_as_even_as_windows_allow(targets: list[int]) -> None:
    blocks = window_blocks(np.array(targets))

    assert blocks[0] == 0
    assert set(np.diff(blocks)) <= {0, 1}
    held = np.bincount(blocks, weights=targets)
    assert len(held) <= BLOCKS
    # A window that lies across an edge goes to one side of it, so each edge is off by half a window at most.
    assert held.max() <= sum(targets) / BLOCKS + max(targets)
    if max(targets) < sum(targets) / BLOCKS:
        assert len(held) == BLOCKS
        assert held.min() >= sum(targets) / BLOCKS - max(targets)


@pytest.mark.parametrize("windows", range(1, 65))
def test_up_to_64_even_windows_are_a_block_each(windows: int) -> None:
    assert window_blocks(np.full(windows, 7)).tolist() == list(range(windows))


def test_averaged_windows_belong_to_the_row_that_their_first_target_belongs_to() -> None:
    # Windows begin at targets 0, 4, 8 and 10; the rows end before 5, 9 and 12.
    sums, counts = layout([4, 4, 2, 2], [5, 4, 3]).of_windows(np.array([1.0, 2.0, 4.0, 8.0]))

    assert sums.tolist() == [3, 4, 8]
    assert counts.tolist() == [2, 1, 1]


def test_averaged_windows_of_a_text_without_rows_are_cut_into_64_blocks() -> None:
    sums, counts = layout([9] * 128, None).of_windows(np.arange(128.0))

    assert counts.tolist() == [2] * 64
    assert sums.tolist() == [4 * block + 1 for block in range(64)]


def test_averaged_windows_that_all_begin_in_one_row_are_blocks() -> None:
    _, counts = layout([4, 4, 4], [11, 1]).of_windows(np.zeros(3))

    assert counts.tolist() == [1, 1, 1]


@pytest.mark.parametrize("rows", [2, 511, 512])
def test_up_to_512_rows_are_a_cluster_each(rows: int) -> None:
    assert merged_rows(np.full(rows, 3)).tolist() == list(range(rows))


@settings(max_examples=30)
@given(st.integers(513, 4000), st.integers(0, 99))
def test_more_rows_than_512_are_merged_with_their_neighbours_into_clusters_of_even_size(rows: int, seed: int) -> None:
    counts = np.random.default_rng(seed).integers(1, 100, rows)

    clusters = merged_rows(counts)

    assert clusters[0] == 0
    assert set(np.diff(clusters)) <= {0, 1}
    sizes = np.bincount(clusters, weights=counts)
    assert MAX_CLUSTERS / 3 < len(sizes) <= MAX_CLUSTERS
    assert sizes.min() >= counts.sum() / MAX_CLUSTERS
