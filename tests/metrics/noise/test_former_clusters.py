"""The clusters that earlier versions kept: committed baselines pair with no others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_lmgate.metrics.noise.clusters import MAX_CLUSTERS, former_clusters

documents_of_windows = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def planned(windows: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """``(document, targets)`` of each window, for so many windows in each document."""
    documents = np.repeat(np.arange(len(windows)), windows)
    return documents, np.random.default_rng(seed).integers(1, 100, len(documents))


@settings(max_examples=200)
@given(windows=documents_of_windows, seed=st.integers(0, 100), running=st.booleans())
def test_documents_are_clusters_and_running_text_is_cut_at_its_windows(
    windows: list[int], seed: int, running: bool
) -> None:
    documents, targets = planned(windows, seed)

    clusters = former_clusters(documents, targets, running_text=running)

    _assert_in_order(clusters)
    if len(documents) > MAX_CLUSTERS:
        return
    share = np.bincount(documents, weights=targets) / targets.sum()
    for index, document in enumerate(documents):
        inside = np.flatnonzero(clusters == clusters[index])
        expected = [index] if running or share[document] > 0.25 else np.flatnonzero(documents == document).tolist()
        assert inside.tolist() == expected


@settings(max_examples=60)
@given(
    windows=st.lists(st.sampled_from([1, 1, 1, 2, 3, 700, 2000]), min_size=1, max_size=1500),
    seed=st.integers(0, 100),
    running=st.booleans(),
)
def test_no_more_clusters_than_the_most_and_no_document_cut_but_a_long_one(
    windows: list[int], seed: int, running: bool
) -> None:
    documents, targets = planned(windows, seed)

    clusters = former_clusters(documents, targets, running_text=running)

    _assert_in_order(clusters)
    assert clusters.max() < MAX_CLUSTERS
    if running:
        return
    long = np.bincount(documents, weights=targets) > targets.sum() / 4
    edges = np.diff(clusters) != 0
    inside_a_document = np.diff(documents) == 0
    assert not (edges & inside_a_document & ~long[documents[:-1]]).any(), "a short document is in one cluster"
    at_a_long_one = ~inside_a_document & (long[documents[:-1]] | long[documents[1:]])
    assert edges[at_a_long_one].all(), "part of a long document is never merged with another"


def test_many_documents_are_merged_into_clusters_of_even_size() -> None:
    documents, targets = np.arange(5000), np.random.default_rng(0).integers(50, 150, 5000)

    clusters = former_clusters(documents, targets, running_text=False)

    sizes = np.bincount(clusters, weights=targets)
    assert 400 <= len(sizes) <= MAX_CLUSTERS
    assert sizes.min() >= targets.sum() / MAX_CLUSTERS
    assert sizes.max() <= 2 * targets.sum() / MAX_CLUSTERS + 150


@pytest.mark.parametrize("windows", [511, 512, 513, 514])
def test_the_most_clusters_are_reached_before_anything_is_merged(windows: int) -> None:
    clusters = former_clusters(np.zeros(windows, dtype=int), np.full(windows, 7), running_text=True)

    assert clusters.max() + 1 == (windows if windows <= MAX_CLUSTERS else -(-windows // 2) - windows % 2)


def test_a_single_window_is_a_single_cluster() -> None:
    assert former_clusters(np.array([0]), np.array([5]), running_text=False).tolist() == [0]


def _assert_in_order(clusters: np.ndarray) -> None:
    assert clusters[0] == 0
    assert set(np.diff(clusters)) <= {0, 1}
