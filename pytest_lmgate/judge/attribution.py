"""Where a candidate got worse, by rows, tokens and tags, and how the change is spread, in values of bounded size.

`Attribution` maps what the session has measured to rows and text; no model runs. Against another model everything is
known target by target. A committed baseline keeps sums of rows or blocks, so only these can be named. What cannot be
said is a note, never an error: the verdict does not depend on the tokenizer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from msgspec import structs

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.errors import ComparisonError, LmgateError, MetricInputError, escape_controls
from pytest_lmgate.metrics.likelihoods import TargetLayout
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Comparison
from pytest_lmgate.stats.means import merged_rows, window_blocks
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.sample import ByRow, Sample

if TYPE_CHECKING:
    from pytest_lmgate.measure.binding import Bound, BoundGate
    from pytest_lmgate.measure.evaluator import Evaluator
    from pytest_lmgate.measure.targets import PlacesCache, Targets
    from pytest_lmgate.windows.requests import TargetPlaces
    from pytest_lmgate.windows.tokens import TokenSpans


_DOCUMENTS, _TOKENS = 5, 5
"""How many documents are named, and how many tokens of each."""
_BEGINS, _BESIDE, _TOKEN = 120, 60, 40
"""Characters of a document's beginning, on each side of a token and of a token."""
_JUDGED, _SHOWN, _LENGTH = 50, 20, 100
"""Tags that are compared, tags that are shown, and characters of a tag."""


@dataclass(frozen=True)
class TokenChange:
    """A token whose loss rose, in its context.

    Attributes:
        before: Text before it, cut; `after` is the text after it.
        token: Its own text.
        loss: The candidate's, nats.
        reference: The reference's, nats.
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
        count: How many units it has; see `Attribution.per`.
        rise: Rise of the sum of its losses, nats.
        begins: Beginning of its text, cut; empty if the text is unknown.
        tokens: The tokens whose loss rose most, worst first; empty if only sums are known.
    """

    place: str
    count: int
    rise: float
    begins: str = ""
    tokens: tuple[TokenChange, ...] = ()


@dataclass(frozen=True)
class TagChange:
    """The change of the rows with one tag; names and signs as in `Comparison`.

    Attributes:
        column: Column of the tag.
        value: The tag.
        rows: Number of its rows.
        problem: Why there is no change to show, if so.
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
class Attribution:
    """Where it got worse.

    Attributes:
        passages: Documents, or parts of one running text, by how much their loss rose, the worst first.
        per: What the losses of passages are counted per: ``token``, ``byte``, ...
        tags: The change of each tag, the worst first.
        more_tags: How many further tags there are.
        notes: What cannot be said, and why.
    """

    passages: tuple[Passage, ...] = ()
    per: str = "token"
    tags: tuple[TagChange, ...] = ()
    more_tags: int = 0
    notes: tuple[str, ...] = ()


def attribute(
    evaluator: Evaluator,
    gate: BoundGate,
    samples: tuple[Sample, Sample],
    found: Comparison,
    cache: PlacesCache,
) -> Attribution | None:
    """Return where the candidate got worse; None if there is nothing to say.

    The evaluator has evaluated the gate's model, and its reference unless that is the committed baseline. The `cache`
    keeps what was found of the last gate's text.
    """
    candidate, reference = samples[0], with_rows(samples[1], samples[0])
    passages = _attempted(partial(_of_likelihoods, evaluator, gate, (candidate, reference), cache))
    tags = _attempted(partial(_of_tags, evaluator, gate.bound, candidate, reference, found))
    where = replace(passages, tags=tags.tags, more_tags=tags.more_tags, notes=passages.notes + tags.notes)
    return where if where.passages or where.tags or where.notes else None


def _attempted(part: Callable[[], Attribution]) -> Attribution:
    try:
        return part()
    except LmgateError as error:
        return Attribution(notes=(str(error),))
    except Exception as error:  # by an engine of the user's, whose tokenizer is asked after the verdict
        return Attribution(
            notes=(escape_controls(f"it is unknown where the model got worse: {type(error).__name__}: {error}"),)
        )


def _of_tags(
    evaluator: Evaluator, bound: Bound, candidate: Sample, reference: Sample, found: Comparison
) -> Attribution:
    from pytest_lmgate.measure.targets import tags_of

    tags = tags_of(evaluator, bound)
    if not tags:
        return Attribution()
    if candidate.by_row is None:
        return Attribution(notes=('tags: expected rows that are read one by one: use protocol="document"',))
    if reference.by_row is None:
        return Attribution(notes=("tags: the baseline keeps sums of several rows; compare with a model to see them",))
    changes, more = tag_changes(candidate, reference, tags, tolerance=found.tolerance, confidence=found.confidence)
    return Attribution(tags=changes, more_tags=more)


def tag_changes(
    candidate: Sample, reference: Sample, tags: Mapping[str, Sequence[str]], *, tolerance: Tolerance, confidence: float
) -> tuple[tuple[TagChange, ...], int]:
    """Return the change of each tag that not all rows have, worst first, and the number of tags left out.

    The 50 tags with most rows are compared, at a confidence at which all bounds on one side hold together; the 20 worst
    are returned.

    Both samples have their rows, and `tags` the tag of each of them by column.
    """
    assert candidate.by_row is not None
    rows = len(candidate.by_row.counts)
    every = Counter((column, tag) for column, values in tags.items() for tag in values[:rows])
    counted = Counter({each: count for each, count in every.items() if count < rows})
    chosen = [each for each, _ in counted.most_common(_JUDGED)]
    level = 1 - (1 - confidence) / max(1, len(chosen))
    found = []
    for column, tag in chosen:
        kept = np.array([value == tag for value in tags[column][:rows]])
        change = TagChange(column[:_LENGTH], tag[:_LENGTH], int(kept.sum()))
        here, there = candidate.of_rows(kept), reference.of_rows(kept)
        try:
            if here is None or there is None:
                raise MetricInputError("no target of these rows was scored")
            each = compare(here, there, tolerance=tolerance, confidence=level)
            names = ("candidate", "reference", "degradation", "lower", "upper")
            change = replace(change, **{name: getattr(each, name) for name in names})
        except (ComparisonError, MetricInputError) as error:
            change = replace(change, problem=str(error)[: 3 * _LENGTH])
        found.append(change)
    found.sort(key=lambda each: (not each.is_worse, np.inf if each.degradation is None else -each.degradation))
    return tuple(found[:_SHOWN]), len(counted) - len(found[:_SHOWN])


def with_rows(reference: Sample, candidate: Sample) -> Sample:
    """Add a baseline's rows to its sample if it keeps them one by one."""
    rows = candidate.by_row
    if rows is None:
        return reference
    if reference.outcomes is not None:
        right = reference.outcomes.right.astype(np.float64)
        return replace(reference, by_row=ByRow(right[:, None], rows.counts, rows.clusters))
    if candidate.weights is not None or len(np.unique(rows.clusters)) < len(rows.clusters):
        return reference
    for scored in (np.ones(len(rows.counts), dtype=bool), rows.counts > 0):
        if np.array_equal(reference.counts, rows.counts[scored]):
            sums = np.zeros((len(rows.counts), reference.sums.shape[1]))
            sums[scored] = reference.sums
            return replace(reference, by_row=ByRow(sums, rows.counts, rows.clusters))
    return reference


