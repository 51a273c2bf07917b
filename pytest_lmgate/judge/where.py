"""Where a candidate got worse: what the session has measured already, put beside rows and text. No model runs.

Against another model everything is known target by target. A committed baseline keeps sums of rows or blocks, so only
these can be named. What cannot be said is a note, never an error: the verdict stands whatever the tokenizer does.
"""

from __future__ import annotations

__all__ = ["locate"]

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.data.requests.places import Spelling, TargetPlaces
from pytest_lmgate.errors import LmgateError, harmless
from pytest_lmgate.evaluate.evaluator import Evaluator
from pytest_lmgate.evaluate.targets import Shelf, Targets, tags_of, targets_of
from pytest_lmgate.gates.comparisons.comparison import Comparison
from pytest_lmgate.gates.tagged import tag_changes, with_rows
from pytest_lmgate.gates.where import (
    Passage,
    TokenChange,
    Where,
    by_position,
    slope_of,
    worst_groups,
    worst_targets,
)
from pytest_lmgate.metrics.noise.clusters import merged_rows, window_blocks
from pytest_lmgate.metrics.sample import Sample
from pytest_lmgate.metrics.targets import TargetLayout
from pytest_lmgate.spec.gates import EvaluationSpec

_BEGINS, _BESIDE, _TOKEN, _NEAR = 120, 60, 40, 24
"""Characters of a document's beginning, on each side of a token and of a token; tokens on each side of the worst."""


def locate(
    evaluator: Evaluator,
    what: EvaluationSpec,
    against: EvaluationSpec | None,
    samples: tuple[Sample, Sample],
    found: Comparison,
    shelf: Shelf,
) -> Where | None:
    """Return where the candidate got worse; None where there is nothing to say.

    Args:
        evaluator: Has evaluated both sides.
        what: The candidate's evaluation; `against` is the reference's, None for the committed baseline.
        against: See there.
        samples: Of both sides.
        found: How they compare.
        shelf: Keeps what was found of the last gate's text.
    """
    candidate, reference = samples[0], with_rows(samples[1], samples[0])
    where, notes = Where(), list[str]()
    parts: tuple[Callable[[], Where], ...] = (
        partial(_of_likelihoods, evaluator, what, against, (candidate, reference), found.confidence, shelf),
        partial(_of_tags, evaluator, what, candidate, reference, found),
    )
    for part in parts:
        try:
            some = part()
        except LmgateError as error:
            notes.append(str(error))
            continue
        except Exception as error:  # by an engine of the user's, whose tokenizer is asked after the verdict
            notes.append(harmless(f"where the model got worse is not known: {type(error).__name__}: {error}"))
            continue
        told = {name: value for name, value in vars(some).items() if value and name not in ("notes", "per")}
        where = replace(where, **told, per=some.per if some.passages else where.per)
        notes += some.notes
    where = replace(where, notes=tuple(notes))
    return None if where == Where() else where


def _of_tags(
    evaluator: Evaluator, what: EvaluationSpec, candidate: Sample, reference: Sample, found: Comparison
) -> Where:
    tags = tags_of(evaluator, what)
    if not tags:
        return Where()
    if candidate.by_row is None:
        return Where(notes=('tags: expected rows that are measured one by one: use protocol="document"',))
    if reference.by_row is None:
        return Where(notes=("tags: the baseline keeps sums of several rows; compare with a model to see them",))
    changes, more = tag_changes(candidate, reference, tags, tolerance=found.tolerance, confidence=found.confidence)
    return Where(tags=changes, more_tags=more)


def _of_likelihoods(
    evaluator: Evaluator,
    what: EvaluationSpec,
    against: EvaluationSpec | None,
    samples: tuple[Sample, Sample],
    confidence: float,
    shelf: Shelf,
) -> Where:
    here = targets_of(evaluator, what, shelf)
    if here is None:
        return Where()
    there = None if against is None else targets_of(evaluator, against, shelf)
    if there is None or there.layout.targets != here.layout.targets:
        kept = (
            "the baseline keeps no tokens" if against is None else "the two models cut the text into different tokens"
        )
        where = _by_sums(here, *samples, unit=getattr(what.how, "unit", "token"))
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
    if places is None:
        return Where(passages=tuple(passages), notes=(here.unplaced,))
    clusters = layout.clusters_of()
    return Where(
        passages=tuple(passages),
        positions=by_position(rises, places.position, clusters, confidence=confidence, rows=layout.has_rows),
        slope=slope_of(rises, places.position, clusters, confidence=confidence, rows=layout.has_rows),
    )


