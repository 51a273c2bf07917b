"""`Where`: where a candidate is worse than its reference, in plain values of bounded size. Pure: numbers per target in.

Three views of the same difference of losses: the documents that cost most with their tokens, the mean change by
position in the window, and the change of each tag. All bounds of one view hold together, by Bonferroni's correction, so
that what stands out of its noise can be named.
"""

from __future__ import annotations

__all__ = [
    "DOCUMENTS",
    "TOKENS",
    "Passage",
    "PositionChange",
    "Slope",
    "TagChange",
    "TokenChange",
    "Where",
    "by_position",
    "slope_of",
    "worst_groups",
    "worst_targets",
]

import math
from dataclasses import dataclass

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.metrics.noise.clusters import MIN_BLOCKS
from pytest_lmgate.metrics.noise.means import COSINES, cosine_variance, noisy_mean
from pytest_lmgate.metrics.noise.student import t_quantile

DOCUMENTS, TOKENS = 5, 5
"""How many documents are named, and how many tokens of each."""
_BINS = 8


@dataclass(frozen=True)
class TokenChange:
    """A token whose loss rose, in its context.

    Attributes:
        before: Text before it, cut; `after` is the text behind it.
        token: Its own text.
        loss: Of the candidate, nats.
        reference: Of the reference, nats.
    """

    before: str
    token: str
    after: str
    loss: float
    reference: float


@dataclass(frozen=True)
class Passage:
    """A document, or another part of the text, whose loss rose.

    Attributes:
        place: As in ``row 17`` or ``tokens 512 to 767``.
        count: How many units it has; see `Where.per`.
        rise: By how much the sum of its losses rose, nats.
        begins: How its text begins, cut; empty where the text is not known.
        tokens: The tokens whose loss rose most, the worst first; empty where only sums are known.
        spelled: The text around the worst of them, with the rise of each part in nats; None for a part that was not
            scored, and at the ends for the rest of a word with the dots of a cut.
    """

    place: str
    count: int
    rise: float
    begins: str = ""
    tokens: tuple[TokenChange, ...] = ()
    spelled: tuple[tuple[str, float | None], ...] = ()


@dataclass(frozen=True)
class PositionChange:
    """Mean change of the loss at some positions, nats; bounds are None with too few clusters."""

    first: int
    last: int
    targets: int
    change: float
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class Slope:
    """How much more the loss rose at the last position than at the first, by a straight line; nats."""

    change: float
    lower: float
    upper: float


@dataclass(frozen=True)
class TagChange:
    """The change of the rows with one tag; names and signs as in `Comparison`.

    Attributes:
        column: Column of the tag.
        value: The tag.
        rows: How many rows have it.
        problem: Why there is no change to show; empty where there is one.
    """

    column: str
    value: str
    rows: int
    candidate: float | None = None
    reference: float | None = None
    degradation: float | None = None
    lower: float | None = None
    upper: float | None = None
    problem: str = ""

    @property
    def is_worse(self) -> bool:
        """Whether it got worse beyond noise."""
        return self.lower is not None and self.lower > 0


@dataclass(frozen=True)
class Where:
    """Where it got worse.

    Attributes:
        passages: Documents, or parts of one running text, by how much their loss rose, the worst first.
        per: What the losses of passages are counted per: ``token``, ``byte``, ...
        positions: The change by position in the window, from the first.
        slope: Of the change over these positions; None where it cannot be told.
        tags: The change of each tag, the worst first.
        more_tags: How many further tags there are.
        notes: What cannot be said, and why.
    """

    passages: tuple[Passage, ...] = ()
    per: str = "token"
    positions: tuple[PositionChange, ...] = ()
    slope: Slope | None = None
    tags: tuple[TagChange, ...] = ()
    more_tags: int = 0
    notes: tuple[str, ...] = ()


def worst_groups(rises: Floats, groups: Ints | None = None) -> list[tuple[int, float]]:
    """Return the groups whose sum rose most, with that sum, the worst first; sums that did not rise are left out.

    Args:
        rises: Of each target, or of each group where there are no `groups`.
        groups: Group of each target, shape ``[targets]``.
    """
    sums = rises if groups is None else np.bincount(groups, weights=rises)
    order = np.argsort(-sums, kind="stable")[:DOCUMENTS]
    return [(int(group), float(sums[group])) for group in order if sums[group] > 0]


