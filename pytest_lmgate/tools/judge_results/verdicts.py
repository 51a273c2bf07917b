"""From a pair of series to its verdict, by the rules that gates have; and what is said of its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from msgspec.structs import replace

from pytest_lmgate.arrays import Floats
from pytest_lmgate.data.results.pairs import Pair
from pytest_lmgate.data.results.rows import ResultRow, ResultRun, digest
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

Weights = Literal["size", "task"]


@dataclass(frozen=True)
class Rules:
    """How pairs are judged."""

    tolerance: Tolerance
    confidence: float = 0.95
    strict: bool = False  # whether INCONCLUSIVE fails
    weights: Weights = "size"  # whether each row of a group counts alike, or each task
    direction: Direction | None = None  # which scores are better, if the files do not tell


def judged(pair: Pair, runs: tuple[ResultRun, ResultRun], rules: Rules, command: tuple[str, ...]) -> Verdict:
    """Return the verdict of a pair; `runs` are the old and the new one, `command` what judges them again."""
    old, new = (run.model or run.path.name for run in runs)
    facts: dict[str, Any] = {
        "metric": pair.new.metric,
        "model": new,
        "dataset": pair.task,
        "limit": None,
        "unit": "row",
    }
    facts |= {"marker": "no_regression", "arguments": command, "file": str(runs[1].path)}
    blank = Verdict.unmeasured(id=f"{pair.task}: {pair.new.label}", test="", **facts)
    against = f"model {old!r}" if old != new else f"run in {runs[0].path}"
    try:
        if pair.problem:
            raise ComparisonError(pair.problem)
        return _judged(pair, blank, against, rules, runs[1].tool)
    except LmgateError as error:
        return replace(blank, message=str(error))


def _judged(pair: Pair, blank: Verdict, against: str, rules: Rules, tool: str) -> Verdict:
    direction, metric = pair.new.direction or rules.direction, pair.new.metric
    if direction is None:
        raise MetricInputError(
            f"neither the files nor its name tell which scores of {metric!r} are better: add --better higher or "
            "--better lower"
        )
    known = np.array([[row.score for row in series.rows] for series in (pair.new, pair.old)], dtype=np.float64)
    # If every row is right or wrong, or higher is better and no score is above 1, that is the end of the scale.
    rights, lowest = bool(np.isin(known, (0, 1)).all()), 0.0 if known.min() >= 0 else -math.inf
    ends = rights or (direction == "higher" and lowest == 0 and known.max() <= 1)
    scale = Scale(direction, lowest=lowest, highest=1.0 if ends else math.inf, of_rows=True)
    span = scale.highest - scale.lowest
    rules.tolerance.require_that_it_can_fail(metric, direction, span if math.isfinite(span) else None)
    data = digest([(row.document or row.id, row.prompt) for row in pair.new.rows])
    fields = {"filter": pair.new.filter or "none", "task_version": pair.new.facts.task_version, "version": tool}
    fields |= {"shots": pair.new.facts.number_of_shots, "weights": rules.weights if pair.tasks else None}
    signature = Signature([(metric, None), *((name, value) for name, value in fields.items() if value)])
    samples = []
    for series, values in zip((pair.new, pair.old), known, strict=True):
        clusters = cluster_numbers([row.cluster or row.document or row.id for row in series.rows], len(series.rows))
        by_row = ByRow(values[:, None], np.ones(len(values), dtype=np.int64), clusters)
        groups = pair.tasks if pair.tasks and rules.weights == "task" else None
        sample = Sample.of_means(by_row, scale, right_or_wrong=rights, groups=groups)
        samples.append(sample.identified(data=data, signature=signature))
    both = samples[0], samples[1]
    found = compare_samples(both, against, tolerance=rules.tolerance, confidence=rules.confidence, share=lowest == 0)
    dropped = [f"{counted(pair.dropped, 'row')} that only one side has: left out"] if pair.dropped else []
    found = replace(found, notes=(*dropped, _changes(known, found, rights=rights)))
    noise = both[0].noise()
    score = Score(
        noise.mean,
        metric=metric,
        unit="row",
        direction=direction,
        n=len(pair.new.rows),
        stderr=noise.stderr,
        interval=both[0].interval,
        signature=signature,
        fingerprint=digest(data, known[0].tolist()),
        cached=True,
        sample=both[0],
        show_row=lambda at: _shown(pair.new.rows[at], at),
    )
    where = None if found.decision == "pass" else _tags(pair, both, found)
    return compared_verdict(blank, score, both, found, strict=rules.strict, where=where)


def _shown(row: ResultRow, at: int) -> ScoredRow:
    prompt, reference, output = row.texts()
    return ScoredRow(int(row.id) if row.id.isdecimal() else at, row.score, output, (reference,), prompt)


def _changes(known: Floats, found: Comparison, *, rights: bool) -> str:
    """Say how many rows changed, and of right-or-wrong rows that are independent McNemar's exact p-value."""
    lower, higher = int((known[0] < known[1]).sum()), int((known[0] > known[1]).sum())
    if not rights:
        return f"{counted(lower, 'row')} with a lower score, {higher:,} with a higher one"
    text = f"{lower:,} {'row was' if lower == 1 else 'rows were'} right and now wrong, {higher:,} the other way round"
    is_independent = found.clusters == known.shape[1]
    return f"{text} (McNemar's exact two-sided p = {mcnemar(lower, higher):.4g})" if is_independent else text


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
    if not (tags := {name: values for name, values in tags.items() if len(set(values)) > 1}):
        return None
    changes, more = tag_changes(*samples, tags, tolerance=found.tolerance, confidence=found.confidence)
    return Attribution(tags=changes, more_tags=more)
