"""From texts to a `Score`: the value, its noise, its signature.

A mean over rows has the clustered closed form of `pytest_lmgate.metrics.noise.means`, a share of right rows Wilson's
interval; for all other metrics rows (or clusters of them) are resampled. With fewer than two clusters nothing is known
of the noise, and nothing is said.
"""

from __future__ import annotations

__all__ = ["text_score"]

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.by_row import ByRow
from pytest_lmgate.metrics.noise.proportion import Outcomes
from pytest_lmgate.metrics.sample import Sample, Scale
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.texts.bootstrap import (
    RESAMPLES,
    SEED,
    cluster_sums,
    percentile_interval,
    resampled_scores,
    resampled_sums,
)
from pytest_lmgate.metrics.texts.inputs import checked_texts, cluster_numbers
from pytest_lmgate.metrics.texts.row_statistics import checked_details, checked_number, row_statistics
from pytest_lmgate.metrics.texts.text_metric import TextMetric


def text_score(
    metric: TextMetric,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]] | None,
    *,
    rows: Sequence[Mapping[str, Any]] | None = None,
    clusters: Sequence[Hashable] | None = None,
    statistics: Floats | None = None,
) -> Score:
    """Score what a system wrote.

    Args:
        metric: As `bleu()` and its kin make one, or a user's own.
        predictions: What the system wrote, one string per row.
        references: The references of each row; rows may have different numbers of them.
        rows: The dataset's rows, for metrics that look at other columns.
        clusters: Label of each row's cluster; each row is its own where None.
        statistics: What `row_statistics` returned for these very texts, to read them once only.

    Returns:
        The score in the metric's own scale; `n` counts rows. The standard error and the 95 % interval of a mean are in
        closed form (`Sample.bounds`); else those of 1,000 resamples with seed 12345. The details hold the metric's own
        figures and what the noise was judged by.

    Raises:
        MetricInputError: The texts cannot be scored, or the metric's statistics or value are not finite numbers.
    """
    texts = checked_texts(predictions, references, rows, needs_references=metric.needs_references)
    if statistics is None:
        statistics = row_statistics(metric, *texts)
    elif len(statistics) != len(texts.predictions):
        raise MetricInputError(
            f"expected statistics of {len(texts.predictions)} rows, got {len(statistics)}: "
            "pass what row_statistics returned for these texts"
        )
    total: Floats = statistics.sum(axis=0)
    value = checked_number(metric, metric.value(total))
    if not math.isfinite(value):
        raise MetricInputError(
            f"text metric {metric.name!r}: expected a finite value, got {value} from the sums {total.tolist()}: "
            "let its `value` return a finite number for them"
        )
    groups = cluster_numbers(clusters, len(texts.predictions))
    sample = _sample(metric, statistics, groups)
    stderr, interval, details = _noise_of_mean(sample) if metric.is_mean else _bootstrap(metric, sample.sums)
    return Score(
        value,
        metric=metric.name,
        unit="row",
        direction=metric.direction,
        n=len(texts.predictions),
        stderr=stderr,
        interval=interval,
        signature=Signature.parse(metric.signed(texts.references)),
        details={**checked_details(metric, total), **details},
        sample=sample,
    )


def _sample(metric: TextMetric, statistics: Floats, groups: NDArray[np.int64]) -> Sample:
    sums = cluster_sums(statistics, groups)
    if not metric.is_mean:
        ones = np.ones(len(groups), dtype=np.int64)
        return Sample(sums, np.bincount(groups), metric=metric, by_row=ByRow(statistics, ones, groups))
    scale = Scale(metric.direction, lowest=metric.lowest, highest=metric.highest, of_rows=True)
    outcomes = Outcomes(statistics[:, 0] > 0, groups) if metric.right_or_wrong else None
    by_row = ByRow(statistics[:, :1], statistics[:, -1].astype(np.int64), groups)
    return Sample(sums[:, :1], sums[:, -1].astype(np.int64), scale, outcomes=outcomes, by_row=by_row).merged()


_Noise = tuple[float | None, tuple[float, float] | None, dict[str, Any]]


def _noise_of_mean(sample: Sample) -> _Noise:
    """CR2 standard error, the interval by the metric's rule, and details; at most 512 clusters."""
    noise = sample.noise()
    return noise.stderr, sample.interval, {"clusters": noise.clusters, "df": noise.df}


def _bootstrap(metric: TextMetric, sums: Floats) -> _Noise:
    """Standard deviation and percentile interval of the resampled scores, and details."""
    if len(sums) < 2:
        return None, None, {"clusters": len(sums)}
    scores = resampled_scores(metric, resampled_sums(sums))
    details = {"clusters": len(sums), "resamples": RESAMPLES, "seed": SEED}
    return float(scores.std(ddof=1)), percentile_interval(scores), details