def _by_sums(here: Targets, candidate: Sample, reference: Sample, *, unit: str) -> Where:
    """Name rows, or else blocks of the text, by their sums; the losses of all likelihoods are added up in nats."""
    layout, total = here.layout, int(candidate.counts.sum())
    by_window = total == len(layout.window_targets) != len(here.loss)
    counted = "token" if total == len(here.loss) else unit.replace("bits_per_byte", "byte")
    per = "window" if by_window else counted
    if candidate.by_row is not None and reference.by_row is not None:
        rises, counts = (candidate.by_row.sums - reference.by_row.sums)[:, 0], candidate.by_row.counts
        return Where(
            per=per,
            passages=tuple(
                Passage(f"row {here.rows[row]}", int(counts[row]), rise, here.texts[here.rows[row]][:_BEGINS])
                for row, rise in worst_groups(rises)
            ),
        )
    rises, counts = (candidate.sums - reference.sums)[:, 0], candidate.counts
    if (named := _rows_of_clusters(layout, candidate)) is not None:
        worst = [(group, rise, [here.rows[row] for row in named[group]]) for group, rise in worst_groups(rises)]
        return Where(
            per=per,
            passages=tuple(
                Passage(_rows(some), int(counts[group]), rise, here.texts[some[0]][:_BEGINS])
                for group, rise, some in worst
            ),
        )
    weights = np.ones_like(layout.window_targets) if by_window else layout.window_targets
    blocks, places = np.repeat(window_blocks(weights), layout.window_targets), here.places
    passages = []
    for block, rise in worst_groups(rises):
        targets, place, begins = np.flatnonzero(blocks == block), f"block {block} of {len(counts)}", ""
        if places is not None:
            place, begins = _Text(here, places).place(targets, None)
        passages.append(Passage(place, int(counts[block]), rise, begins))
    return Where(per=per, passages=tuple(passages))


def _rows_of_clusters(layout: TargetLayout, candidate: Sample) -> list[Ints] | None:
    """Return the rows that each cluster of a sample adds up; None where its clusters are blocks of the text.

    Neighbours are merged by what the sample counts: by windows or bytes they are other rows than by tokens.
    """
    sizes = layout.row_targets if candidate.by_row is None else candidate.by_row.counts
    if sizes is None or not layout.has_rows:
        return None
    rows = np.flatnonzero(sizes)
    clusters = merged_rows(sizes[rows])
    if not np.array_equal(np.bincount(clusters, weights=sizes[rows]), candidate.counts):
        return None
    return [rows[clusters == cluster] for cluster in range(len(candidate.counts))]


def _rows(rows: Sequence[int]) -> str:
    return f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"


@dataclass
class _Text:
    """The text of targets."""

    targets: Targets
    places: TargetPlaces

    def spelling(self, target: int) -> Spelling:
        return self.places.spelling(int(self.places.text[target]))

    def place(self, targets: Ints, row: int | None) -> tuple[str, str]:
        """Return where consecutive targets are, in words, and how their text begins."""
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
            spelled=self._around(targets, worst[0], rises),
        )

    def _token(self, target: int, loss: float, rise: float) -> TokenChange:
        spelling, token = self.spelling(target), int(self.places.token[target])
        begin, end = int(spelling.begins[token]), int(spelling.ends[token])
        # Some tokenizers count a blank to the token before it, others to the one behind it.
        if word := spelling.text[begin:end].strip():
            begin += spelling.text[begin:end].index(word)
            end = begin + len(word)
        return TokenChange(
            before=spelling.text[max(0, begin - _BESIDE) : begin],
            token=self._own(target, spelling, begin, end),
            after=spelling.text[end : end + _BESIDE],
            loss=loss,
            reference=loss - rise,
        )

    def _around(self, targets: Ints, worst: int, rises: Floats) -> tuple[tuple[str, float | None], ...]:
        """Return the text around a target, in parts that one or several tokens make up, with the rise of each.

        Words at both ends are whole; dots stand for the text beyond them.
        """
        spelling, token = self.spelling(worst), self.places.token
        at = int(np.flatnonzero(targets == worst)[0])
        near = targets[max(0, at - _NEAR) : at + _NEAR + 1]
        parts: list[tuple[str, float | None]] = []
        end = -1
        begins = spelling.begins[token[near]]
        for begin in np.unique(begins):
            same = near[begins == begin]
            if begin > end >= 0:  # tokens in between that were not scored
                parts.append((spelling.text[end:begin][:_TOKEN], None))
            end = int(spelling.ends[token[same]].max())
            parts.append((self._own(int(same[0]), spelling, begin, end), round(float(rises[same].sum()), 4)))
        before, after = spelling.text[: int(begins.min())], spelling.text[max(end, 0) :]
        head = before if len(before) <= _TOKEN else "..." + re.findall(r"\S*$", before[-_TOKEN:])[0]
        tail = after if len(after) <= _TOKEN else re.findall(r"^\S*", after[:_TOKEN])[0] + "..."
        return tuple((text, rise) for text, rise in ((head, None), *parts, (tail, None)) if text)

    def _own(self, target: int, spelling: Spelling, begin: int, end: int) -> str:
        """Return a token's own text, cut; of a special token around the text its name."""
        places = self.places
        if begin < end:
            return spelling.text[begin:end][:_TOKEN]
        return places.tokenizer.decode(int(places.ids[places.text[target]][places.token[target]]))[:_TOKEN]
