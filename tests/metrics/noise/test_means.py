"""The noise of a mean over clusters: against the matrices of docs/noise.md, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.metrics.noise.means import clustered_mean, hall, hall_inverse, student_or_hall, tail
from pytest_lmgate.metrics.sample import Sample, Scale

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
    assert noise.stderr is noise.df is noise.bounds(0.95) is None


@pytest.mark.parametrize("counts", [[], [0, 0]])
def test_no_target_at_all_is_an_error(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="expected at least one target, got none"):
        clustered_mean(np.zeros(len(counts)), np.array(counts, dtype=np.int64))


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
        bounds = noise.bounds(0.975)
        covered += bounds.lower <= 3 <= bounds.upper

    assert covered / trials >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / trials)


# Hall's correction, by the formula of Hall 1992 written out here: H(y) = (3/k) (cbrt(1 + k (y - k/6)) - 1).

LEFT_SKEWED = ([-8.0, 1.0, 1.0, 1.0], [1, 1, 1, 1])
RIGHT_SKEWED = ([9.0, 0.0, 0.0, 0.0, 0.0, 0.0], [1, 1, 1, 1, 1, 1])
UNEVEN = ([2.0, 1.0, 12.0, 0.0], [1, 2, 3, 2])


@pytest.mark.parametrize(
    ("sums", "counts", "scaled", "squared_error"),
    [
        # m = -5/4; e = -27/4, 9/4, 9/4, 9/4; h = 1/4: a_c = e_c sqrt(4/3).
        (*LEFT_SKEWED, np.array([-27, 9, 9, 9]) / 4 * math.sqrt(4 / 3), (27**2 + 3 * 9**2) / 16 * 4 / 3 / 16),
        # m = 3/2; e = 15/2 and five of -3/2; h = 1/6: a_c = e_c sqrt(6/5).
        (*RIGHT_SKEWED, np.array([15, -3, -3, -3, -3, -3]) / 2 * math.sqrt(6 / 5), (225 + 45) / 4 * 6 / 5 / 36),
        # m = 15/8; e = 1/8, -22/8, 51/8, -30/8; h = 1/8, 1/4, 3/8, 1/4.
        (
            *UNEVEN,
            np.array([1 / math.sqrt(7 / 8), -22 / math.sqrt(3 / 4), 51 / math.sqrt(5 / 8), -30 / math.sqrt(3 / 4)]) / 8,
            (8 / 7 + 484 * 4 / 3 + 2601 * 8 / 5 + 900 * 4 / 3) / 64 / 64,
        ),
    ],
)
def test_bounds_are_the_wider_of_students_and_halls_on_each_side(
    sums: list[float], counts: list[int], scaled: np.ndarray, squared_error: float
) -> None:
    # The smallest of three estimates of one sign: of the residuals as they are, per root of targets and per target.
    n = np.array(counts)
    thirds = [((x**3).mean(), (x**2).mean() ** 1.5) for x in (scaled, scaled / np.sqrt(n), scaled / n)]
    carry = [1 / math.sqrt(len(n)), *[(n**3).sum() / (n**2).sum() ** 1.5] * 2]
    estimates = [weight * cubes / squares for weight, (cubes, squares) in zip(carry, thirds, strict=True)]
    k = min(estimates, key=abs)
    assert len({x > 0 for x in estimates}) == 1
    noise = clustered_mean(np.array(sums), np.array(counts))
    bounds = noise.bounds(0.95)

    t, error, mean = scipy.stats.t.ppf(0.95, noise.df), math.sqrt(squared_error), sum(sums) / sum(counts)
    halls = [3 / k * (np.cbrt(1 + k * (y - k / 6)) - 1) for y in (-t, t)]
    assert noise.skewness == pytest.approx(k, rel=1e-12)
    assert noise.stderr == pytest.approx(error, rel=1e-12)
    assert bounds.upper == pytest.approx(max(mean + t * error, mean - halls[0] * error), rel=1e-9)
    assert bounds.lower == pytest.approx(min(mean - t * error, mean - halls[1] * error), rel=1e-9)
    # A few clusters that lost much hide more of the same: the wider side is the one of the long tail.
    rules = (bounds.lower_rule, bounds.upper_rule)
    assert rules == (("hall", "student") if k < 0 else ("student", "hall"))


def test_uneven_clusters_whose_estimates_of_the_skewness_differ_in_sign_have_students_bounds() -> None:
    # The longest cluster is far above the mean; per target a short one is far below.
    noise = clustered_mean(np.array([120.0, 9.0, 9.0, -2.0]), np.array([60, 10, 10, 1]))

    assert noise.skewness == 0
    assert noise.bounds(0.95)[2:] == ("student", "student")


def test_symmetric_clusters_have_students_bounds() -> None:
    noise = clustered_mean(np.array([2.0, 6.0, 4.0]), np.array([1, 2, 1]))
    margin = scipy.stats.t.ppf(0.975, noise.df) * noise.stderr

    assert noise.skewness == pytest.approx(0, abs=1e-12)
    assert noise.bounds(0.975)[:2] == pytest.approx((3 - margin, 3 + margin))
    assert noise.bounds(0.975)[2:] == ("student", "student")


@given(y=st.floats(-50, 50), k=st.floats(-1, 1))
def test_halls_transformation_is_undone_by_its_inverse(y: float, k: float) -> None:
    assert hall_inverse(hall(y, k), k) == pytest.approx(y, abs=1e-6)


@given(
    x=st.floats(-8, 8), df=st.floats(1, 200), k=st.floats(-0.99, 0.99), level=st.sampled_from([0.6, 0.9, 0.95, 0.999])
)
def test_the_p_value_is_below_a_level_just_where_the_bound_is_within_the_limit(
    x: float, df: float, k: float, level: float
) -> None:
    bounds = student_or_hall(x, 1.0, scipy.stats.t.ppf(level, df), k)  # the limit is 0

    if min(abs(bounds.upper), abs(bounds.lower)) > 1e-6:
        assert (tail(x, df, k) < 1 - level) == (bounds.upper < 0)
        assert (tail(-x, df, -k) < 1 - level) == (bounds.lower > 0)


@given(
    values=st.lists(st.floats(0, 1), min_size=2, max_size=40),
    direction=st.sampled_from(["higher", "lower"]),
    confidence=st.sampled_from([0.9, 0.975, 0.999]),
)
def test_bounds_of_a_bounded_metric_are_within_its_range(
    values: list[float], direction: str, confidence: float
) -> None:
    scale = Scale(direction, lowest=0, highest=1, of_rows=True)
    sample = Sample(np.array(values)[:, None], np.ones(len(values), dtype=np.int64), scale)

    lower, upper, *_ = sample.bounds(confidence)

    assert 0 <= lower <= sample.value() + 1e-12
    assert sample.value() - 1e-12 <= upper <= 1
