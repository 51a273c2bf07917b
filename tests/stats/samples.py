"""Samples of rows that are right or wrong, or have a score between 0 and 1."""

from collections.abc import Sequence

import numpy as np

from pytest_lmgate.stats.sample import Outcomes, Sample, Scale

SHARE = Scale("higher", lowest=0, highest=1, of_rows=True)


def outcomes(right: Sequence[bool] | np.ndarray, clusters: Sequence[int] | None = None) -> Outcomes:
    return Outcomes(np.array(right, dtype=bool), np.array(range(len(right)) if clusters is None else clusters))


def right_or_wrong(right: Sequence[bool] | np.ndarray, clusters: Sequence[int] | None = None) -> Sample:
    """The share of right rows, as a metric of texts has it."""
    made = outcomes(right, clusters)
    sums = np.bincount(made.cluster, weights=made.right).astype(np.float64)
    return Sample(sums[:, None], made.sizes, SHARE, identity={"data": "d"}, outcomes=made)


def scores(values: Sequence[float] | np.ndarray) -> Sample:
    """The mean of a score of each row."""
    return Sample(np.array(values)[:, None], np.ones(len(values), dtype=np.int64), SHARE)
