"""The terminal summary: one line per gate, those with a limit and those with a reference in a table each."""

from __future__ import annotations

__all__ = ["not_kept_note", "summary_lines", "title"]

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.metrics.score import distinct
from pytest_lmgate.report.columns import fitted
from pytest_lmgate.report.explanation import conclusion, degradation, interval, number
from pytest_lmgate.report.measured import Measured

_FEW = 30
_LIMITED = ("verdict", "gate", "value", "95 % interval", "limit", "scored", "seconds")
_COMPARED = ("verdict", "gate", "degraded [one-sided]", "tolerance", "value", "reference", "scored", "seconds")
# Columns that go first where the terminal is narrow; failures and reports have all of it.
_FOLDS_OF_COMPARED = ("seconds", "scored", "reference", "value")
_FOLDS_OF_LIMITED = ("seconds", "scored", "95 % interval")


def summary_lines(verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    """Return lines with the outcome each is coloured by; each table begins with its header, the last has the counts."""
    labels = Counter(verdict.label for verdict in verdicts)
    # A gate is named with its test only where its label alone does not tell it from the others.
    names = [verdict.label if labels[verdict.label] == 1 else verdict.id for verdict in verdicts]
    lines: list[tuple[str, str]] = []
    for header, folds, is_compared in ((_LIMITED, _FOLDS_OF_LIMITED, False), (_COMPARED, _FOLDS_OF_COMPARED, True)):
        group = [
            (v, name) for v, name in zip(verdicts, names, strict=True) if (v.comparison is not None) == is_compared
        ]
        rows = [_row(verdict, name) for verdict, name in group]
        if not rows:
            continue
        first, *others = fitted(header, rows, shutil.get_terminal_size().columns, folds)
        lines += [("", "")] * bool(lines) + [("", first)]
        lines += [(_colour(verdict), line) for (verdict, _), line in zip(group, others, strict=True)]
    lines += [
        (_colour(verdict), f"{name}: {why}")  # which may not have failed its test
        for verdict, name in zip(verdicts, names, strict=True)
        if verdict.verdict == "inconclusive" and (why := conclusion(verdict))
    ]
    lines += [("inconclusive", text) for text in _few_rows(verdicts)]
    lines += [("", text) for text in _elsewhere(verdicts)]
    counts = Counter(verdict.verdict for verdict in verdicts)
    text = ", ".join(
        f"{counts[outcome]} {outcome}" for outcome in ("pass", "fail", "inconclusive", "error") if counts[outcome]
    )
    if blocking := sum(verdict.blocking and verdict.verdict == "inconclusive" for verdict in verdicts):
        text = text.replace(" inconclusive", f" inconclusive ({blocking} fail{'s' * (blocking == 1)} the build)")
    return [*lines, ("", f"{_gates(len(verdicts))}: {text}")]


def not_kept_note(reasons: Mapping[str, str]) -> str:
    """Say in one line which models are measured again in each session, why, and how to keep their measurements."""
    named = [f"{model} ({reason})" for model, reason in sorted(reasons.items())]
    more = f" and {len(named) - 2} more" if len(named) > 2 else ""
    return (
        f"not kept, measured again in each session: {', '.join(named[:2])}{more}; to keep the measurements, give the "
        'model a revision that you change with its code: lmgate.model(..., revision="1"), or revision: in lmgate.yaml'
    )


def _outcome(verdict: Verdict) -> str:
    """The verdict in capitals; an inconclusive one that fails the build has a mark, which the eye finds."""
    return verdict.verdict.upper() + "!" * (verdict.verdict == "inconclusive" and verdict.blocking)


def _colour(verdict: Verdict) -> str:
    return "fail" if verdict.blocking else verdict.verdict


def _row(verdict: Verdict, name: str) -> tuple[str, ...]:
    scored = "-" if verdict.n is None else f"{verdict.n:,} {verdict.unit}s"
    seconds = "cached" if verdict.cached else f"{verdict.seconds:.1f}"
    if (found := verdict.comparison) is not None:
        value = reference = number(found.reference)
        if verdict.value is not None and found.degradation != 0:  # else they differ by the order of adding, if at all
            value, reference = distinct(verdict.value, found.reference)
        judged = degradation(found), str(found.tolerance), value, reference
        return _outcome(verdict), name, *judged, scored, seconds
    value, limit = ("-" if each is None else number(each) for each in (verdict.value, verdict.limit))
    if verdict.value is not None and verdict.limit is not None:
        value, limit = distinct(verdict.value, verdict.limit)
    noise = "-" if verdict.interval is None else interval(*verdict.interval)
    value = f">= {value}" if verdict.at_least else value
    if verdict.marker == "no_regression" and verdict.verdict == "pass":  # and without a comparison: it was not judged
        limit = "new baseline"
    return _outcome(verdict), name, value, noise, limit, scored, seconds


def _few_rows(verdicts: Sequence[Verdict]) -> list[str]:
    """Say once how many verdicts rest on fewer than 30 rows, where chance is large."""
    # A verdict without a rule rests on no rows: the same measurement twice passes with any number of them.
    tested = [
        found
        for verdict in verdicts
        if (found := verdict.comparison or verdict.bounded) is not None
        and (verdict.verdict == "inconclusive" or found.bounds is not None)
    ]
    few = [each.clusters for each in tested if each.clustered_by == "rows" and each.clusters < _FEW]
    if not few:
        return []
    rest = "rest" if len(few) != 1 else "rests"
    fewest = f"fewer than {_FEW} (the fewest: {min(few)})"
    return [f"few rows: {_gates(len(few))} {rest} on {fewest}, which show only large changes"]


def _elsewhere(verdicts: Sequence[Verdict]) -> list[str]:
    """Say what differs between then and now, once for all gates of which the same does."""
    compared = [verdict.comparison for verdict in verdicts if verdict.comparison is not None]
    old = Counter(found.note for found in compared if found.note)
    moved = Counter(found.notes for found in compared if found.notes)
    lines = [f"{_gates(count)}: {note}" for note, count in old.items()]
    return lines + [
        f"baseline of {_gates(count)} measured elsewhere: {'; '.join(notes)}" for notes, count in moved.items()
    ]


def _gates(count: int) -> str:
    return f"{count} gate{'s' * (count != 1)}"


def title(verdicts: Sequence[Verdict], measured: Sequence[Measured]) -> str:
    """Return the summary's title, as in ``lmgate: 12 gates, 5 measurements (3 cached)``."""
    found: dict[str, bool] = {}  # by address, or where nothing is kept by place: whether it came from the cache
    everything: list[Verdict | Measured] = [*verdicts, *measured]
    for index, each in enumerate(everything):
        if each.value is not None:
            key = each.fingerprint or str(index)
            found[key] = each.cached and found.get(key, True)
    if not verdicts and not found:
        return "lmgate"
    cached = f" ({sum(found.values())} cached)" if any(found.values()) else ""
    gates = f"{_gates(len(verdicts))}, " if verdicts else ""
    return f"lmgate: {gates}{len(found)} measurement{'s' * (len(found) != 1)}{cached}"
