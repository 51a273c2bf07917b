"""The terminal summary: a line per gate, failures first, in a table of limits and one of references."""

from __future__ import annotations

__all__ = ["not_kept_note", "summary_lines", "title"]

import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.measured import Measured
from pytest_lmgate.report.results import Results
from pytest_lmgate.report.terminal.columns import fitted
from pytest_lmgate.report.wording.counted import counted
from pytest_lmgate.report.wording.explanation import conclusion
from pytest_lmgate.report.wording.rows import Row, counts, names

_FEW = 30
_LIMITED = ("verdict", "gate", "value", "95% interval", "limit", "scored", "seconds")
_COMPARED = ("verdict", "gate", "degraded [one-sided]", "tolerance", "value", "reference", "scored", "seconds")
# Columns that go first where the terminal is narrow; failures and reports have all of it.
_FOLDS_OF_COMPARED = ("seconds", "scored", "reference", "value")
_FOLDS_OF_LIMITED = ("seconds", "scored", "95% interval")


def summary_lines(verdicts: Sequence[Verdict], expected_to_fail: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return lines with the outcome each is coloured by; each table begins with its header, the last has the counts.

    Args:
        verdicts: In the order of the tests.
        expected_to_fail: Ids of the gates whose tests are marked xfail.
    """
    results = Results(verdicts, expected_to_fail=frozenset(expected_to_fail))
    verdicts = results.worst_first()
    pairs = list(zip(verdicts, names(verdicts), strict=True))
    tables = [
        (header, folds, [pair for pair in pairs if (pair[0].comparison is not None) == is_compared])
        for header, folds, is_compared in ((_LIMITED, _FOLDS_OF_LIMITED, False), (_COMPARED, _FOLDS_OF_COMPARED, True))
    ]
    lines: list[tuple[str, str]] = []
    for header, folds, group in sorted(
        tables, key=lambda table: not any(results.fails(verdict) for verdict, _ in table[2])
    ):
        rows = [_cells(Row.of(verdict, results.outcome(verdict)), name, header is _COMPARED) for verdict, name in group]
        if not rows:
            continue
        first, *others = fitted(header, rows, shutil.get_terminal_size().columns, folds)
        lines += [("", "")] * bool(lines) + [("", first)]
        lines += [(_colour(verdict, results), line) for (verdict, _), line in zip(group, others, strict=True)]
    lines += [
        (_colour(verdict, results), f"{name}: {why}")  # which may not have failed its test
        for verdict, name in pairs
        if verdict.verdict == "inconclusive" and (why := conclusion(verdict))
    ]
    lines += [("inconclusive", text) for text in _few(verdicts)]
    lines += [("", text) for text in _elsewhere(verdicts)]
    return [*lines, ("", counts(results))]


def not_kept_note(reasons: Mapping[str, str]) -> str:
    """Say in one line which models are measured again in each session, why, and how to keep their measurements."""
    named = [f"{model} ({reason})" for model, reason in sorted(reasons.items())]
    more = f" and {len(named) - 2} more" if len(named) > 2 else ""
    return (
        f"not kept, measured again in each session: {', '.join(named[:2])}{more}; to keep the measurements, give the "
        'model a revision that you change with its code: lmgate.model(..., revision="1"), or revision: in lmgate.yaml'
    )


def _colour(verdict: Verdict, results: Results) -> str:
    return "fail" if verdict.blocking and results.fails(verdict) else results.outcome(verdict)


def _cells(row: Row, name: str, is_compared: bool) -> list[str]:
    judged = [row.value, row.interval, row.limit]
    if is_compared:
        judged = [row.change, row.tolerance, row.value, row.limit]
    return [row.outcome, name, *(text or "-" for text in (*judged, row.scored, row.seconds))]


def _few(verdicts: Sequence[Verdict]) -> list[str]:
    """Say once how many verdicts rest on fewer than 30 rows or targets, where chance is large."""
    # A verdict without a rule rests on no rows: the same measurement twice passes with any number of them.
    tested = [
        found
        for verdict in verdicts
        if (found := verdict.comparison or verdict.bounded) is not None
        and (verdict.verdict == "inconclusive" or found.bounds is not None)
    ]
    rows = [each.clusters for each in tested if each.clustered_by == "rows"]
    targets = [verdict.n for verdict in verdicts if verdict.n is not None and verdict.unit != "row"]
    lines = []
    for what, numbers in (("rows", rows), ("targets", targets)):
        if few := [number for number in numbers if number < _FEW]:
            rest = "rest" if len(few) != 1 else "rests"
            fewest = f"fewer than {_FEW} (the fewest: {min(few)})"
            lines.append(f"few {what}: {counted(len(few), 'gate')} {rest} on {fewest}, which show only large changes")
    return lines


def _elsewhere(verdicts: Sequence[Verdict]) -> list[str]:
    """Say how hardware and versions differ from the baseline's, once for all gates with the same difference."""
    compared = [verdict.comparison for verdict in verdicts if verdict.comparison is not None]
    moved = Counter(found.notes for found in compared if found.notes)
    return [
        f"baseline of {counted(count, 'gate')} measured elsewhere: {'; '.join(notes)}" for notes, count in moved.items()
    ]


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
    judged = f"{counted(len(verdicts), 'gate')}, " if verdicts else ""
    return f"lmgate: {judged}{counted(len(found), 'measurement')}{cached}"