def _of_likelihoods(
    evaluator: Evaluator,
    gate: BoundGate,
    samples: tuple[Sample, Sample],
    cache: PlacesCache,
) -> Attribution:
    from pytest_lmgate.measure.targets import UNPLACED, targets_of

    here, against = targets_of(evaluator, gate.bound, cache), gate.reference
    if here is None:
        return Attribution()
    there = None if against is None else targets_of(evaluator, against, cache)
    if there is None or there.layout.targets != here.layout.targets:
        kept = "the baseline keeps no tokens" if against is None else "the two models tokenize the text differently"
        where = _by_sums(here, *samples, unit=getattr(gate.bound.what.how, "unit", "token"))
        return replace(where, notes=(f"{kept}: only sums of {samples[0].clustered_by} are compared",))
    places = here.places or there.places
    text = None if places is None else _Text(here, places)
    rises, layout = here.loss - there.loss, here.layout
    rows = layout.rows_of()
    windows = np.repeat(np.arange(len(layout.window_targets)), layout.window_targets)
    groups = windows if rows is None else rows
    passages = []
    for group, rise in worst_groups(rises, groups):
        targets = np.flatnonzero(groups == group)
        row = None if rows is None else here.rows[group]
        if text is not None:
            passages.append(text.passage(targets, rise, here.loss, rises, row))
        else:
            begins = "" if row is None else here.texts[row][:_BEGINS]
            passages.append(Passage(f"window {group}" if row is None else f"row {row}", len(targets), rise, begins))
    return Attribution(passages=tuple(passages), notes=(UNPLACED,) if places is None else ())


