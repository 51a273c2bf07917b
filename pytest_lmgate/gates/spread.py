"""`Spread`: how a change, or a distance from a reference, is spread over rows or blocks. Pure, and of bounded size.

A mean may hide whether every row got a little worse or a few got much worse. The histogram shows which.
"""

from __future__ import annotations

__all__ = ["BINS", "Spread", "spread_of"]

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats
from pytest_lmgate.metrics.sample import Sample
from pytest_lmgate.metrics.texts.row_statistics import row_scores

BINS = 30
"""How many bins a histogram has at most."""
_MOST_TEXTS = 10_000
"""Rows that a metric such as BLEU is computed of one by one."""
# Beyond six digits two values differ by the order of adding, if at all.
_SAME = 1e-6
_TAIL = 0.01
# What the distance of a row is counted in, by the metric that is one.
_DISTANCES = {"kl": "nats per token", "top1": "share of tokens with a different top prediction"}


@dataclass(frozen=True)
class Spread:
    """The changes or the distances of the rows, turned so that larger is worse.

    Attributes:
        of: What a change is of: ``rows``, ``blocks``, or ``clusters`` where neighbouring rows were added up.
        unit: What changes are counted in, as in ``nats per token`` or ``bleu``.
        worse: How many of them are worse; `same` and `better` are the others. No distance is better.
        median: The change in the middle.
        lowest: The smallest change, `highest` the largest.
        begin: Where the first bin begins.
        width: Of a bin; 0 changes stands between two bins. 0 where nothing changed.
        bins: How many changes are in each bin, those of `same` left out. The first and the last bin are open: they hold
            what lies beyond them too.
        what: ``change`` of a comparison, or ``distance`` from the reference of a divergence.
        p90: 90 % of the changes are at most this, and 99 % at most `p99`; None in reports of earlier versions.
    """

    of: str
    unit: str
    worse: int
    same: int
    better: int
    median: float
    lowest: float
    highest: float
    begin: float = 0.0
    width: float = 0.0
    bins: tuple[int, ...] = ()
    what: Literal["change", "distance"] = "change"
    p90: float | None = None
    p99: float | None = None


def spread_of(candidate: Sample, reference: Sample | None, *, metric: str, unit: str) -> Spread | None:
    """Return how the change is spread; None where the two samples have no rows or blocks in common.

    The change of a row is that of the metric on the row alone; of a perplexity, that of the row's mean loss in nats.

    Args:
        candidate: Sample of the candidate's score; `reference` is that of the reference, on the same targets or rows.
        reference: See `candidate`. None where the score is itself a distance from a reference, such as a divergence.
        metric: The metric's name.
        unit: What the metric counts, such as ``token``.
    """
    sides = (candidate,) if reference is None else (candidate, reference)
    if all(side.by_row is not None for side in sides):
        of, parts = "rows", [(side.by_row.sums, side.by_row.counts) for side in sides if side.by_row is not None]
    else:
        of = "clusters" if candidate.rows else "blocks"
        parts = [(side.sums, side.counts) for side in sides]
    counts = parts[0][1]
    if not all(np.array_equal(counts, others) for _, others in parts):
        return None
    scored = counts > 0
    if candidate.scale is None and int(scored.sum()) > _MOST_TEXTS:
        return None
    now, *others = (_values(candidate, sums[scored], counts[scored], by_row=of == "rows") for sums, _ in parts)
    then = others[0] if others else np.full_like(now, _best(candidate))
    known = np.isfinite(now) & np.isfinite(then)
    if not known.any():
        return None
    now, then = now[known], then[known]
    turned = now - then if candidate.direction == "lower" else then - now
    changes: Floats = np.where(np.isclose(now, then, rtol=_SAME, atol=0), 0.0, turned)
    if reference is None:  # rounding may leave less than nothing
        return replace(_histogram(np.maximum(changes, 0.0), of, _DISTANCES[metric]), what="distance")
    is_loss = candidate.scale is not None and candidate.scale.exponential
    return _histogram(changes, of, f"nats per {unit}" if is_loss else metric)


def _best(sample: Sample) -> float:
    """Return the value of a model that is its own reference."""
    assert sample.scale is not None
    return sample.scale.lowest if sample.direction == "lower" else sample.scale.highest


def _values(sample: Sample, sums: Floats, counts: NDArray[np.int64], *, by_row: bool) -> Floats:
    """Return the value of each row or cluster alone; the mean loss where the metric is its exponential."""
    if sample.scale is not None:
        found: Floats = sample.scale.factor * sums[:, 0] / counts
        return found
    assert sample.metric is not None
    # A number of one row is asked of no sums of several.
    return row_scores(sample.metric if by_row else replace(sample.metric, row_value=None), sums)


def _histogram(changes: Floats, of: str, unit: str) -> Spread:
    worse, better = int((changes > 0).sum()), int((changes < 0).sum())
    blank = Spread(
        of=of,
        unit=unit,
        worse=worse,
        same=len(changes) - worse - better,
        better=better,
        median=float(np.median(changes)),
        lowest=float(changes.min()),
        highest=float(changes.max()),
        p90=float(np.quantile(changes, 0.90)),
        p99=float(np.quantile(changes, 0.99)),
    )
    changed = changes[changes != 0]
    if not len(changed):
        return blank
    # A few changes far out would leave all others in one bin.
    low = min(0.0, float(np.quantile(changed, _TAIL, method="lower")))
    high = max(0.0, float(np.quantile(changed, 1 - _TAIL, method="higher")))
    # Zero is the edge of a bin, so that either side of it may need one more.
    width = (high - low) / min(BINS - 2, max(4, round(1.5 * math.sqrt(len(changed)))))
    first, last = min(math.floor(low / width), -1 if better else 0), max(math.ceil(high / width), 1 if worse else 0)
    bins = np.clip(np.floor(changed / width), first, last - 1).astype(np.int64) - first
    counted = tuple(np.bincount(bins, minlength=last - first).tolist())
    return replace(blank, begin=first * width, width=width, bins=counted)
