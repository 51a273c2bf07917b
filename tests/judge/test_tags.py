"""The change of the rows with each tag: that of the same comparison on these rows alone."""

from dataclasses import replace

import numpy as np
import pytest

from pytest_lmgate.judge.attribution import tag_changes, with_rows
from pytest_lmgate.metrics.likelihoods import ChoiceStatistics, LikelihoodStatistics, accuracy, perplexity
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.sample import Sample

LENGTHS = np.array([3, 0, 5, 4, 2, 6])
TAGS = {"language": ("ko", "ko", "en", "ko", "en", "en")}
PERCENT = Tolerance(0.01, relative=True)
SIGNATURE = Signature.parse("protocol:document")


def likelihoods(seed: int, shift: np.ndarray | float = 0.0) -> LikelihoodStatistics:
    rows = np.repeat(np.arange(6), LENGTHS)
    drawn = np.random.default_rng(seed).exponential(size=20)
    return LikelihoodStatistics(
        nll=drawn + np.asarray(shift) * (np.array([1, 1, 0, 1, 0, 0])[rows]),
        window_targets=LENGTHS[LENGTHS > 0],
        window_document=np.flatnonzero(LENGTHS),
        running_text=False,
        row_targets=LENGTHS,
        words=LENGTHS + 1,
        chars=5 * LENGTHS + 1,
        utf8_bytes=6 * LENGTHS + 1,
        scored=np.stack([LENGTHS + 1, 5 * LENGTHS + 1, 6 * LENGTHS + 1], axis=1).astype(np.float64),
    )


def sample(statistics: LikelihoodStatistics, **how: str) -> Sample:
    return perplexity(statistics, signature=SIGNATURE, **how).sample


@pytest.mark.parametrize("unit", ["token", "word", "byte", "bits_per_byte"])
def test_a_tag_is_compared_as_its_rows_alone_would_be(unit: str) -> None:
    here, there = sample(likelihoods(1, 1.0), unit=unit), sample(likelihoods(1), unit=unit)
    (worse, same), more = tag_changes(here, there, TAGS, tolerance=PERCENT, confidence=0.95)
    assert (worse.value, worse.rows, same.value, same.rows, more) == ("ko", 3, "en", 3, 0)
    kept = np.array([True, True, False, True, False, False])
    alone = []
    for statistics in (likelihoods(1, 1.0), likelihoods(1)):
        part = replace(
            statistics,
            nll=statistics.nll[kept[np.repeat(np.arange(6), LENGTHS)]],
            window_targets=np.array([3, 4]),
            window_document=np.array([0, 2]),
            row_targets=LENGTHS[kept],
            words=statistics.words[kept],
            chars=statistics.chars[kept],
            utf8_bytes=statistics.utf8_bytes[kept],
            scored=None if statistics.scored is None else statistics.scored[kept],
        )
        alone.append(sample(part, unit=unit))
    found = compare(*alone, tolerance=PERCENT, confidence=0.975)  # two tags, so that both hold together at 95%
    assert (worse.degradation, worse.lower, worse.upper) == pytest.approx((found.degradation, found.lower, found.upper))
    assert (worse.candidate, worse.reference) == pytest.approx((found.candidate, found.reference))
    assert worse.is_worse == (unit in ("token", "byte"))
    assert (same.degradation, same.is_worse) == (0, False)


def test_a_tag_of_every_row_is_no_tag_and_one_of_unscored_rows_says_so() -> None:
    here, there = sample(likelihoods(1, 1.0)), sample(likelihoods(1))
    tags = {"all": ("x",) * 6, "some": ("a", "b", "a", "a", "a", "a")}
    found, _ = tag_changes(here, there, tags, tolerance=PERCENT, confidence=0.95)
    assert [(each.value, each.problem) for each in found] == [("a", ""), ("b", "no target of these rows was scored")]


def test_rows_that_are_right_or_wrong_are_compared_by_tango_tag_by_tag() -> None:
    def of(right: list[int]) -> Sample:
        values = np.array([[0.0, -1.0] if each else [-1.0, 0.0] for each in right]).reshape(-1)
        sizes, is_right = np.ones(2 * len(right), dtype=np.int64), np.array([True, False] * len(right))
        found = ChoiceStatistics(values, sizes, sizes, np.full(len(right), 2), is_right)
        return accuracy(found, signature=SIGNATURE).sample

    tags = {"kind": ("a",) * 20 + ("b",) * 20}
    here, there = of([0] * 15 + [1] * 25), of([1] * 40)
    tolerance = Tolerance(0.05, relative=False)
    (worse, same), _ = tag_changes(here, there, tags, tolerance=tolerance, confidence=0.95)
    alone = compare(of([0] * 15 + [1] * 5), of([1] * 20), tolerance=tolerance, confidence=0.975)
    assert (worse.value, worse.degradation, worse.lower) == ("a", 0.75, pytest.approx(alone.lower))
    assert alone.bounds == "tango"
    assert (same.degradation, same.is_worse) == (0, False)
    kept = with_rows(replace(there, by_row=None), here)
    assert tag_changes(here, kept, tags, tolerance=tolerance, confidence=0.95)[0][0] == worse
