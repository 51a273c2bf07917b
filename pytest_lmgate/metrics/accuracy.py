"""Multiple-choice accuracy from the log-likelihoods of choices.

``acc`` takes the choice with the highest log-likelihood, ``acc_norm`` the highest per character and ``acc_bytes`` the
highest per UTF-8 byte, as lm-evaluation-harness 0.4.13 does under these names (``ConfigurableTask.process_results``);
the lowest index wins ties. Log-likelihoods that differ by less than 1e-6 of their size, the rounding of float32, are a
tie: which of them is larger would depend on the batch and the processor. Characters are Unicode code points of the
choice alone: the delimiter before it is scored but not counted. Figures called normalized elsewhere may be per token,
which depends on the tokenizer: of one model on one file, 49.5 % are right per character and per byte, 50.5 % per token.
"""

from __future__ import annotations

__all__ = ["CHOICE_VARIANTS", "ChoiceStatistics", "accuracy"]

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.by_row import ByRow
from pytest_lmgate.metrics.noise.proportion import Outcomes
from pytest_lmgate.metrics.sample import Sample, Scale
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.texts.inputs import cluster_numbers

CHOICE_VARIANTS = ("acc", "acc_norm", "acc_bytes")
# The log-likelihood of a text of 24 tokens, alone and in a batch: 2e-7 of it at most, over 29 architectures in float32.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class ChoiceStatistics:
    """What a multiple-choice measurement keeps, all choices of all rows in order.

    Attributes:
        log_likelihood: Nats, shape ``[choices]``.
        chars: Length of each choice in code points, shape ``[choices]``.
        utf8_bytes: Length of each choice in bytes, shape ``[choices]``.
        counts: Choices of each row, shape ``[rows]``.
        answers: Index of the right choice of each row, shape ``[rows]``.
    """

    log_likelihood: Floats
    chars: Ints
    utf8_bytes: Ints
    counts: Ints
    answers: Ints


def accuracy(
    statistics: ChoiceStatistics,
    *,
    signature: Signature,
    variant: str = "acc",
    clusters: Sequence[Hashable] | None = None,
) -> Score:
    """Return the share of rows whose most likely choice is the right one, 0 to 1.

    The `clusters` are labels of the rows where these are not independent; else each row is a cluster of its own.

    Raises:
        MetricInputError: There is no row, or a log-likelihood is not finite.
    """
    if len(statistics.counts) == 0:
        raise MetricInputError("accuracy: expected at least one row, got none")
    if not np.isfinite(statistics.log_likelihood).all():
        raise MetricInputError("accuracy: expected finite log-likelihoods, got NaN or infinity")
    each = {name: correct(statistics, name) for name in CHOICE_VARIANTS}
    right = each[variant]
    groups = cluster_numbers(clusters, len(right))
    sums, sizes = np.bincount(groups, weights=right).astype(np.float64), np.bincount(groups)
    scale = Scale("higher", lowest=0, highest=1, of_rows=True)
    by_row = ByRow(right[:, None], np.ones(len(right), dtype=np.int64), groups)
    outcomes = Outcomes(right.astype(bool), groups)
    sample = Sample(sums[:, None], sizes, scale, outcomes=outcomes, by_row=by_row).merged()
    noise = sample.noise()
    return Score(
        noise.mean,
        metric="accuracy",
        unit="row",
        direction="higher",
        n=len(right),
        stderr=noise.stderr,
        interval=sample.interval,
        signature=signature,
        details={name: float(values.mean()) for name, values in each.items()},
        sample=sample,
    )


def correct(statistics: ChoiceStatistics, variant: str) -> Floats:
    """Return 1 for each row answered right, else 0; shape ``[rows]``."""
    lengths = {"acc_norm": statistics.chars, "acc_bytes": statistics.utf8_bytes}.get(variant)
    values = statistics.log_likelihood if lengths is None else statistics.log_likelihood / lengths
    begins = np.cumsum(statistics.counts) - statistics.counts
    highest = np.repeat(np.maximum.reduceat(values, begins), statistics.counts)
    ties = np.flatnonzero(values >= highest - _ROUNDING * abs(highest))
    chosen = ties[np.searchsorted(ties, begins)] - begins  # the first of each row's
    right: Floats = (chosen == statistics.answers).astype(np.float64)
    return right
