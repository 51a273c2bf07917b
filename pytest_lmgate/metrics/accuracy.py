"""Multiple-choice accuracy from the log-likelihoods of choices, and what is scored of a target after a question.

``acc`` takes the choice with the highest log-likelihood, ``acc_norm`` the highest per character and ``acc_bytes`` the
highest per UTF-8 byte, as lm-evaluation-harness 0.4.13 does under these names (``ConfigurableTask.process_results``);
the lowest index wins ties. Log-likelihoods that differ by less than 1e-6 of their size, the rounding of float32, are a
tie: which of them is larger would depend on the batch and the processor. Characters are Unicode code points of the
choice alone: the delimiter before it is scored but not counted. Figures called normalized elsewhere may be per token,
which depends on the tokenizer: of one model on one file, 49.5% are right per character and per byte, 50.5% per token.

A row with one target instead of choices is right if greedy decoding would write the target, and has a perplexity by
row: ``exp(-mean log-likelihood)``, the harness's ``acc`` and ``perplexity`` of tasks such as lambada. It is no
perplexity per token: a target of two tokens counts as one of one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.stats.sample import ByRow, Sample, Scale, cluster_numbers

CHOICE_VARIANTS = ("acc", "acc_norm", "acc_bytes")
# The log-likelihood of a text of 24 tokens, alone and in a batch: 2e-7 of it at most, over 29 architectures in float32.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class ChoiceStatistics:
    """Statistics of a multiple-choice measurement, for all choices of all rows in order."""

    log_likelihood: Floats  # nats, shape ``[choices]``
    chars: Ints  # length of each choice in code points, shape ``[choices]``
    utf8_bytes: Ints  # length of each choice in bytes, shape ``[choices]``
    counts: Ints  # choices of each row, shape ``[rows]``
    right: NDArray[np.bool_]  # whether each choice is a right one, shape ``[choices]``


@dataclass(frozen=True)
class TargetStatistics:
    """Statistics of one target a row."""

    log_likelihood: Floats  # nats, shape ``[rows]``
    # whether each token of the target is the most likely one, shape ``[rows]``; None if the engine does not say so
    greedy: NDArray[np.bool_] | None


def accuracy(
    statistics: ChoiceStatistics | TargetStatistics,
    *,
    signature: Signature,
    variant: str = "acc",
    clusters: Sequence[Hashable] | None = None,
    groups: Sequence[Hashable] | None = None,
) -> Score:
    """Return the share of rows whose most likely choice is a right one, or whose target is the greedy text, 0 to 1.

    The `clusters` are labels of rows that are not independent; by default each row is a cluster. With `groups`, labels
    of rows too, the shares of all groups are averaged instead of the rows.
    """
    _require_finite("accuracy", statistics)
    if isinstance(statistics, TargetStatistics):
        assert statistics.greedy is not None
        each = {"acc": statistics.greedy.astype(np.float64)}
    else:
        each = {name: correct(statistics, name) for name in CHOICE_VARIANTS}
    right = each[variant]
    by_row = ByRow(right[:, None], np.ones(len(right), dtype=np.int64), cluster_numbers(clusters, len(right)))
    scale = Scale("higher", lowest=0, highest=1, of_rows=True)
    sample = Sample.of_means(by_row, scale, right_or_wrong=True, groups=groups)
    noise, made = sample.noise(), sample.outcomes
    assert made is not None
    return Score(
        noise.mean,
        metric="accuracy",
        unit="row",
        direction="higher",
        n=len(right),
        stderr=noise.stderr,
        interval=sample.interval,
        signature=signature,
        details={name: made.share(values) for name, values in each.items()},
        sample=sample,
    )


def target_perplexity(
    statistics: TargetStatistics, *, signature: Signature, clusters: Sequence[Hashable] | None = None
) -> Score:
    """Return ``exp(-mean log-likelihood)`` over rows, each of one target."""
    _require_finite("target_ppl", statistics)
    nll = -statistics.log_likelihood[:, None]
    by_row = ByRow(nll, np.ones(len(nll), dtype=np.int64), cluster_numbers(clusters, len(nll)))
    scale = Scale("lower", exponential=True, lowest=1, of_rows=True)
    sample = Sample.of_means(by_row, scale)
    noise = sample.noise()
    value = scale.value(noise.mean)
    return Score(
        value,
        metric="target_ppl",
        unit="row",
        n=len(nll),
        stderr=None if noise.stderr is None else noise.stderr * value,
        interval=sample.interval,
        signature=signature,
        details={"nll_sum": float(nll.sum())},
        sample=sample,
    )


def _require_finite(metric: str, statistics: ChoiceStatistics | TargetStatistics) -> None:
    if len(statistics.log_likelihood) == 0:
        raise MetricInputError(f"{metric}: expected at least one row, got none")
    if not np.isfinite(statistics.log_likelihood).all():
        raise MetricInputError(f"{metric}: expected finite log-likelihoods, got NaN or infinity")


def correct(statistics: ChoiceStatistics, variant: str) -> Floats:
    """Return 1 for each row answered right, else 0; shape ``[rows]``."""
    lengths = {"acc_norm": statistics.chars, "acc_bytes": statistics.utf8_bytes}.get(variant)
    values = statistics.log_likelihood if lengths is None else statistics.log_likelihood / lengths
    begins = np.cumsum(statistics.counts) - statistics.counts
    highest = np.repeat(np.maximum.reduceat(values, begins), statistics.counts)
    ties = np.flatnonzero(values >= highest - _ROUNDING * abs(highest))
    chosen = ties[np.searchsorted(ties, begins)]  # the first of each row's
    right: Floats = statistics.right[chosen].astype(np.float64)
    return right
