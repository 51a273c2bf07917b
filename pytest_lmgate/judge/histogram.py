"""`ChangeHistogram`: how a change, or a distance from a reference, is distributed over rows or blocks. Pure.

A mean may hide whether every row got a little worse or a few got much worse. The histogram shows which.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.stats.sample import Sample

BINS = 30
"""How many bins a histogram has at most."""
_MOST_TEXTS = 10_000
"""Rows that a metric such as BLEU is computed of one by one."""
# Beyond six digits two values differ by the order of adding, if at all.
_SAME = 1e-6
_TAIL = 0.01
# What the distance of a row is counted in, by the metric that is one.
_DISTANCES = {"kl": "nats per token", "top1": "share of tokens with a different top prediction"}


class ChangeHistogram(msgspec.Struct, frozen=True):
    """The changes or distances of the rows; larger is worse.

    Attributes:
        of: What has a change; clusters are merged neighbouring rows.
        unit: Unit of the changes, such as nats per token or bleu.
        worse: Number that got worse.
        same: Number without change.
        better: Number that got better; 0 for distances.
        median: The median change.
        lowest: The smallest change.
        highest: The largest change.
        p90: 90% of the changes are at most this.
        p99: 99% of the changes are at most this.
        begin: Start of the first bin; 0 is an edge between two bins.
        width: Width of a bin; 0 if nothing changed.
        bins: Number of changes in each bin, without rows that did not change; the first and last bin include everything
            beyond.
        what: A change of a comparison, or a distance from the reference of kl_max and top1_min.
    """

    of: Literal["rows", "clusters", "blocks"]
    unit: str
    worse: int
    same: int
    better: int
    median: float
    lowest: float
    highest: float
    p90: float
    p99: float
    begin: float = 0.0
    width: float = 0.0
    bins: tuple[int, ...] = ()
    what: Literal["change", "distance"] = "change"


def change_histogram(candidate: Sample, reference: Sample | None, *, metric: str, unit: str) -> ChangeHistogram | None:
    """Return the distribution of the change; None if the samples have no rows or blocks in common.

    The change of a row is that of the metric on the row alone; for a perplexity, that of the row's mean loss in nats.

    Without a `reference`, the score is itself a distance from one, such as a divergence.
    """
    sides = (candidate,) if reference is None else (candidate, reference)
    if all(side.by_row is not None for side in sides):
        of: Literal["rows", "clusters", "blocks"] = "rows"
        parts = [(side.by_row.sums, side.by_row.counts) for side in sides if side.by_row is not None]
    else:
        of = "clusters" if candidate.rows else "blocks"
        parts = [(side.sums, side.counts) for side in sides]
    counts = parts[0][1]
    if not all(np.array_equal(counts, others) for _, others in parts):
        return None
    scored = counts > 0
    if candidate.scale is None and int(scored.sum()) > _MOST_TEXTS:
        return None
    now, *others = (row_values(candidate, sums[scored], counts[scored], by_row=of == "rows") for sums, _ in parts)
    if others:
        then = others[0]
    else:  # the value of a model compared with itself
        assert candidate.scale is not None
        then = np.full_like(now, candidate.scale.lowest if candidate.direction == "lower" else candidate.scale.highest)
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


def row_values(sample: Sample, sums: Floats, counts: Ints | Floats, *, by_row: bool = True) -> Floats:
    """Return the value of each row or cluster alone; the mean loss if the metric is its exponential."""
    if sample.scale is not None:
        found: Floats = sample.scale.factor * sums[:, 0] / counts
        return found
    assert sample.metric is not None
    # Sums of several rows have no value of one row.
    value = (by_row and sample.metric.row_value) or sample.metric.value
    return np.array([value(each) for each in sums], dtype=np.float64)


def _histogram(changes: Floats, of: Literal["rows", "clusters", "blocks"], unit: str) -> ChangeHistogram:
    worse, better = int((changes > 0).sum()), int((changes < 0).sum())
    blank = ChangeHistogram(
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
