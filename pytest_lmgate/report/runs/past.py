"""`PastRun`: what earlier runs said of a gate, and this one; for the page and the JSON report, bounded in number."""

from __future__ import annotations

__all__ = ["EARLIER", "PastRun", "past_runs"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_lmgate.gates.record import RunRecord
from pytest_lmgate.gates.verdict import Outcome
from pytest_lmgate.report.runs.history import finding_words, tracks

EARLIER = 30
"""How many runs before this one are told."""


@dataclass(frozen=True)
class PastRun:
    """A gate in one run; names as in `RunRecord` and `GateRecord`.

    Attributes:
        kind: What the run says in the light of all runs before it; see `Finding`.
        words: Of a change beyond noise how large it is, else why the value begins anew or cannot be judged.
    """

    date: str
    commit: str
    branch: str
    verdict: Outcome
    value: float | None
    interval: tuple[float | None, float | None] | None
    limit: float | None
    kind: Literal["first", "same", "worse", "better", "unknown"]
    words: str = ""


def past_runs(history: Sequence[RunRecord], this: RunRecord) -> Mapping[str, Sequence[PastRun]]:
    """Return the last runs of each gate of a run, that run last; a gate that no earlier run has is left out.

    All runs are judged, as ``lmgate history`` does it, and the last 30 before this one are returned. This run's record
    may be in the history already.
    """
    asked = {gate.id for gate in this.gates}
    earlier = [run for run in history if run.run != this.run and run.date <= this.date]
    found = {}
    for track in tracks([*earlier, this]):
        if track.id not in asked or len(track.runs) < 2:
            continue
        told = list(zip(track.runs, track.gates, track.findings, strict=True))[-EARLIER - 1 :]
        found[track.id] = [
            PastRun(
                date=run.date,
                commit=run.commit,
                branch=run.branch,
                verdict=gate.verdict,
                value=gate.value,
                interval=gate.interval,
                limit=gate.limit,
                kind=finding.kind,
                words=finding_words(gate, finding),
            )
            for run, gate, finding in told
        ]
    return found
