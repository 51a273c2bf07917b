"""The terminal summary: one line per gate."""

from __future__ import annotations

__all__ = ["summary_lines"]

from collections import Counter
from collections.abc import Sequence

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.explanation import distinct, number

_HEADER = ("verdict", "gate", "value", "95 % interval", "limit", "scored", "seconds")


def summary_lines(verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    """Return lines of a table with the outcome each is coloured by; the first is the header, the last the counts."""
    labels = Counter(_label(verdict) for verdict in verdicts)
    rows = [_row(verdict, unique=labels[_label(verdict)] == 1) for verdict in verdicts]
    widths = [max(len(row[column]) for row in [_HEADER, *rows]) for column in range(len(_HEADER))]
    lines = [("", _aligned(_HEADER, widths))]
    lines += [(verdict.verdict, _aligned(row, widths)) for verdict, row in zip(verdicts, rows, strict=True)]
    counts = Counter(verdict.verdict for verdict in verdicts)
    text = ", ".join(
        f"{counts[outcome]} {outcome}" for outcome in ("pass", "fail", "inconclusive", "error") if counts[outcome]
    )
    return [*lines, ("", f"{len(verdicts)} gate{'s' * (len(verdicts) != 1)}: {text}")]


def _row(verdict: Verdict, *, unique: bool) -> tuple[str, ...]:
    """Return the cells of a gate, which is named with its test only where its label alone does not tell."""
    value, limit = ("-", number(verdict.limit)) if verdict.value is None else distinct(verdict.value, verdict.limit)
    interval = "-"
    if verdict.interval is not None:
        interval = f"[{number(verdict.interval[0])}, {number(verdict.interval[1])}]"
    scored = "-" if verdict.n is None else f"{verdict.n:,} {verdict.unit}s"
    seconds = "cached" if verdict.cached else f"{verdict.seconds:.1f}"
    return (
        verdict.verdict.upper(),
        _label(verdict) if unique else verdict.id,
        f">= {value}" if verdict.at_least else value,
        interval,
        limit,
        scored,
        seconds,
    )


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    left = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
    right = [text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True)]
    return "  ".join(left + right)


def _label(verdict: Verdict) -> str:
    return verdict.id.removeprefix(f"{verdict.test}::")
