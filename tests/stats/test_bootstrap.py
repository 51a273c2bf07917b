"""Bounds of resampled values: percentiles, Student's or Hall's, whichever is widest; and their p-values."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_lmgate.metrics.sacrebleu_metrics import bleu
from pytest_lmgate.metrics.texts import text_score
from pytest_lmgate.stats.bootstrap import Resamples


def resamples(clusters: int, skew: float, seed: int) -> Resamples:
    """Values of a shifted gamma distribution, which is skewed by `skew`, and a measured value beside their mean."""
    drawn = scipy.stats.pearson3.rvs(skew, size=999, random_state=seed)
    return Resamples(np.sort(drawn), float(drawn.mean()) + 0.05, clusters)


@pytest.mark.parametrize(("clusters", "skew"), [(5, 0.0), (12, 1.5), (200, -1.5), (60, 0.4)])
@pytest.mark.parametrize("level", [0.9, 0.95, 0.9999])
def test_a_bound_is_the_widest_of_three(clusters: int, skew: float, level: float) -> None:
    found = resamples(clusters, skew, 3)
    drawn = found.ordered
    expansion, t = math.sqrt(clusters / (clusters - 1)), scipy.stats.t.ppf(level, clusters - 1)
    error, k = expansion * drawn.std(ddof=1), scipy.stats.skew(drawn)
    above, below = (3 / k * (np.cbrt(1 + k * (y - k / 6)) - 1) * error for y in (-t, t))
    cut = max(0, math.floor(scipy.stats.norm.cdf(-expansion * t) * 1000) - 1)
    measured = drawn.mean() + 0.05
    lowers = {"bootstrap": drawn[cut], "student": measured - t * error, "hall": measured - below}
    uppers = {"bootstrap": drawn[-1 - cut], "student": measured + t * error, "hall": measured - above}
    bounds = found.bounds(level)
    assert bounds.lower == pytest.approx(min(lowers.values()), rel=1e-6)
    assert bounds.upper == pytest.approx(max(uppers.values()), rel=1e-6)
    assert (bounds.lower_rule, bounds.upper_rule) == (min(lowers, key=lowers.get), max(uppers, key=uppers.get))


@given(
    clusters=st.integers(2, 300),
    skew=st.floats(-2, 2),
    seed=st.integers(0, 50),
    size=st.floats(-4, 4),
    level=st.sampled_from([0.8, 0.95]),
)
def test_the_p_value_is_below_a_level_just_where_the_bound_is_within_the_size(
    clusters: int, skew: float, seed: int, size: float, level: float
) -> None:
    found = resamples(clusters, skew, seed)
    bounds = found.bounds(level)
    # Between two neighbours of 999 resamples either answer is right.
    near = [np.searchsorted(found.ordered, edge) for edge in (bounds.lower, bounds.upper, size)]
    assume(min(abs(near[2] - near[0]), abs(near[2] - near[1])) > 1 or not 0 < near[2] < 999)
    assume(min(abs(size - bounds.lower), abs(size - bounds.upper)) > 1e-6)
    p_pass, p_fail = found.p_values(size)
    assert (p_pass <= 1 - level) == (bounds.upper <= size)
    assert (p_fail <= 1 - level) == (bounds.lower > size)


@settings(max_examples=40)
@given(lost=st.lists(st.integers(0, 6), min_size=2, max_size=12), level=st.sampled_from([0.9, 0.975, 0.9999]))
def test_bounds_of_a_bounded_metric_are_within_its_range(lost: list[int], level: float) -> None:
    words = ["the", "quick", "brown", "fox", "jumps", "over"]
    outputs = [" ".join(["x"] * count + words[count:]) for count in lost]
    score = text_score(bleu(max_ngram_order=1), outputs, [[" ".join(words)]] * len(lost))
    lower, upper, *_ = score.sample.bounds(level)
    assert 0 <= lower <= score + 1e-9
    assert score - 1e-9 <= upper <= 100


def test_an_infinite_resample_leaves_percentiles() -> None:
    drawn = np.append(np.arange(999.0), math.inf)
    bounds = Resamples(drawn, 500.0, 50).bounds(0.95)
    assert bounds[2:] == ("bootstrap", "bootstrap")
    assert 0 < bounds.lower < bounds.upper < math.inf
    assert Resamples(drawn, 500.0, 2).bounds(0.95).upper == math.inf
