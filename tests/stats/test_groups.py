"""Averages over groups: the mean of the groups' means, with the noise of a stratified sample, for shares and means."""

import math

import numpy as np
import pytest

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.means import Groups
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.sample import ByRow, Sample
from tests.stats.samples import SHARE

UNEVEN = [10, 20, 40, 80, 160, 320]


def sample_of(values: Floats, groups: Ints | None, *, right: bool = False, clusters: Ints | None = None) -> Sample:
    numbers = np.arange(len(values)) if clusters is None else clusters
    by_row = ByRow(values[:, None].astype(np.float64), np.ones(len(values), dtype=np.int64), numbers)
    labels = None if groups is None else groups.tolist()
    return Sample.of_means(by_row, SHARE, right_or_wrong=right, groups=labels)


def stratified(values: Floats, groups: Ints) -> tuple[float, float]:
    """The mean of the groups' means and its standard error, ``sqrt(sum s_g^2 / n_g) / G``."""
    parts = [values[groups == group] for group in np.unique(groups)]
    variance = sum(part.var(ddof=1) / len(part) for part in parts)
    return float(np.mean([part.mean() for part in parts])), math.sqrt(variance) / len(parts)


@pytest.mark.parametrize("sizes", [[2, 3, 7], UNEVEN, [700, 5]], ids=str)
def test_value_and_standard_error_are_those_of_the_groups(sizes: list[int]) -> None:
    rng = np.random.default_rng(1)
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    before, after = rng.normal(size=(2, len(groups)))
    sample = sample_of(after, groups)
    mean, stderr = stratified(after, groups)
    assert sample.value() == pytest.approx(mean)
    # Above 512 rows, rows of one group share a cluster by chance.
    assert sample.noise().stderr == pytest.approx(stderr, rel=1e-9 if len(groups) <= 512 else 0.15)
    found = compare(sample, sample_of(before, groups), tolerance=Tolerance(9, relative=False))
    assert found.change == pytest.approx(stratified(after - before, groups)[0])
    noise = sample.noise_of((sample.sums - sample_of(before, groups).sums)[:, 0])
    expected = stratified(after - before, groups)[1]
    assert noise.stderr == pytest.approx(expected, rel=1e-9 if len(groups) <= 512 else 0.15)


def test_groups_of_one_size_are_the_mean_of_rows() -> None:
    right = np.array([1.0, 0, 1, 1, 0, 1, 1, 1] * 10)
    groups = np.repeat([0, 1], 40)
    even, plain = (sample_of(right, labels, right=True) for labels in (groups, None))
    assert even.value() == pytest.approx(plain.value())
    assert even.interval == pytest.approx(plain.interval, abs=0.005)


@pytest.mark.parametrize(
    ("groups", "clusters", "message"),
    [
        ([0, 0, 0, 0], None, "expected two groups or more, got 1 (0)"),
        ([0, 0, 0, 7], None, "the group 7 has a single row"),
        ([0, 0, 7, 7], [0, 1, 2, 2], "the group 7 has a single cluster"),
    ],
)
def test_groups_without_noise_are_refused(groups: list[int], clusters: list[int] | None, message: str) -> None:
    with pytest.raises(MetricInputError) as raised:
        sample_of(np.ones(4), np.array(groups), clusters=None if clusters is None else np.array(clusters))
    assert message in str(raised.value)


@pytest.mark.parametrize("losing", ["all", "smallest", "largest"])
def test_a_model_that_is_worse_by_the_tolerance_seldom_passes(losing: str) -> None:
    """5% are promised; 50 simulations of 630 rows in uneven groups."""
    rng, tolerance, gain, runs = np.random.default_rng(7), 0.03, 0.02, 50
    groups = np.repeat(np.arange(6), UNEVEN)
    of = {"all": slice(None), "smallest": slice(0, 2), "largest": slice(4, 6)}[losing]
    rate = np.zeros(6)
    rate[of] = tolerance * 6 / len(rate[of])
    passed = covered = 0
    share = rng.uniform(0.5, 0.9, 6)
    for _ in range(runs):
        before, drawn = rng.random(630) < share[groups], rng.random(630)
        lost = before & (drawn < (rate + gain)[groups] / share[groups])
        gained = ~before & (drawn < gain / (1 - share)[groups])
        here, there = (sample_of(right, groups, right=True) for right in ((before & ~lost) | gained, before))
        passed += compare(here, there, tolerance=Tolerance(tolerance, relative=False)).decision == "pass"
        low, high = there.interval or (1, 0)
        covered += low <= share.mean() <= high
    chance = 3 * math.sqrt(0.05 * 0.95 * runs)
    assert passed <= 0.05 * runs + chance
    assert covered >= 0.95 * runs - chance


def test_the_design_effect_is_kishs() -> None:
    groups = Groups.of(np.repeat([0, 1], [2, 6]).tolist(), np.arange(8))
    assert groups.weights.tolist() == pytest.approx([2, 2, *[2 / 3] * 6])
    assert groups.design_effect == pytest.approx((2 * 4 + 6 * 4 / 9) / 8)
