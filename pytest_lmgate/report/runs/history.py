"""The runs of each gate, and what changed beyond noise: for terminals, programs and as a picture (SVG)."""

from __future__ import annotations

__all__ = ["Track", "finding_words", "history_json", "history_svg", "history_text", "tracks", "when"]

import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import jinja2
import msgspec

from pytest_lmgate.gates.changes import Change, Finding, find_changes
from pytest_lmgate.gates.record import GateRecord, RunRecord
from pytest_lmgate.report.plot import axis
from pytest_lmgate.report.terminal.columns import fitted
from pytest_lmgate.report.wording.counted import counted
from pytest_lmgate.report.wording.excerpt import excerpt, printable
from pytest_lmgate.report.wording.numbers import degradation, interval, number, tolerance

_NOISE = {False: "95% interval", True: "degraded [one-sided]"}
"""Title of the column with the noise: of values, and of gates that are compared with a reference of their own."""
_PLOT, _NAME = 28, 300


@dataclass(frozen=True)
class Track:
    """One gate along a history: its runs by date, its record in each, and what each run says."""

    id: str
    runs: Sequence[RunRecord]
    gates: Sequence[GateRecord]
    findings: Sequence[Finding]

    @property
    def first_change(self) -> int | None:
        """Number of the first run with a change beyond noise, from 0."""
        return next((run for run, finding in enumerate(self.findings) if finding.is_change), None)

    @property
    def is_compared(self) -> bool:
        """Whether the gate is judged against a reference of its own."""
        return any(gate.comparison is not None for gate in self.gates)


def tracks(history: Sequence[RunRecord]) -> list[Track]:
    """Return every gate's track, in the order in which gates first occur."""
    found: dict[str, list[tuple[RunRecord, GateRecord]]] = {}
    for run in history:
        for gate in run.gates:
            found.setdefault(gate.id, []).append((run, gate))
    made = []
    for name, pairs in found.items():
        runs, gates = zip(*pairs, strict=True)
        made.append(Track(name, runs, gates, find_changes(gates)))
    return made


def history_text(shown: Sequence[Track], last: int) -> str:
    """Return a table of the last runs of each gate (all of them for 0), and a sentence for each change in any run."""
    return "\n\n".join(_table(track, last) for track in shown)


def history_json(shown: Sequence[Track]) -> dict[str, Any]:
    """Return everything, as one JSON document has it."""
    return {"schema": 1, "gates": [_facts(track) for track in shown]}


def history_svg(shown: Sequence[Track]) -> str:
    """Return a picture with a panel for each gate: values with their intervals, limits, and where they changed."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = files("pytest_lmgate.report.runs").joinpath("templates/history.svg").read_text(encoding="utf-8")
    text: str = environment.from_string(template).render(panels=[_panel(track) for track in shown])
    return text


def _table(track: Track, last: int) -> str:
    hidden = max(0, len(track.gates) - last) if last else 0
    place = _place(track.gates[hidden:])
    rows = [
        (
            when(run.date),
            run.commit or "-",
            "-" if gate.value is None else (">= " if gate.at_least else "") + number(gate.value),
            degradation(gate.comparison) if gate.comparison is not None else _interval(gate),
            gate.outcome,
            _bar(gate, place),
        )
        for run, gate in zip(track.runs[hidden:], track.gates[hidden:], strict=True)
    ]
    width = shutil.get_terminal_size().columns
    newest = track.gates[-1]
    better = f", {newest.direction} is better" if newest.direction else ""
    lines = [f"{printable(track.id)}: {newest.metric}{better}"]
    lines += [f"{counted(hidden, 'earlier run')} not shown"] * bool(hidden)
    noise = _NOISE[track.is_compared]
    lines += fitted(("date", "commit", "value", noise, "verdict", "plot"), rows, width, (noise, "plot"))
    return "\n".join([*lines, *_sentences(track)])


def _sentences(track: Track) -> list[str]:
    """Say where the values changed, where others began, and which runs are not whole."""
    said = []
    for run, gate, finding in zip(track.runs, track.gates, track.findings, strict=True):
        where = f"{when(run.date)} {run.commit}".rstrip()
        if finding.is_change:
            first = "first change beyond noise" if run is track.runs[track.first_change or 0] else "changed again"
            said.append(f"{first}: {where}: {finding.kind}, {finding_words(gate, finding)}")
        elif finding.why:
            begins = "compared anew from here: " if finding.kind == "first" else "not judged: "
            said.append(f"{begins}{where}: {printable(finding.why)}")
        if not run.is_whole:
            said.append(f"not whole: {where}: {'the run was stopped' if run.stopped else 'the run had problems'}")
    if track.first_change is None:
        none = "the verdict did not change" if track.is_compared else "no change beyond noise"
        said.append(none if len(track.gates) > 1 else "one run: nothing to compare with")
    return said


def finding_words(gate: GateRecord, finding: Finding) -> str:
    """Return in words how large a change is: the gate's own verdict, or the p-value and the one that is allowed."""
    if not finding.is_change:
        return finding.why
    if (found := gate.comparison) is not None:
        allowed = tolerance(found, gate.metric)
        return f"{gate.verdict.upper()} at {degradation(found)} against the {found.against}, tolerance {allowed}"
    assert finding.change is not None
    return _change_words(finding.change, finding.allowed)


