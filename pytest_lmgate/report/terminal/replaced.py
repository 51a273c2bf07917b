"""What an update of the baseline replaced: of each gate old -> new, and the verdict by the old entry.

An update judges nothing, so these lines are all that tells a person that it accepted a worse model.
"""

from __future__ import annotations

__all__ = ["replaced_lines"]

from collections.abc import Sequence

from pytest_lmgate.gates.verdict import Former, Verdict
from pytest_lmgate.metrics.score import distinct
from pytest_lmgate.report.wording.numbers import number, size, tolerance


def replaced_lines(verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    """Return a line for each gate whose entry was measured anew, with the outcome it is coloured by."""
    return [
        (outcome, f"baseline of {verdict.id}: {text}")
        for verdict in verdicts
        if verdict.former is not None and verdict.value is not None
        for outcome, text in [_line(verdict.value, verdict.former, verdict.metric)]
    ]


def _line(value: float, former: Former, metric: str) -> tuple[str, str]:
    if former.value is None:
        return "", f"new, {number(value)}"
    old, new = distinct(former.value, value)
    found = former.comparison
    if found is None:
        return "inconclusive", f"{old} -> {new}: {former.problem}"
    if found.degradation == 0:
        return "", f"{new}, unchanged{', measured elsewhere' * bool(found.notes)}"
    fails = found.fails_build()
    worse = ("WORSE" if fails else "worse") if found.degradation > 0 else "better"
    change = f"{old} -> {new}, {size(found, abs(found.degradation))} {worse}"
    outcome = "fail" if fails else found.decision
    allowed = tolerance(found, metric)
    return outcome, f"{change}: by the old baseline {found.decision.upper()} at a tolerance of {allowed}"
