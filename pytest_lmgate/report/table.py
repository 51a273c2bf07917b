"""The terminal summary: one line per gate, those with a limit and those with a reference in a table each."""

from __future__ import annotations

__all__ = ["summary_lines"]

from collections import Counter
from collections.abc import Sequence

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.explanation import conclusion, degradation, distinct, limit_conclusion, number

_FEW = 30
_LIMITED = ("verdict", "gate", "value", "95 % interval", "limit", "scored", "seconds")
_COMPARED = ("verdict", "gate", "degraded by", "tolerance", "value", "reference", "scored", "seconds")


def summary_lines(verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    """Return lines with the outcome each is coloured by; each table begins with its header, the last has the counts."""
    labels = Counter(verdict.label for verdict in verdicts)
    limited = [verdict for verdict in verdicts if verdict.change is None]
    compared = [verdict for verdict in verdicts if verdict.change is not None]
    lines: list[tuple[str, str]] = []
    for header, group in ((_LIMITED, limited), (_COMPARED, compared)):
        rows = [_row(verdict, unique=labels[verdict.label] == 1) for verdict in group]
        widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
        lines += [("", "")] * bool(lines and group)
        lines += [("", _aligned(header, widths))] * bool(group)
        lines += [(verdict.verdict, _aligned(row, widths)) for verdict, row in zip(group, rows, strict=True)]
    lines += [
        ("inconclusive", text) for verdict in verdicts for text in _open(verdict, unique=labels[verdict.label] == 1)
    ]
    lines += [("inconclusive", text) for text in _few_rows(verdicts)]
    lines += [("", text) for text in _elsewhere(compared)]
    counts = Counter(verdict.verdict for verdict in verdicts)
    text = ", ".join(
        f"{counts[outcome]} {outcome}" for outcome in ("pass", "fail", "inconclusive", "error") if counts[outcome]
    )
    return [*lines, ("", f"{len(verdicts)} gate{'s' * (len(verdicts) != 1)}: {text}")]


def _row(verdict: Verdict, *, unique: bool) -> tuple[str, ...]:
    """Return the cells of a gate, which is named with its test only where its label alone does not tell."""
    name = _name(verdict, unique=unique)
    scored = "-" if verdict.n is None else f"{verdict.n:,} {verdict.unit}s"
    seconds = "cached" if verdict.cached else f"{verdict.seconds:.1f}"
    if (change := verdict.change) is not None:
        value, reference = number(change.reference), number(change.reference)
        if verdict.value is not None and change.degradation != 0:  # else they differ by the order of adding, if at all
            value, reference = distinct(verdict.value, change.reference)
        return verdict.verdict.upper(), name, degradation(change), change.tolerance, value, reference, scored, seconds
    value, limit = _cell(verdict.value), _cell(verdict.limit)
    if verdict.value is not None and verdict.limit is not None:
        value, limit = distinct(verdict.value, verdict.limit)
    interval = "-"
    if verdict.interval is not None:
        interval = f"[{number(verdict.interval[0])}, {number(verdict.interval[1])}]"
    value = f">= {value}" if verdict.at_least else value
    if verdict.marker == "no_regression" and verdict.verdict == "pass":  # and without a change: it was not judged
        limit = "new baseline"
    return verdict.verdict.upper(), name, value, interval, limit, scored, seconds


def _cell(value: float | None) -> str:
    return "-" if value is None else number(value)


def _name(verdict: Verdict, *, unique: bool) -> str:
    return verdict.label if unique else verdict.id


def _few_rows(verdicts: Sequence[Verdict]) -> list[str]:
    """Say once how many verdicts rest on fewer than 30 rows, where chance is large."""
    # A verdict without a rule rests on no rows: the same measurement twice passes with any number of them.
    tested = [
        found
        for verdict in verdicts
        if (found := verdict.change or verdict.bounded) is not None
        and (verdict.verdict == "inconclusive" or found.bounds is not None)
    ]
    few = [each.clusters for each in tested if each.clustered_by == "rows" and each.clusters < _FEW]
    if not few:
        return []
    gates = f"{len(few)} gate{'s rest' if len(few) != 1 else ' rests'}"
    return [f"few rows: {gates} on fewer than {_FEW} (the fewest: {min(few)}), which show only large changes"]


def _elsewhere(compared: Sequence[Verdict]) -> list[str]:
    """What differs between then and now, once for all gates of which the same does."""
    found = Counter(verdict.change.notes for verdict in compared if verdict.change is not None and verdict.change.notes)
    old = Counter(verdict.change.note for verdict in compared if verdict.change is not None and verdict.change.note)
    return [f"{count} gate{'s' * (count != 1)}: {note}" for note, count in old.items()] + [
        f"baseline of {count} gate{'s' * (count != 1)} measured elsewhere: {'; '.join(notes)}"
        for notes, count in found.items()
    ]


def _open(verdict: Verdict, *, unique: bool) -> list[str]:
    """What there is to say of an inconclusive gate, which may not have failed its test."""
    if verdict.verdict != "inconclusive":
        return []
    if verdict.bounded is not None:
        return [f"{_name(verdict, unique=unique)}: {limit_conclusion(verdict, verdict.bounded)}"]
    if verdict.change is None:
        return []
    return [f"{_name(verdict, unique=unique)}: {conclusion(verdict, verdict.change)}"]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    left = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
    right = [text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True)]
    return "  ".join(left + right)