def _change_words(change: Change, allowed: float) -> str:
    relative = f" ({change.after / change.before - 1:+.2%})" if change.before > 0 else ""
    return (
        f"{number(change.before)} -> {number(change.after)}{relative}, {_errors(change.errors)}, "
        f"p {change.p_value:.2g}, allowed {allowed:.2g}"
    )


def _errors(errors: float) -> str:
    return f"{errors:.1f} standard errors" if math.isfinite(errors) else "without any noise"


def _facts(track: Track) -> dict[str, Any]:
    first, newest = track.first_change, track.gates[-1]
    runs = [
        {
            "run": run.run,
            "date": run.date,
            "commit": run.commit,
            "branch": run.branch,
            "whole": run.is_whole,
            **{key: getattr(gate, key) for key in ("verdict", "value", "interval", "stderr", "n", "limit", "device")},
            "finding": _finding(finding),
            **({} if gate.comparison is None else {"comparison": msgspec.to_builtins(gate.comparison)}),
        }
        for run, gate, finding in zip(track.runs, track.gates, track.findings, strict=True)
    ]
    about = {key: getattr(newest, key) for key in ("id", "metric", "model", "dataset", "unit", "direction")}
    return {**about, "runs": runs, "first_change": None if first is None else runs[first]}


def _finding(finding: Finding) -> dict[str, Any]:
    facts = {"kind": finding.kind, "why": finding.why, "allowed": finding.allowed}
    if finding.change is None:
        return facts
    change = asdict(finding.change)
    del change["worse"]  # the kind says it, where it is beyond noise
    if not math.isfinite(finding.change.errors):
        change["errors"] = None
    return {**facts, **change}


def when(date: str) -> str:
    """Return the date of a record as people read it, as in ``2026-01-31 18:00``."""
    return date[:16].replace("T", " ")


def _interval(gate: GateRecord) -> str:
    if gate.interval is None:
        return "-"
    low, high = gate.interval
    return interval(-math.inf if low is None else low, math.inf if high is None else high)


def _place(gates: Sequence[GateRecord]) -> Any:
    """Return what turns a number into percent of the plot, from the ends of all intervals, values and limits."""
    numbers = [each for gate in gates for each in (gate.value, gate.limit, *(gate.interval or ())) if each is not None]
    return axis(numbers or [0.0])


def _bar(gate: GateRecord, place: Any) -> str:
    """Return the value ``o`` in its interval ``---``, and the limit ``|``, in characters that every terminal has."""

    def column(value: float) -> int:
        return min(_PLOT - 1, int(place(value) / 100 * _PLOT))

    cells = [" "] * _PLOT
    if gate.value is not None and gate.interval is not None:
        low, high = gate.interval
        begin, end = (0 if low is None else column(low)), (_PLOT - 1 if high is None else column(high))
        cells[begin : end + 1] = "-" * (end + 1 - begin)
    if gate.limit is not None:
        cells[column(gate.limit)] = "|"
    if gate.value is not None:
        cells[column(gate.value)] = "o"
    return "".join(cells)


_LEFT, _WIDTH, _HIGH = 90.0, 690.0, 150.0


def _panel(track: Track) -> dict[str, Any]:
    """Return what the template draws of a gate, in units of the picture; y grows downward."""
    place = _place(track.gates)
    step = _WIDTH / max(1, len(track.gates) - 1)

    def y(value: float | None, end: float) -> float:
        return end if value is None else round(_HIGH * (1 - place(value) / 100), 1)

    points = []
    for index, (run, gate, finding) in enumerate(zip(track.runs, track.gates, track.findings, strict=True)):
        if gate.value is None:
            continue
        low, high = gate.interval or (gate.value, gate.value)
        words = f"{when(run.date)} {run.commit}: {number(gate.value)} {_interval(gate)} {gate.verdict.upper()}"
        points.append(
            {
                "x": round(_LEFT + index * step, 1),
                "y": y(gate.value, 0.0),
                "top": y(high, 0.0),
                "bottom": y(low, _HIGH),
                "limit": None if gate.limit is None else y(gate.limit, 0.0),
                "mark": finding.kind if finding.is_change or (finding.why and finding.kind == "first") else "",
                "verdict": gate.verdict,
                "words": f"{words} {finding.kind if finding.is_change else ''}".strip(),
            }
        )
    values = [gate.value for gate in track.gates if gate.value is not None]
    ends = dict.fromkeys((max(values), min(values))) if values else {}
    return {
        "name": excerpt(track.id, _NAME),
        "points": points,
        "labels": [(number(value), y(value, 0.0)) for value in ends],
        "dates": [when(track.runs[0].date), when(track.runs[-1].date)],
    }
