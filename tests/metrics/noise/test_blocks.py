"""The noise of a text without rows, against its formula term by term and in simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from pytest_lmgate.metrics.noise.clusters import MIN_BLOCKS
from pytest_lmgate.metrics.noise.means import clustered_mean, mean_of_blocks
from pytest_lmgate.metrics.targets import TargetLayout


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


@pytest.mark.parametrize("blocks", [8, 9, 20, 63, 64])
def test_the_standard_error_is_that_of_the_formula_with_six_degrees_of_freedom(blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    counts = rng.integers(200, 600, blocks)
    sums = counts * rng.normal(3, 0.2, blocks)

    found = mean_of_blocks(sums, counts)

    assert found.mean == pytest.approx(sums.sum() / counts.sum())
    assert found.stderr == pytest.approx(by_hand(sums.tolist(), counts.tolist()), rel=1e-12)
    assert (found.n, found.clusters, found.df) == (counts.sum(), blocks, 6)
    # Student's bounds or wider ones, where blocks are skewed.
    bounds = found.bounds(0.95)
    assert bounds is not None
    reach = scipy.stats.t.ppf(0.95, 6) * found.stderr
    assert bounds.lower <= found.mean - reach * (1 - 1e-9)
    assert bounds.upper >= found.mean + reach * (1 - 1e-9)
    assert {"student", "hall"} >= {bounds.lower_rule, bounds.upper_rule}


def test_a_block_without_targets_counts_for_nothing() -> None:
    sums, counts = np.arange(10.0), np.full(10, 4)

    with_empty = mean_of_blocks(np.insert(sums, [0, 5, 10], 0.0), np.insert(counts, [0, 5, 10], 0))

    assert with_empty == mean_of_blocks(sums, counts)


def test_fewer_than_8_blocks_have_no_interval() -> None:
    found = mean_of_blocks(np.arange(7.0), np.full(7, 4))

    assert (found.mean, found.clusters, found.stderr, found.df) == (0.75, 7, None, None)
    assert found.bounds(0.95) is None
    assert mean_of_blocks(np.arange(8.0), np.full(8, 4)).bounds(0.95) is not None
    assert MIN_BLOCKS == 8


def test_noise_that_lasts_over_blocks_is_seen_where_independent_blocks_would_not_see_it() -> None:
    waves = np.cos(2 * np.pi * np.arange(64) / 64)  # two halves of one document each, as it were
    counts = np.full(64, 100)

    assert mean_of_blocks(100 * waves, counts).stderr > 3 * clustered_mean(100 * waves, counts).stderr


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
        (20_000, 400, 1.0, False, 0.10, 0.10),
        (2_304, 200, 0.0, False, 0.10, 0.0),  # nine windows
        (20_000, 250, 0.5, True, 0.11, 0.0),
    ],
)
def test_a_change_of_just_the_tolerance_passes_rarely_whatever_documents_the_text_hides(
    tokens: int, length: int, spread: float, skewed: bool, most: float, before: float
) -> None:
    repetitions, stride = 1_000, 256
    rng = np.random.default_rng(12345)
    windows = np.full(-(-tokens // stride), stride, dtype=np.int64)
    windows[-1] = tokens - stride * (len(windows) - 1)
    layout = TargetLayout(window_targets=windows, window_document=np.zeros_like(windows), running_text=True)
    passed = as_rows = 0
    for _ in range(repetitions):
        sums, counts = layout.of_targets(_documents(rng, tokens, length, spread, skewed))
        bounds, independent = (made(sums, counts).bounds(0.95) for made in (mean_of_blocks, clustered_mean))
        assert bounds is not None
        assert independent is not None
        passed += bounds.upper <= 0
        as_rows += independent.upper <= 0

    assert passed / repetitions <= most + 3 * math.sqrt(most * (1 - most) / repetitions)
    assert as_rows / repetitions >= before
