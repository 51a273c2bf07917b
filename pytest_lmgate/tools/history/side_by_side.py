"""Two runs side by side: value and verdict then and now, what changed beyond noise, and what only one run has.

A gate that was compared with a reference of its own is shown with its own change, bounds and verdict: it pairs rows,
and so knows more than a comparison of the two runs' values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pytest_lmgate.errors import RecordError, escape_controls
from pytest_lmgate.judge.result import Results, Verdict
from pytest_lmgate.metrics.score import distinct
from pytest_lmgate.report.history import Change, change_between, significant
from pytest_lmgate.report.services import code
from pytest_lmgate.report.text import counted, excerpt, table
from pytest_lmgate.report.wording import degradation, tolerance
from pytest_lmgate.stats.paired import differences

_SIZE = 55_000
"""Bytes of all rows: GitHub refuses a comment above 65,536 characters."""
_NAME = 300
_OF_OWN = "the change of a no_regression gate is its own: against its reference, with one-sided bounds"
_OWN = {
    "pass": "within the tolerance",
    "fail": "beyond the tolerance",
    "inconclusive": "inconclusive at the tolerance",
    "error": "not compared",
}


@dataclass(frozen=True)
class VerdictPair:
    """One gate in both runs."""

    before: Verdict
    after: Verdict
    # change of its value; None if they cannot be compared (see `why`), or if the gate has its own reference
    change: Change | None
    why: str = ""
    is_beyond: bool = False  # whether the change is beyond noise

    @property
    def fails_now(self) -> bool:
        """Whether the gate fails the build now and did not then."""
        return self.after.fails and not self.before.fails

    @property
    def is_worse(self) -> bool:
        """Whether it fails now, or is worse beyond noise."""
        return self.fails_now or self.judged == "worse"

    @property
    def judged(self) -> str:
        if self.after.comparison is not None:
            is_same = (self.before.value, self.before.verdict) == (self.after.value, self.after.verdict)
            return "same" if is_same else _OWN[self.after.verdict]
        if self.change is None:
            return "not compared"
        if self.is_beyond:
            return "worse" if self.change.worse else "better"
        return "within noise" if self.change.errors else "same"

    @property
    def words(self) -> str:
        comparison = self.after.comparison
        judged = self.judged
        if comparison is not None and judged != "same":
            judged += f" of {tolerance(comparison, self.after.metric)}"
        if not self.fails_now:
            return judged
        if judged == "within noise":
            judged = "by a change within noise"
        return "fails now" if judged == "not compared" else f"fails now, {judged}"

    @property
    def is_better(self) -> bool:
        """Whether it passes again, or is better beyond noise."""
        if self.after.comparison is None:
            return self.judged == "better"
        return (self.before.verdict, self.after.verdict) == ("fail", "pass")

    @property
    def rank(self) -> int:
        is_other = self.before.shown != self.after.shown  # as of an advisory gate, which fails no build
        return 0 if self.fails_now else 1 if self.is_worse else 2 if self.is_better else 3 if is_other else 4


@dataclass(frozen=True)
class SideBySide:
    """Two runs: gates of both, worst first, and ids of gates in only one."""

    names: tuple[str, str]
    pairs: Sequence[VerdictPair]
    only_before: Sequence[str]
    only_after: Sequence[str]
    failing: Sequence[str] = ()  # of those in the later run only, the gates that fail the build
    faults: tuple[Sequence[str], Sequence[str]] = ((), ())  # of both runs: why their gates are not all

    @property
    def is_worse(self) -> bool:
        """Whether the later run is worse; one that was stopped, or had problems of its own, is."""
        return bool(self.failing or self.faults[1]) or any(pair.is_worse for pair in self.pairs)

    @property
    def counts(self) -> str:
        """A summary: ``3 gates in both: 1 fails now, 2 within noise``."""
        shown = ["fails now" if pair.fails_now else pair.judged for pair in self.pairs]
        counts = ", ".join(f"{shown.count(words)} {words}" for words in dict.fromkeys(shown))
        return f"{counted(len(self.pairs), 'gate')} in both: {counts}"


@dataclass(frozen=True)
class Side:
    """The verdicts of a run by id, and what else failed in it: that it was stopped, and its problems."""

    gates: Mapping[str, Verdict]
    faults: Sequence[str] = ()


def side_of(runs: Sequence[Results], gates: Mapping[str, Verdict]) -> Side:
    faults = ["the run was stopped"] * any(results.run.stopped for results in runs)
    return Side(gates, [*faults, *dict.fromkeys(problem for results in runs for problem in results.problems)])


def side_by_side(names: tuple[str, str], earlier: Side, later: Side) -> SideBySide:
    before, after = earlier.gates, later.gates
    both = [name for name in before if name in after]
    if not both:
        raise RecordError(f"{names[0]} and {names[1]}: expected gates that are in both, found none")
    pairs = [_pair(before[name], after[name]) for name in both]
    judged = [pair.change for pair in pairs if pair.change is not None]
    beyond = iter(significant(judged))
    pairs = [
        pair if pair.change is None else VerdictPair(pair.before, pair.after, pair.change, is_beyond=next(beyond))
        for pair in pairs
    ]
    return SideBySide(
        names,
        sorted(pairs, key=lambda pair: pair.rank),
        [name for name in before if name not in after],
        [name for name in after if name not in before],
        [name for name in after if name not in before and after[name].fails],
        (earlier.faults, later.faults),
    )


def _pair(before: Verdict, after: Verdict) -> VerdictPair:
    change, why = None, ""
    if after.comparison is not None:
        return VerdictPair(before, after, None)
    if before.value is None or after.value is None:
        why = f"not measured {'then' if before.value is None else 'now'}"
    elif before.identity != after.identity:
        why = "; ".join(differences(after.identity, before.identity))
    else:
        change = change_between([before], after)
        why = "" if change else "without an interval"
    return VerdictPair(before, after, change, why)


def side_by_side_text(compared: SideBySide) -> str:
    header = ("verdict", "gate", "value", "change", "")
    rows = [(_verdicts(pair), pair.before.id, _values(pair), _relative(pair), pair.words) for pair in compared.pairs]
    lines = table(header, rows, names=["gate"], left=["verdict"])
    return "\n".join([*lines, *_notes(compared), compared.counts])


def side_by_side_markdown(compared: SideBySide) -> str:
    """Return a comment for a pull request: changes in a table, other gates folded."""
    sign = "❌" if compared.is_worse else "✅" if all(pair.after.verdict == "pass" for pair in compared.pairs) else "⚠️"
    parts = [f"{sign} **{compared.counts}** ({code(compared.names[0], _NAME)} → {code(compared.names[1], _NAME)})"]
    rows = [
        f"| {_sign(pair)} {_verdicts(pair)} | {code(pair.before.id, _NAME)} | {_values(pair)} | {_relative(pair)} "
        f"| {pair.words} |"
        for pair in compared.pairs
    ]
    sizes = accumulate(len(row.encode()) for row in rows)
    fit = sum(size <= _SIZE for size in sizes)
    news = sum(pair.rank < 4 for pair in compared.pairs)
    head = "| verdict | gate | value | change | |\n|---|---|---:|---:|---|\n"
    if rows[: min(news, fit)]:
        parts.append(head + "\n".join(rows[: min(news, fit)]))
    if rest := rows[news:fit]:
        summary = f"{counted(len(compared.pairs) - news, 'gate')} without a change beyond noise"
        parts.append(f"<details><summary>{summary}</summary>\n\n{head}" + "\n".join(rest) + "\n\n</details>")
    if left := len(rows) - fit:
        parts.append(f"{left:,} more omitted to limit the size; `lmgate compare` without `--markdown` has all")
    notes = [f"- {code(note, _NAME)}" for note in _notes(compared)[:30]]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])]) + "\n"


def side_by_side_json(compared: SideBySide) -> dict[str, Any]:
    return {
        "schema": 1,
        "before": compared.names[0],
        "after": compared.names[1],
        "worse": compared.is_worse,
        "gates": [
            {
                "id": pair.before.id,
                "before": _side(pair.before),
                "after": _side(pair.after),
                "judged": pair.judged,
                "fails_now": pair.fails_now,
                "why": pair.why,
                "p_value": None if pair.change is None else pair.change.p_value,
                "errors": None if pair.change is None else pair.change.errors,
            }
            for pair in compared.pairs
        ],
        "only_before": list(compared.only_before),
        "only_after": list(compared.only_after),
        "problems": {"before": list(compared.faults[0]), "after": list(compared.faults[1])},
    }


def _side(gate: Verdict) -> dict[str, Any]:
    facts = {key: getattr(gate, key) for key in ("verdict", "value", "interval")}
    return facts | ({} if gate.comparison is None else {"comparison": gate.comparison})


def _notes(compared: SideBySide) -> list[str]:
    notes = [
        f"{escape_controls(name)}: {escape_controls(fault)}"
        for name, faults in zip(compared.names, compared.faults, strict=True)
        for fault in faults
    ]
    notes += [_OF_OWN] * any(pair.after.comparison is not None for pair in compared.pairs)
    notes += [
        f"not compared: {excerpt(pair.before.id, _NAME)}: {escape_controls(pair.why)}"
        for pair in compared.pairs
        if pair.why
    ]
    notes += [f"only in {escape_controls(compared.names[0])}: {excerpt(name, _NAME)}" for name in compared.only_before]
    after = f"only in {escape_controls(compared.names[1])}: "
    notes += [f"{after}{excerpt(name, _NAME)}, which fails" for name in compared.failing]
    return notes + [f"{after}{excerpt(name, _NAME)}" for name in compared.only_after if name not in compared.failing]


def _sign(pair: VerdictPair) -> str:
    if pair.is_worse or (pair.after.fails and pair.after.verdict != "inconclusive"):
        return "❌"
    if pair.is_better:
        return "⬆️"
    return "⚠️" if pair.after.verdict != "pass" else "❔" if pair.judged == "not compared" else "✅"


def _verdicts(pair: VerdictPair) -> str:
    before, after = pair.before.shown, pair.after.shown
    return before if before == after else f"{before} -> {after}"


def _values(pair: VerdictPair) -> str:
    before, after = pair.before.value, pair.after.value
    if before is None or after is None:
        return " -> ".join("-" if value is None else f"{value:.6g}" for value in (before, after))
    return " -> ".join(distinct(before, after)) if pair.judged != "same" else f"{after:.6g}"


def _relative(pair: VerdictPair) -> str:
    if pair.after.comparison is not None:
        return degradation(pair.after.comparison)
    before, after = pair.before.value, pair.after.value
    if before is None or after is None or pair.judged == "same":
        return "-" if before is None or after is None else "0"
    return f"{after / before - 1:+.2%}" if before > 0 else f"{after - before:+.4g}"
