"""Each gate along a history of runs, and the reports' words about earlier runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_lmgate.judge.history import Finding, find_changes
from pytest_lmgate.judge.result import PastRun, Results, Verdict
from pytest_lmgate.report.wording import degradation, number, tolerance

EARLIER = 30
"""How many runs before a run its reports show."""


@dataclass(frozen=True)
class Track:
    """One gate along a history: its runs by date, its record in each, and the finding of each."""

    id: str
    runs: Sequence[Results]
    gates: Sequence[Verdict]
    findings: Sequence[Finding]

    @property
    def first_change(self) -> int | None:
        """Number of the first run with a change beyond noise, from 0."""
        return next((run for run, finding in enumerate(self.findings) if finding.is_change), None)

    @property
    def is_compared(self) -> bool:
        return any(gate.comparison is not None for gate in self.gates)


def tracks(history: Sequence[Results]) -> list[Track]:
    pairs_by_gate: dict[str, list[tuple[Results, Verdict]]] = {}
    for run in history:
        for gate in run.verdicts:
            pairs_by_gate.setdefault(gate.id, []).append((run, gate))
    made = []
    for name, pairs in pairs_by_gate.items():
        runs, gates = zip(*pairs, strict=True)
        made.append(Track(name, runs, gates, find_changes(gates)))
    return made


def finding_words(gate: Verdict, finding: Finding) -> str:
    """Describe a change: the gate's own verdict, or the p-value and the allowed one."""
    if not finding.is_change:
        return finding.why
    if (comparison := gate.comparison) is not None:
        allowed = tolerance(comparison, gate.metric)
        return f"{gate.shown} at {degradation(comparison)} against the {comparison.against}, tolerance {allowed}"
    change = finding.change
    assert change is not None
    errors = f"{change.errors:.1f} standard errors" if math.isfinite(change.errors) else "without any noise"
    relative = f" ({change.after / change.before - 1:+.2%})" if change.before > 0 else ""
    return (
        f"{number(change.before)} -> {number(change.after)}{relative}, {errors}, "
        f"p {change.p_value:.2g}, allowed {finding.allowed:.2g}"
    )


def past_runs(history: Sequence[Results], this: Results) -> dict[str, tuple[PastRun, ...]]:
    """Return the last runs of each gate of a run, that run last, without gates that no earlier run has.

    All runs are judged, as in ``lmgate history``, and this one with the last 30 before it is returned. This run's
    record may already be in the history.
    """
    gates = {gate.id for gate in this.verdicts}
    earlier = [results for results in history if results.run.id != this.run.id and results.run.date <= this.run.date]
    return {
        track.id: tuple(map(_past_run, *(items[-EARLIER - 1 :] for items in (track.runs, track.gates, track.findings))))
        for track in tracks([*earlier, this])
        if track.id in gates and len(track.runs) > 1
    }


def _past_run(results: Results, gate: Verdict, finding: Finding) -> PastRun:
    return PastRun(
        date=results.run.date,
        commit=results.run.commit,
        branch=results.run.branch,
        verdict=gate.verdict,
        value=gate.value,
        interval=gate.interval,
        limit=gate.limit,
        kind=finding.kind,
        words=finding_words(gate, finding),
    )
