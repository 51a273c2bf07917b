"""The noise of a mean over clusters: against the matrices of docs/noise.md, and by simulation."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_lmgate.metrics.likelihoods import TargetLayout
from pytest_lmgate.stats.means import (
    BLOCKS,
    clustered_mean,
    mean_of_blocks,
    merged_rows,
    normal_cdf,
    normal_quantile,
    t_cdf,
    t_quantile,
    window_blocks,
)
from pytest_lmgate.stats.sample import Scale
from tests.stats.samples import scores


def matrices(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """``(n, G)``, multiplied out as written: ``G = diag((1 - h)^-1/2) (I - n 1'/N) diag(n)``."""
    n = np.array(counts, dtype=float)
    total = n.sum()
    residual_maker = np.eye(len(n)) - np.outer(n, np.ones(len(n))) / total
    return n, np.diag((1 - n / total) ** -0.5) @ residual_maker @ np.diag(n)


@given(counts=st.lists(st.integers(1, 400), min_size=2, max_size=30), seed=st.integers(0, 1000))
def test_the_standard_error_is_cr2_with_bell_and_mccaffreys_degrees_of_freedom(counts: list[int], seed: int) -> None:
    n, g = matrices(counts)
    m = g @ g.T
    means = np.random.default_rng(seed).normal(3, 1, len(n))
    noise = clustered_mean(means * n, np.array(counts))
    # G applied to the clusters' means gives their residual sums, each scaled by (1 - h)^-1/2.
    assert noise.mean == pytest.approx((means * n).sum() / n.sum())
    assert noise.stderr == pytest.approx(np.linalg.norm(g @ means) / n.sum(), rel=1e-9)
    assert (noise.n, noise.clusters) == (sum(counts), len(counts))
    assert noise.df == pytest.approx(np.trace(m) ** 2 / np.trace(m @ m), rel=1e-9)
    assert noise.df <= len(counts) - 1 + 1e-9


@pytest.mark.parametrize(("sums", "counts"), [([6.0], [3]), ([6.0, 0.0], [3, 0])])
def test_fewer_than_two_clusters_have_a_mean_and_no_noise(sums: list[float], counts: list[int]) -> None:
    noise = clustered_mean(np.array(sums), np.array(counts))
    assert (noise.mean, noise.n, noise.clusters) == (2.0, 3, 1)
    assert noise.stderr is noise.df is noise.bounds(0.95) is None


@pytest.mark.parametrize("counts", [[], [0, 0]])
def test_no_target_at_all_is_an_error(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="expected at least one target, got none"):
        clustered_mean(np.zeros(len(counts)), np.array(counts, dtype=np.int64))


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


@given(values=st.lists(st.floats(0, 1), min_size=2, max_size=40), confidence=st.sampled_from([0.9, 0.975, 0.999]))
def test_bounds_of_a_bounded_metric_are_within_its_range(values: list[float], confidence: float) -> None:
    sample = scores(values)
    lower, upper, *_ = sample.bounds(confidence)
    assert 0 <= lower <= sample.value() + 1e-12
    assert sample.value() - 1e-12 <= upper <= 1


# Which targets are one cluster: whole rows wherever rows are known, else 64 blocks of windows.


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
    assume(sum(row > 0 for row in rows) >= 2)
    values = np.random.default_rng(seed).normal(size=total)
    windows = [min(window, total - begin) for begin in range(0, total, window)]
    sums, counts = layout(windows, rows).of_targets(values)
    ends = np.cumsum(rows)
    assert sums == pytest.approx([values[end - row : end].sum() for row, end in zip(rows, ends, strict=True) if row])
    assert counts.tolist() == [row for row in rows if row > 0]


@pytest.mark.parametrize("rows", [None, [1280], [0, 1280, 0]])
def test_a_text_without_rows_is_cut_into_64_blocks_of_even_targets(rows: list[int] | None) -> None:
    sums, counts = layout([10] * 128, rows).of_targets(np.arange(1280.0))
    assert counts.tolist() == [20] * 64
    assert sums.tolist() == [sum(range(begin, begin + 20)) for begin in range(0, 1280, 20)]


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


@pytest.mark.parametrize(
    ("windows", "rows", "means", "sums", "counts"),
    [
        # Windows begin at targets 0, 4, 8 and 10; the rows end before 5, 9 and 12.
        ([4, 4, 2, 2], [5, 4, 3], [1, 2, 4, 8], [3, 4, 8], [2, 1, 1]),
        # All begin in the first row, so each is a block.
        ([4, 4, 4], [11, 1], [1, 2, 4], [1, 2, 4], [1, 1, 1]),
    ],
)
def test_averaged_windows_belong_to_the_row_that_their_first_target_belongs_to(
    windows: list[int], rows: list[int], means: list[int], sums: list[int], counts: list[int]
) -> None:
    found = layout(windows, rows).sample(np.repeat(means, windows), Scale("lower"), by_window=True)
    assert (found.sums[:, 0].tolist(), found.counts.tolist()) == (sums, counts)


def test_up_to_512_rows_are_a_cluster_each_and_more_are_merged_to_a_508th_of_the_targets_at_least() -> None:
    assert merged_rows(np.full(512, 3)).tolist() == list(range(512))
    # Of 1,020 targets a 508th is 2.01, so three to a cluster; a 512th would be two.
    assert merged_rows(np.ones(1020, dtype=np.int64)).tolist() == [row // 3 for row in range(1020)]


# The noise of a text without rows, against its formula term by term and in simulation.


def by_hand(sums: list[float], counts: list[int]) -> float:
    """Standard error by docs/noise.md, one term after another: six cosines, equal weights."""
    n, mean = sum(counts), sum(sums) / sum(counts)
    squares = []
    for j in range(1, 7):
        term, before = 0.0, 0
        for total, count in zip(sums, counts, strict=True):
            term += math.sqrt(2) * (total - mean * count) * math.cos(math.pi * j * (before + count / 2) / n)
            before += count
        squares.append(term**2)
    return math.sqrt(sum(squares) / 6) / n


@pytest.mark.parametrize("blocks", [8, 63, 64])
def test_the_standard_error_is_that_of_the_formula_with_six_degrees_of_freedom(blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    counts = rng.integers(200, 600, blocks)
    sums = counts * rng.normal(3, 0.2, blocks)
    found = mean_of_blocks(sums, counts)
    assert found.mean == pytest.approx(sums.sum() / counts.sum())
    assert found.stderr == pytest.approx(by_hand(sums.tolist(), counts.tolist()), rel=1e-12)
    assert (found.n, found.clusters, found.df) == (counts.sum(), blocks, 6)


def test_fewer_than_8_blocks_have_no_interval() -> None:
    found = mean_of_blocks(np.arange(7.0), np.full(7, 4))
    assert (found.mean, found.clusters, found.stderr, found.df, found.bounds(0.95)) == (0.75, 7, None, None, None)
    assert mean_of_blocks(np.arange(8.0), np.full(8, 4)).bounds(0.95) is not None


def _documents(rng: np.random.Generator, tokens: int, length: int, spread: float, skewed: bool) -> np.ndarray:
    """Differences of documents of uneven lengths, of which the first begins before the text."""
    lengths = np.maximum(1, np.round(length * np.exp(spread * rng.standard_normal(3 * tokens // length + 30))))
    drawn = rng.exponential(size=len(lengths)) - 1 if skewed else rng.standard_normal(len(lengths))
    effects = np.repeat(drawn, lengths.astype(np.int64))
    begin = rng.integers(len(effects) - tokens)
    return effects[begin : begin + tokens] + rng.standard_normal(tokens)


@pytest.mark.parametrize(
    ("tokens", "length", "spread", "skewed", "most", "before"),
    [
        (20_000, 250, 0.5, False, 0.06, 0.0),  # a fiftieth of the text
        (20_000, 1_000, 0.5, False, 0.10, 0.10),  # a token's document is a fourteenth of the text
        (2_304, 200, 0.0, False, 0.10, 0.0),  # nine windows
        (20_000, 250, 0.5, True, 0.11, 0.0),
    ],
)
def test_a_change_of_just_the_tolerance_passes_rarely_whatever_documents_the_text_hides(
    tokens: int, length: int, spread: float, skewed: bool, most: float, before: float
) -> None:
    repetitions, stride = 400, 256
    rng = np.random.default_rng(12345)
    windows = np.full(-(-tokens // stride), stride, dtype=np.int64)
    windows[-1] = tokens - stride * (len(windows) - 1)
    text, passed, as_rows = layout(windows.tolist(), None), 0, 0
    for _ in range(repetitions):
        sums, counts = text.of_targets(_documents(rng, tokens, length, spread, skewed))
        bounds, independent = (made(sums, counts).bounds(0.95) for made in (mean_of_blocks, clustered_mean))
        passed += bounds.upper <= 0
        as_rows += independent.upper <= 0
    assert passed / repetitions <= most + 3 * math.sqrt(most * (1 - most) / repetitions)
    assert as_rows / repetitions >= before


# Student's t and the normal distribution against scipy's, and where there is none.


@given(t=st.floats(-1e4, 1e4), p=st.floats(1e-12, 1 - 1e-12), df=st.floats(0.5, 1e5))
def test_students_t_is_scipys(t: float, p: float, df: float) -> None:
    assert t_cdf(t, df) == pytest.approx(float(scipy.stats.t.cdf(t, df)), rel=1e-9, abs=1e-290)
    assert t_quantile(p, df) == pytest.approx(float(scipy.stats.t.ppf(p, df)), rel=1e-9, abs=1e-9)


@given(x=st.floats(-37, 37), p=st.floats(1e-300, 1, exclude_max=True))
def test_the_normal_distribution_is_scipys(x: float, p: float) -> None:
    assert normal_cdf(x) == pytest.approx(float(scipy.stats.norm.cdf(x)), rel=1e-12)
    assert normal_quantile(p) == pytest.approx(float(scipy.stats.norm.ppf(p)), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("df", [0.0, -1.0, math.nan, math.inf])
def test_no_such_distribution_is_an_error(df: float) -> None:
    with pytest.raises(ValueError, match="degrees of freedom above 0"):
        t_cdf(-1.0, df)
    with pytest.raises(ValueError, match="degrees of freedom from 1/2"):
        t_quantile(0.95, df)
