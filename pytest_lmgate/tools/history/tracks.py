"""The runs of each gate, and what changed beyond noise: for terminals, programs and as a picture (SVG)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pytest_lmgate.errors import escape_controls
from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.report.history import Finding, Track, finding_words
from pytest_lmgate.report.page import rendered
from pytest_lmgate.report.text import counted, excerpt, table
from pytest_lmgate.report.wording import degradation, interval, number, when

_NOISE = {False: "95% interval", True: "degraded [one-sided]"}
"""Title of the column with the noise: of values, and of gates that are compared with a reference of their own."""
_PLOT, _NAME = 28, 300
_MARGIN = 12.0  # percent of the plot on each side


def history_text(shown: Sequence[Track], last: int) -> str:
    """Return a table of the last runs of each gate (0: all), and a sentence for each change in any run."""
    return "\n\n".join(_table(track, last) for track in shown)


def history_json(shown: Sequence[Track]) -> dict[str, Any]:
    return {"schema": 1, "gates": [_facts(track) for track in shown]}


def history_svg(shown: Sequence[Track]) -> str:
    """Return a picture with a panel for each gate: values with intervals, limits and changes."""
    return rendered("history.svg", panels=[_panel(track) for track in shown])


def _table(track: Track, last: int) -> str:
    hidden = max(0, len(track.gates) - last) if last else 0
    place = _place(track.gates[hidden:])
    rows = [
        (
            when(results.run.date),
            results.run.commit or "-",
            "-" if gate.value is None else number(gate.value),
            degradation(gate.comparison) if gate.comparison is not None else _interval(gate),
            gate.shown,
            _bar(gate, place),
        )
        for results, gate in zip(track.runs[hidden:], track.gates[hidden:], strict=True)
    ]
    newest = track.gates[-1]
    better = f", {newest.direction} is better" if newest.direction else ""
    lines = [f"{escape_controls(track.id)}: {newest.metric}{better}"]
    if hidden:
        lines.append(f"{counted(hidden, 'earlier run')} not shown")
    noise = _NOISE[track.is_compared]
    header = ("date", "commit", "value", noise, "verdict", "plot")
    lines += table(header, rows, names=["commit"], left=["date"], folds=[noise, "plot"])
    return "\n".join([*lines, *_sentences(track, hidden)])


def _sentences(track: Track, hidden: int) -> list[str]:
    """Describe changes and new series, and of the runs that are shown those without a value or not whole."""
    sentences = []
    for at, (results, gate, finding) in enumerate(zip(track.runs, track.gates, track.findings, strict=True)):
        where = f"{when(results.run.date)} {results.run.commit}".rstrip()
        if finding.is_change:
            change = "first change beyond noise" if gate.comparison is None else "first change of the verdict"
            first = change if results is track.runs[track.first_change or 0] else "changed again"
            sentences.append(f"{first}: {where}: {finding.kind}, {finding_words(gate, finding)}")
        elif finding.why and (finding.kind == "first" or at >= hidden):
            begins = "a new comparison starts here: " if finding.kind == "first" else "not judged: "
            sentences.append(f"{begins}{where}: {escape_controls(finding.why)}")
        if not results.is_whole and at >= hidden:
            sentences.append(
                f"not whole: {where}: {'the run was stopped' if results.run.stopped else 'the run had problems'}"
            )
    return sentences if track.first_change is not None else [*sentences, _without_change(track)]


def _without_change(track: Track) -> str:
    """Describe a history without a change; it shows nothing if no two runs could be compared."""
    runs = len(track.gates)
    if runs == 1:
        return "one run: nothing to compare with"
    if track.is_compared:
        verdicts = Counter(gate.shown for gate in track.gates)
        counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        return "the verdict has not changed" if len(verdicts) == 1 else f"no change between PASS and failing: {counts}"
    judged = sum(finding.kind == "same" for finding in track.findings)
    if not judged:
        return "nothing was judged: no two runs have the same data and a known noise"
    unknown = sum(finding.kind == "unknown" for finding in track.findings)
    return "no change beyond noise" + (
        f" in {runs - unknown} of {runs} runs, the others were not judged" if unknown else ""
    )


def _facts(track: Track) -> dict[str, Any]:
    first, newest = track.first_change, track.gates[-1]
    runs = [
        {
            "run": results.run.id,
            "date": results.run.date,
            "commit": results.run.commit,
            "branch": results.run.branch,
            "whole": results.is_whole,
            **{key: getattr(gate, key) for key in ("verdict", "value", "interval", "stderr", "n", "limit", "device")},
            "finding": _finding(finding),
            **({} if gate.comparison is None else {"comparison": gate.comparison}),
        }
        for results, gate, finding in zip(track.runs, track.gates, track.findings, strict=True)
    ]
    about = {key: getattr(newest, key) for key in ("id", "metric", "model", "dataset", "unit", "direction")}
    return {**about, "runs": runs, "first_change": None if first is None else runs[first]}


def _finding(finding: Finding) -> dict[str, Any]:
    facts = {"kind": finding.kind, "why": finding.why, "allowed": finding.allowed}
    if finding.change is None:
        return facts
    # The kind says whether it is worse, where it is beyond noise.
    return facts | {key: getattr(finding.change, key) for key in ("before", "after", "errors", "p_value")}


def _interval(gate: Verdict) -> str:
    return "-" if gate.interval is None else interval(*gate.interval)


def _place(gates: Sequence[Verdict]) -> Callable[[float], float]:
    """Return a function from a number to percent of the plot; infinite ones are at its edge."""
    numbers = [
        number for gate in gates for number in (gate.value, gate.limit, *(gate.interval or ())) if number is not None
    ]
    shown = [number for number in numbers if math.isfinite(number)] or [0.0]
    low, width = min(shown), max(shown) - min(shown)

    def place(number: float) -> float:
        if not math.isfinite(number):
            return 100.0 if number > 0 else 0.0
        share = (number - low) / width if 0 < width < math.inf else 0.5
        return round(_MARGIN + share * (100 - 2 * _MARGIN), 2)

    return place


def _bar(gate: Verdict, place: Callable[[float], float]) -> str:
    """Return the value ``o`` in its interval ``---``, and the limit ``|``, in ASCII."""

    def column(value: float) -> int:
        return min(_PLOT - 1, int(place(value) / 100 * _PLOT))

    cells = [" "] * _PLOT
    if gate.value is not None and gate.interval is not None:
        begin, end = map(column, gate.interval)
        cells[begin : end + 1] = "-" * (end + 1 - begin)
    if gate.limit is not None:
        cells[column(gate.limit)] = "|"
    if gate.value is not None:
        cells[column(gate.value)] = "o"
    return "".join(cells)


_LEFT, _WIDTH, _HIGH, _LABEL = 90.0, 690.0, 150.0, 13.0


def _panel(track: Track) -> dict[str, Any]:
    """Return the template's data of a gate, in units of the picture; y grows downward."""
    place = _place(track.gates)
    step = _WIDTH / max(1, len(track.gates) - 1)

    def y(value: float) -> float:
        return round(_HIGH * (1 - place(value) / 100), 1)

    points = []
    for index, (results, gate, finding) in enumerate(zip(track.runs, track.gates, track.findings, strict=True)):
        if gate.value is None:
            continue
        low, high = gate.interval or (gate.value, gate.value)
        moment = f"{when(results.run.date)} {results.run.commit}"
        words = f"{moment}: {number(gate.value)} {_interval(gate)} {gate.verdict.upper()}"
        points.append(
            {
                "x": round(_LEFT + index * step, 1),
                "y": y(gate.value),
                "top": y(high),
                "bottom": y(low),
                "limit": None if gate.limit is None else y(gate.limit),
                "mark": finding.kind if finding.is_change or (finding.why and finding.kind == "first") else "",
                "verdict": gate.verdict,
                "words": f"{words} {finding.kind if finding.is_change else ''}".strip(),
            }
        )
    values = [gate.value for gate in track.gates if gate.value is not None]
    ends = list(dict.fromkeys((max(values), min(values)))) if values else []
    if len(ends) > 1 and y(ends[1]) - y(ends[0]) < _LABEL:
        ends = values[-1:]
    dates = [(when(track.runs[0].run.date), _LEFT, "start")]
    if len(track.runs) > 1:
        dates.append((when(track.runs[-1].run.date), _LEFT + _WIDTH, "end"))
    return {
        "name": excerpt(track.id, _NAME),
        "points": points,
        "labels": [(number(value), y(value)) for value in ends],
        "dates": dates,
    }