def _by_sums(here: Targets, candidate: Sample, reference: Sample, *, unit: str) -> Attribution:
    """Name rows or blocks of the text by their sums; all losses are summed in nats."""
    layout, total = here.layout, int(candidate.counts.sum())
    by_window = total == len(layout.window_targets) != len(here.loss)
    counted = unit.replace("bits_per_byte", "byte") if candidate.of_text else "token"
    per = "window" if by_window else counted
    named: Sequence[Ints] | None
    if candidate.by_row is not None and reference.by_row is not None:
        rises, counts = (candidate.by_row.sums - reference.by_row.sums)[:, 0], candidate.by_row.counts
        named = list(np.arange(len(counts))[:, None])
    else:
        rises, counts = (candidate.sums - reference.sums)[:, 0], candidate.counts
        named = _rows_of_clusters(layout, candidate)
    weights = np.ones_like(layout.window_targets) if by_window else layout.window_targets
    blocks, passages = np.repeat(window_blocks(weights), layout.window_targets), []
    for group, rise in worst_groups(rises):
        if named is not None:
            rows = [here.rows[row] for row in named[group]]
            place = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"
            begins = here.texts[rows[0]][:_BEGINS]
        elif (places := here.places) is not None:
            place, begins = _Text(here, places).place(np.flatnonzero(blocks == group), None)
        else:
            place, begins = f"block {group} of {len(counts)}", ""
        passages.append(Passage(place, int(counts[group]), rise, begins))
    return Attribution(per=per, passages=tuple(passages))


def _rows_of_clusters(layout: TargetLayout, candidate: Sample) -> list[Ints] | None:
    """Return the rows of each cluster of a sample; None if its clusters are blocks of the text.

    Neighbours are merged by the sample's counts, so clusters of windows or bytes have other rows than those of tokens.
    """
    counts = layout.row_targets if candidate.by_row is None else candidate.by_row.counts
    if counts is None or not layout.has_rows:
        return None
    sizes = counts if candidate.by_row is None or candidate.by_row.sizes is None else candidate.by_row.sizes
    rows = np.flatnonzero(sizes)
    clusters = merged_rows(sizes[rows])
    merged = np.bincount(clusters, weights=counts[rows])
    if len(merged) != len(candidate.counts) or not np.allclose(merged, candidate.counts):
        return None
    return [rows[clusters == cluster] for cluster in range(len(candidate.counts))]


@dataclass
class _Text:
    """The text of targets."""

    targets: Targets
    places: TargetPlaces

    def spelling(self, target: int) -> TokenSpans:
        return self.places.spelling(int(self.places.text[target]))

    def place(self, targets: Ints, row: int | None) -> tuple[str, str]:
        """Return the place of consecutive targets in words, and the beginning of their text."""
        if row is not None:
            return f"row {row}", self.targets.texts[row][:_BEGINS]
        token, spelling = self.places.token, self.spelling(int(targets[0]))
        begin = int(spelling.begins[token[targets[0]]])
        return f"tokens {token[targets[0]]:,} to {token[targets[-1]]:,}", spelling.text[begin : begin + _BEGINS]

    def passage(self, targets: Ints, rise: float, loss: Floats, rises: Floats, row: int | None) -> Passage:
        place, begins = self.place(targets, row)
        worst = worst_targets(rises, targets)
        return Passage(
            place=place,
            count=len(targets),
            rise=rise,
            begins=begins,
            tokens=tuple(self._token(target, float(loss[target]), float(rises[target])) for target in worst),
        )

    def _token(self, target: int, loss: float, rise: float) -> TokenChange:
        spelling, token = self.spelling(target), int(self.places.token[target])
        begin, end = int(spelling.begins[token]), int(spelling.ends[token])
        # Some tokenizers count a blank to the token before it, others to the one behind it.
        if word := spelling.text[begin:end].strip():
            begin += spelling.text[begin:end].index(word)
            end = begin + len(word)
        own = spelling.text[begin:end]
        if not own:  # a special token
            own = self.places.tokenizer.decode(int(self.places.ids[self.places.text[target]][token]))
        return TokenChange(
            before=spelling.text[max(0, begin - _BESIDE) : begin],
            token=own[:_TOKEN],
            after=spelling.text[end : end + _BESIDE],
            loss=loss,
            reference=loss - rise,
        )


def worst_groups(rises: Floats, groups: Ints | None = None) -> list[tuple[int, float]]:
    """Return the groups whose sum rose most, with that sum, worst first.

    Rises are those of targets, shape ``[targets]``, as are `groups`; without `groups`, they are those of the groups.
    """
    sums = rises if groups is None else np.bincount(groups, weights=rises)
    order = np.argsort(-sums, kind="stable")[:_DOCUMENTS]
    return [(int(group), float(sums[group])) for group in order if sums[group] > 0]


def worst_targets(rises: Floats, targets: Ints) -> list[int]:
    """Return the targets whose loss rose most, worst first."""
    order = targets[np.argsort(-rises[targets], kind="stable")][:_TOKENS]
    return [int(target) for target in order if rises[target] > 0]


# `ChangeHistogram`: how a change, or a distance from a reference, is spread over rows or blocks. A mean may hide
# whether every row got a little worse or a few got much worse.


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
        return structs.replace(_histogram(np.maximum(changes, 0.0), of, _DISTANCES[metric]), what="distance")
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
    return structs.replace(blank, begin=first * width, width=width, bins=counted)