def worst_targets(rises: Floats, targets: Ints) -> list[int]:
    """Return the targets whose loss rose most, the worst first; losses that did not rise are left out."""
    order = targets[np.argsort(-rises[targets], kind="stable")][:TOKENS]
    return [int(target) for target in order if rises[target] > 0]


def by_position(
    rises: Floats, positions: Ints, clusters: Ints, *, confidence: float, rows: bool = True
) -> tuple[PositionChange, ...]:
    """Return the mean change in up to 8 ranges of positions, of about as many targets each.

    Args:
        rises: Of each target, shape ``[targets]``.
        positions: Position of each target in what the model reads at once.
        clusters: Cluster of each target, between which noise is judged.
        confidence: Level at which all bounds on one side hold together.
        rows: Whether clusters are rows; else they are blocks of a text, in its order.
    """
    ordered = np.sort(positions)
    edges = np.unique(ordered[[len(ordered) * part // _BINS for part in range(_BINS)]])
    bins = np.searchsorted(edges, positions, side="right") - 1
    level = 1 - (1 - confidence) / len(edges)
    return tuple(
        _at(rises[bins == each], positions[bins == each], clusters[bins == each], level, rows=rows)
        for each in np.unique(bins)
    )


def _at(rises: Floats, positions: Ints, clusters: Ints, level: float, *, rows: bool) -> PositionChange:
    noise = noisy_mean(np.bincount(clusters, weights=rises).astype(np.float64), np.bincount(clusters), rows=rows)
    bounds = noise.bounds(level)
    lower, upper = (None, None) if bounds is None else (bounds.lower, bounds.upper)
    return PositionChange(int(positions.min()), int(positions.max()), len(rises), noise.mean, lower, upper)


def slope_of(rises: Floats, positions: Ints, clusters: Ints, *, confidence: float, rows: bool = True) -> Slope | None:
    """Return the least-squares slope of the change over positions, by the jackknife over clusters.

    Each cluster is left out once: ``se^2 = (C - 1) / C sum_c (b_(c) - b)^2``, with Student's t of C - 1 degrees of
    freedom (Efron and Tibshirani 1993, An Introduction to the Bootstrap, eq. 11.5). A cluster that alone has the early
    positions, as the first window of a sliding one, makes the noise large rather than small. Blocks of a text without
    rows depend on their neighbours, so their ``b_(c) - b`` are added up as `cosine_variance` does. Both bounds hold
    together at `confidence`. None where it cannot be told: fewer than three rows or 8 blocks, or positions that do not
    vary without one of them.
    """
    reach = int(positions.max()) - int(positions.min())
    used = np.unique(clusters, return_inverse=True)[1].reshape(-1)
    count = int(used.max()) + 1
    if count < (3 if rows else MIN_BLOCKS) or reach == 0:
        return None
    x = (positions - positions.min()) / reach
    sums = np.stack([np.bincount(used, weights=each) for each in (np.ones_like(x), x, rises, x * x, x * rises)])
    slopes = _slopes(np.concatenate([sums.sum(axis=1, keepdims=True), sums.sum(axis=1, keepdims=True) - sums], axis=1))
    if not np.isfinite(slopes).all():
        return None
    slope, without = float(slopes[0]), slopes[1:]
    left = without - slope
    variance = float((left**2).sum()) if rows else cosine_variance(left, sums[0])
    stderr = math.sqrt((count - 1) / count * variance)
    reached = t_quantile(1 - (1 - confidence) / 2, count - 1 if rows else COSINES) * stderr
    return Slope(slope, slope - reached, slope + reached)


def _slopes(sums: Floats) -> Floats:
    """Return slopes from n, sum x, sum y, sum x^2 and sum xy, shape ``[5, slopes]``; NaN where x does not vary."""
    n, x, y, xx, xy = sums
    spread = xx - x * x / np.maximum(n, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes: Floats = np.where(
            spread > 1e-9 * np.maximum(xx, 1e-300), (xy - x * y / np.maximum(n, 1)) / spread, np.nan
        )
    return slopes
