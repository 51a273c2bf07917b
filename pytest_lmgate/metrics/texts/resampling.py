"""Bootstrap over rows on additive statistics: resampled sums without reading a text again.

The indices are those of sacrebleu's `significance` module, drawn from the same generator with the same seed by the same
call, so that intervals and paired tests are its own (Koehn 2004; Post 2018). Each resample is turned into how often
it took each row; its sums are then one matrix product.
"""

from __future__ import annotations

__all__ = [
    "RESAMPLES",
    "SEED",
    "cluster_sums",
    "percentile_interval",
    "resampled_scores",
    "resampled_sums",
    "resampled_value",
]

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.texts.resamples import Resamples
from pytest_lmgate.metrics.texts.row_statistics import checked_number
from pytest_lmgate.metrics.texts.text_metric import Floats, TextMetric

RESAMPLES = 1000
SEED = 12345

_DRAWS_AT_ONCE = 1 << 20  # 8 MiB of indices


def cluster_sums(statistics: Floats, clusters: NDArray[np.int64]) -> Floats:
    """Add up the statistics of each cluster.

    Args:
        statistics: Of each row, shape ``[rows, k]``.
        clusters: Of each row, from 0, shape ``[rows]``.

    Returns:
        Shape ``[clusters, k]``.
    """
    sums = np.zeros((int(clusters.max()) + 1, statistics.shape[1]))
    np.add.at(sums, clusters, statistics)
    return sums


def resampled_sums(statistics: Floats, *, resamples: int = RESAMPLES, seed: int = SEED) -> Floats:
    """Draw as many rows as there are, with replacement, and add up their statistics; many times.

    Args:
        statistics: Of each row (or cluster), shape ``[rows, k]``.
        resamples: How often.
        seed: Of numpy's default generator.

    Returns:
        Shape ``[resamples, k]``.
    """
    generator = np.random.default_rng(seed)
    rows = len(statistics)
    at_once = max(1, _DRAWS_AT_ONCE // rows)
    sums = np.empty((resamples, statistics.shape[1]))
    for begin in range(0, resamples, at_once):
        batch = min(at_once, resamples - begin)
        # The generator keeps its half-used words, so that batches give the numbers that one call would.
        drawn = generator.choice(rows, size=(batch, rows), replace=True)
        drawn += np.arange(batch)[:, None] * rows
        taken = np.bincount(drawn.ravel(), minlength=batch * rows).reshape(batch, rows)
        sums[begin : begin + batch] = taken.astype(np.float64) @ statistics
    return sums


def resampled_scores(metric: TextMetric, sums: Floats) -> Floats:
    """Return the score of each resample, shape ``[resamples]``.

    Args:
        metric: The metric.
        sums: Of each resample, shape ``[resamples, k]``.

    Raises:
        MetricInputError: The metric's value is not finite for one of them.
    """
    scores = np.array([checked_number(metric, metric.value(of_one)) for of_one in sums], dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise MetricInputError(
            f"text metric {metric.name!r}: expected a finite value for every resample of the rows, "
            f"got {scores[bad[0]]} for {len(bad)} of {len(scores)}, the first from the sums {sums[bad[0]].tolist()}: "
            "let its `value` say what such sums are worth"
        )
    return scores


def resampled_value(metric: TextMetric, sums: Floats) -> Resamples:
    """Return a metric's value in each resample of its clusters.

    Args:
        metric: The metric.
        sums: Statistics of each cluster, shape ``[clusters, k]``, at least two.

    Raises:
        MetricInputError: The metric's value is not finite for a resample.
    """
    scores = resampled_scores(metric, resampled_sums(sums))
    return Resamples(np.sort(scores), checked_number(metric, metric.value(sums.sum(axis=0))), len(sums))


def percentile_interval(scores: Floats) -> tuple[float, float]:
    """Two-sided 95 % interval of resampled scores: the one-in-forty from either end, as sacrebleu cuts it."""
    ordered = np.sort(scores)
    cut = len(ordered) // 40
    return float(ordered[cut]), float(ordered[len(ordered) - cut - 1])
