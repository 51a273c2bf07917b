"""From a pair of series to its verdict, by the rules that gates have; and what is said of its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec.structs import replace

from pytest_lmgate.arrays import Floats
from pytest_lmgate.errors import ComparisonError, LmgateError, MetricInputError
from pytest_lmgate.judge.attribution import Attribution, tag_changes
from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.judge.verdict import Samples, compare_samples, compared_verdict
from pytest_lmgate.metrics.score import Score, ScoredRow
from pytest_lmgate.report.text import counted
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.settings.metrics import Direction
from pytest_lmgate.stats.comparison import Comparison
from pytest_lmgate.stats.sample import ByRow, Sample, Scale, cluster_numbers
from pytest_lmgate.tools.judge_results.pairs import Pair
from pytest_lmgate.tools.judge_results.rows import ResultRun, Series, digest

Weights = Literal["size", "task"]


@dataclass(frozen=True)
class Rules:
    """How pairs are judged.

    Attributes:
        tolerance: The largest degradation that passes.
        confidence: One-sided level of each bound.
        strict: Whether INCONCLUSIVE fails.
        weights: Whether each row of a group counts alike, or each task.
        direction: Which scores are better, if the files do not tell.
    """

    tolerance: Tolerance
    confidence: float = 0.95
    strict: bool = False
    weights: Weights = "size"
    direction: Direction | None = None


def judged(pair: Pair, runs: tuple[ResultRun, ResultRun], rules: Rules, command: Sequence[str]) -> Verdict:
    """Return the verdict of a pair; `runs` are the old and the new one, `command` what judges them again."""
    old, new = runs
    names = [run.model or run.path.name for run in runs]
    blank = Verdict.unmeasured(
        id=f"{pair.task}: {pair.new.label}",
        test="",
        marker="no_regression",
        metric=pair.new.metric,
        model=names[1],
        dataset=pair.task,
        limit=None,
        unit="row",
        arguments=tuple(command),
        file=str(new.path),
    )
    against = f"model {names[0]!r}" if names[0] != names[1] else f"run in {old.path}"
    try:
        if pair.problem:
            raise ComparisonError(pair.problem)
        return _judged(pair, blank, against, rules, new.tool)
    except LmgateError as error:
        return replace(blank, message=str(error))


def _judged(pair: Pair, blank: Verdict, against: str, rules: Rules, tool: str) -> Verdict:
    direction = rules.direction or pair.new.direction
    if direction is None:
        raise MetricInputError(
            f"neither the files nor its name tell which scores of {pair.new.metric!r} are better: add --better higher "
            "or --better lower"
        )
    known = np.array([[row.score for row in series.rows] for series in (pair.new, pair.old)], dtype=np.float64)
    scale = _scale(direction, known)
    rights = _right_or_wrong(known)
    scores = [
        _score(series, values, scale, pair, rules, tool, rights)
        for series, values in zip((pair.new, pair.old), known, strict=True)
    ]
    samples = scores[0].require_sample(), scores[1].require_sample()
    found = compare_samples(
        samples, against, tolerance=rules.tolerance, confidence=rules.confidence, share=scale.lowest == 0
    )
    notes = [f"{pair.dropped:,} rows that only one side has are left out"] if pair.dropped else []
    found = replace(found, notes=(*notes, _changes(known, found)))
    where = None if found.decision == "pass" else _tags(pair, samples, found)
    return compared_verdict(blank, scores[0], samples, found, strict=rules.strict, where=where)


def _scale(direction: Direction, known: Floats) -> Scale:
    """Return the scale of scores; it ends at 1 if rows are right or wrong, or higher is better and none above."""
    lowest = 0.0 if known.min() >= 0 else -math.inf
    ends = _right_or_wrong(known) or (direction == "higher" and lowest == 0 and known.max() <= 1)
    return Scale(direction, lowest=lowest, highest=1.0 if ends else math.inf, of_rows=True)


def _right_or_wrong(known: Floats) -> bool:
    return bool(np.isin(known, (0, 1)).all())


def _score(series: Series, values: Floats, scale: Scale, pair: Pair, rules: Rules, tool: str, rights: bool) -> Score:
    rows = series.rows
    clusters = cluster_numbers([row.cluster or row.document or row.id for row in rows], len(rows))
    groups = pair.tasks if pair.tasks and rules.weights == "task" else None
    by_row = ByRow(values[:, None], np.ones(len(rows), dtype=np.int64), clusters)
    sample = Sample.of_means(by_row, scale, right_or_wrong=rights, groups=groups)
    noise = sample.noise()
    signature = _signature(pair, rules, tool)
    data = digest([(row.document or row.id, row.prompt) for row in rows])

    def show_row(row: int) -> ScoredRow:
        prompt, reference, output = rows[row].texts()
        number = int(rows[row].id) if rows[row].id.isdecimal() else row
        return ScoredRow(number, float(values[row]), output, (reference,), prompt)

    return Score(
        noise.mean,
        metric=series.metric,
        unit="row",
        direction=scale.direction,
        n=len(rows),
        stderr=noise.stderr,
        interval=sample.interval,
        signature=signature,
        fingerprint=digest(data, values.tolist()),
        cached=True,
        sample=sample.identified(data=data, signature=signature),
        show_row=show_row,
    )


def _signature(pair: Pair, rules: Rules, tool: str) -> Signature:
    """Return one signature of both sides: that they are the same measurement is known."""
    facts = pair.new.facts
    fields = {"filter": pair.new.filter or "none", "task_version": facts.task_version, "shots": facts.number_of_shots}
    fields |= {"weights": rules.weights if pair.tasks else None, "version": tool}
    return Signature([(pair.new.metric, None), *((name, value) for name, value in fields.items() if value)])


def _changes(known: Floats, found: Comparison) -> str:
    """Say how many rows changed, and of right-or-wrong rows that are independent McNemar's exact p-value."""
    worse, better = (int((sign * (known[1] - known[0]) > 0).sum()) for sign in (1, -1))
    if found.change * found.degradation > 0:  # lower is better
        worse, better = better, worse
    if not _right_or_wrong(known):
        return f"{counted(worse, 'row')} got worse, {better:,} better"
    were = "row was" if worse == 1 else "rows were"
    text = f"{worse:,} {were} right and now wrong, {better:,} the other way round"
    is_independent = found.clusters == known.shape[1]
    return f"{text} (McNemar's exact two-sided p = {mcnemar(worse, better):.4g})" if is_independent else text


def mcnemar(lost: int, gained: int) -> float:
    """Return the exact two-sided p-value of "a row is lost as often as gained": ``2 P(X <= min)``, X ~ B(b + c, 1/2).

    McNemar 1947, Psychometrika 12, 153-157; Liddell 1976 for the exact form.
    """
    n, term, total = lost + gained, 1, 0
    for k in range(min(lost, gained) + 1):
        total += term
        term = term * (n - k) // (k + 1)
    share: float = 2 * total / 2**n
    return min(1.0, share)


def _tags(pair: Pair, samples: Samples, found: Comparison) -> Attribution | None:
    columns = dict.fromkeys(name for row in pair.new.rows for name in row.tags)
    tags = {name: [row.tags.get(name, "") for row in pair.new.rows] for name in columns}
    tags = {name: values for name, values in tags.items() if len(set(values)) > 1}
    if not tags:
        return None
    changes, more = tag_changes(*samples, tags, tolerance=found.tolerance, confidence=found.confidence)
    return Attribution(tags=changes, more_tags=more)
