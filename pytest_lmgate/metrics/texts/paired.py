"""Paired bootstrap: do two systems differ on the same rows by more than chance?

The p-value is what ``sacrebleu --paired-bs`` prints (Koehn 2004, as in Moses'
``bootstrap-hypothesis-difference-significance.pl``): ``(#{|d_b| - mean |d| > |D|} + 1) / (B + 1)``, D the difference of
the systems, d_b that of resample b. Resamples are scored in double precision here and in single precision there: the
two can differ where a resample lies at the threshold to within that.
"""

from __future__ import annotations

__all__ = ["PairedBootstrap", "paired_bootstrap"]

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.texts.inputs import cluster_numbers
from pytest_lmgate.metrics.texts.resampling import RESAMPLES, SEED, cluster_sums, resampled_scores, resampled_sums
from pytest_lmgate.metrics.texts.text_metric import Floats, TextMetric


@dataclass(frozen=True)
class PairedBootstrap:
    """What the resamples say about a difference.

    Attributes:
        difference: D, candidate less baseline, in the metric's own scale.
        p_value: Two-sided, sacrebleu's.
        differences: d_b of each resample, candidate less baseline, shape ``[resamples]``.
        baselines: The baseline's score in each resample, shape ``[resamples]``.
        clusters: What was resampled: clusters of rows, or rows.
    """

    difference: float
    p_value: float
    differences: Floats
    baselines: Floats
    clusters: int

    @property
    def stderr(self) -> float:
        """Standard error of the difference: the standard deviation over resamples."""
        return float(self.differences.std(ddof=1))


def paired_bootstrap(
    metric: TextMetric,
    baseline: Floats,
    candidate: Floats,
    *,
    clusters: Sequence[Hashable] | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> PairedBootstrap:
    """Compare two systems on the same rows.

    Args:
        metric: The metric whose statistics these are.
        baseline: Statistics of the one, shape ``[rows, k]``, from `row_statistics`.
        candidate: Of the other, on the same rows in the same order.
        clusters: Label of each row's cluster; each row is its own where None.
        resamples: B.
        seed: Of numpy's default generator.

    Raises:
        MetricInputError: The two are not of the same rows, there are fewer than two clusters to resample, or a
            resample has no finite value.
    """
    if baseline.shape != candidate.shape:
        raise MetricInputError(
            f"expected statistics of the same rows for both systems, got shapes {list(baseline.shape)} (baseline) and "
            f"{list(candidate.shape)} (candidate)"
        )
    both = cluster_sums(np.hstack([baseline, candidate]), cluster_numbers(clusters, len(baseline)))
    if len(both) < 2:
        raise MetricInputError(f"expected at least two rows or clusters to resample, got {len(both)}")
    width = baseline.shape[1]
    sums = resampled_sums(both, resamples=resamples, seed=seed)
    baselines = resampled_scores(metric, sums[:, :width])
    differences = resampled_scores(metric, sums[:, width:]) - baselines
    difference = float(metric.value(candidate.sum(axis=0)) - metric.value(baseline.sum(axis=0)))
    sizes = np.abs(differences)
    beyond = int((sizes - sizes.mean() > abs(difference)).sum())
    return PairedBootstrap(difference, (beyond + 1) / (resamples + 1), differences, baselines, len(both))
