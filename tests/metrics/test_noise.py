"""The noise of a mean over clusters: against the matrices of docs/noise.md, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_lmgate.metrics.noise import MAX_CLUSTERS, block_clusters, clustered_mean

counts_of_clusters = st.lists(st.integers(1, 400), min_size=2, max_size=30)


def matrices(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """``(n, G)``, multiplied out as written: ``G = diag((1 - h)^-1/2) (I - n 1'/N) diag(n)``."""
    n = np.array(counts, dtype=float)
    total = n.sum()
    residual_maker = np.eye(len(n)) - np.outer(n, np.ones(len(n))) / total
    return n, np.diag((1 - n / total) ** -0.5) @ residual_maker @ np.diag(n)


@given(counts=counts_of_clusters, seed=st.integers(0, 1000))
def test_the_standard_error_is_cr2(counts: list[int], seed: int) -> None:
    n, g = matrices(counts)
    means = np.random.default_rng(seed).normal(3, 1, len(n))

    noise = clustered_mean(means * n, np.array(counts))

    # G applied to the clusters' means gives their residual sums, each scaled by (1 - h)^-1/2.
    assert noise.mean == pytest.approx((means * n).sum() / n.sum())
    assert noise.stderr == pytest.approx(np.linalg.norm(g @ means) / n.sum(), rel=1e-9)
    assert (noise.n, noise.clusters) == (sum(counts), len(counts))


@given(counts=counts_of_clusters)
def test_the_degrees_of_freedom_are_bell_and_mccaffreys(counts: list[int]) -> None:
    _, g = matrices(counts)
    m = g @ g.T

    noise = clustered_mean(np.ones(len(counts)), np.array(counts))

    assert noise.df == pytest.approx(np.trace(m) ** 2 / np.trace(m @ m), rel=1e-9)
    assert noise.df <= len(counts) - 1 + 1e-9


@given(count=st.integers(2, 60), size=st.integers(1, 50), seed=st.integers(0, 100))
def test_clusters_of_equal_size_give_the_textbook_error_of_a_mean(count: int, size: int, seed: int) -> None:
    means = np.random.default_rng(seed).normal(3, 1, count)

    noise = clustered_mean(means * size, np.full(count, size))

    assert noise.stderr == pytest.approx(means.std(ddof=1) / math.sqrt(count))
    assert noise.df == pytest.approx(count - 1)


def test_three_clusters_by_hand() -> None:
    noise = clustered_mean(np.array([2.0, 6.0, 4.0]), np.array([1, 2, 1]))

    # m = 12/4 = 3; e = -1, 0, 1; h = 1/4, 1/2, 1/4: se^2 = (4/3 + 0 + 4/3) / 16.
    assert noise.mean == 3
    assert noise.stderr == pytest.approx(math.sqrt(1 / 6))


@given(counts=counts_of_clusters, seed=st.integers(0, 100), factor=st.floats(0.1, 10), shift=st.floats(-5, 5))
def test_noise_scales_with_the_values_and_ignores_the_order_and_empty_clusters(
    counts: list[int], seed: int, factor: float, shift: float
) -> None:
    generator = np.random.default_rng(seed)
    n = np.array(counts)
    sums = generator.normal(3, 1, len(n)) * n
    order = generator.permutation(len(n))
    plain = clustered_mean(sums, n)

    moved = clustered_mean(factor * sums + shift * n, n)
    shuffled = clustered_mean(np.append(sums[order], 0.0), np.append(n[order], 0))

    assert moved.mean == pytest.approx(factor * plain.mean + shift, abs=1e-9)
    assert moved.stderr == pytest.approx(factor * plain.stderr, abs=1e-9)
    assert moved.df == pytest.approx(plain.df)
    assert shuffled.stderr == pytest.approx(plain.stderr)
    assert shuffled.df == pytest.approx(plain.df)
    assert shuffled.clusters == plain.clusters


@pytest.mark.parametrize(("sums", "counts"), [([6.0], [3]), ([6.0, 0.0], [3, 0])])
def test_fewer_than_two_clusters_have_a_mean_and_no_noise(sums: list[float], counts: list[int]) -> None:
    noise = clustered_mean(np.array(sums), np.array(counts))

    assert (noise.mean, noise.n, noise.clusters) == (2.0, 3, 1)
    assert noise.stderr is noise.df is noise.margin() is None


@pytest.mark.parametrize("counts", [[], [0, 0]])
def test_no_target_at_all_is_an_error(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="expected at least one target, got none"):
        clustered_mean(np.zeros(len(counts)), np.array(counts, dtype=np.int64))


def test_the_margin_is_that_of_a_two_sided_interval() -> None:
    noise = clustered_mean(np.array([2.0, 6.0, 4.0]), np.array([1, 2, 1]))

    assert noise.margin() == pytest.approx(scipy.stats.t.ppf(0.975, noise.df) * noise.stderr)
    assert noise.margin(0.5) == pytest.approx(scipy.stats.t.ppf(0.75, noise.df) * noise.stderr)


@pytest.mark.parametrize(("count", "spread"), [(10, 0.0), (10, 1.5), (30, 1.0), (100, 1.5)])
def test_the_interval_covers_the_truth_as_often_as_it_says(count: int, spread: float) -> None:
    """Documents of even and of very uneven length; each has an effect of its own on top of its tokens' noise."""
    generator = np.random.default_rng(5)
    trials = 1500
    covered = 0
    for _ in range(trials):
        n = np.maximum(1, 200 * generator.lognormal(0, spread, count)).astype(int)
        sums = n * (3 + generator.normal(0, 0.3, count)) + generator.normal(0, 2, count) * np.sqrt(n)
        noise = clustered_mean(sums, n)
        covered += abs(noise.mean - 3) <= noise.margin()

    assert covered / trials >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / trials)


# Clusters.

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

    clusters = block_clusters(documents, targets, running_text=running)

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

    clusters = block_clusters(documents, targets, running_text=running)

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

    clusters = block_clusters(documents, targets, running_text=False)

    sizes = np.bincount(clusters, weights=targets)
    assert 400 <= len(sizes) <= MAX_CLUSTERS
    assert sizes.min() >= targets.sum() / MAX_CLUSTERS
    assert sizes.max() <= 2 * targets.sum() / MAX_CLUSTERS + 150


@pytest.mark.parametrize("windows", [511, 512, 513, 514])
def test_the_most_clusters_are_reached_before_anything_is_merged(windows: int) -> None:
    clusters = block_clusters(np.zeros(windows, dtype=int), np.full(windows, 7), running_text=True)

    assert clusters.max() + 1 == (windows if windows <= MAX_CLUSTERS else -(-windows // 2) - windows % 2)


def test_a_single_window_is_a_single_cluster() -> None:
    assert block_clusters(np.array([0]), np.array([5]), running_text=False).tolist() == [0]


def _assert_in_order(clusters: np.ndarray) -> None:
    assert clusters[0] == 0
    assert set(np.diff(clusters)) <= {0, 1}
