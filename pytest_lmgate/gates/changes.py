"""Changes beyond noise: between two runs, and along a history, where false alarms add up to 5 %.

The distance of a value from the values before it is counted in standard errors of their difference. The noise of each
side reaches to the end of its 95 % interval that faces the other (Zou and Donner 2008, Statistics in Medicine 27(10),
1693-1702): 1.96 standard errors where clusters are many, and right for a share near 0 or 1 too. Values of one identity
are measured on the same data, so their noises mostly cancel. The rule takes them for independent and so sees less than
`no_regression`, which pairs rows: such a gate's own verdict counts, and the rule does not.
"""

from __future__ import annotations

__all__ = ["LEVEL", "Change", "Finding", "change_between", "find_changes", "significant"]

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_lmgate.gates.comparisons.holm import holm
from pytest_lmgate.gates.comparisons.paired import differences
from pytest_lmgate.gates.record import GateRecord
from pytest_lmgate.metrics.noise.student import normal_cdf, normal_quantile

LEVEL = 0.05
"""Chance of any false alarm, in the history of one gate or in one comparison of two runs."""
_OF_95 = normal_quantile(0.975)
# Beyond six digits two values differ by the order of adding, if at all.
_SAME = 1e-6


@dataclass(frozen=True)
class Change:
    """A value against values before it.

    Attributes:
        before: The mean of the values before.
        after: The value.
        errors: The distance in standard errors of the difference; infinite where there is no noise at all.
        p_value: Two-sided; 1 for equal values.
        worse: Whether the value is worse than the mean before.
    """

    before: float
    after: float
    errors: float
    p_value: float
    worse: bool


@dataclass(frozen=True)
class Finding:
    """What a run says of a gate, in the light of the runs before it.

    Attributes:
        kind: ``first`` of values that can be compared, ``same`` as before but for noise, ``worse`` or ``better`` beyond
            noise, or ``unknown`` where nothing can be said. A `no_regression` gate is ``worse`` where it begins to fail
            and ``better`` where it passes again.
        why: Of ``first`` what differs from the run before, and of ``unknown`` the reason.
        change: Against the level before, of ``same``, ``worse`` and ``better``; None of a `no_regression` gate.
        allowed: The p-value that would have been a change; 1 of an equal value, which is not tested.
    """

    kind: Literal["first", "same", "worse", "better", "unknown"]
    why: str = ""
    change: Change | None = None
    allowed: float = 1.0

    @property
    def is_change(self) -> bool:
        """Whether it is a change beyond noise."""
        return self.kind in ("worse", "better")


def change_between(level: Sequence[GateRecord], after: GateRecord) -> Change | None:
    """Compare a value with values before it; None where one has no value, only a bound, or no interval.

    The level before is the plain mean of its values; its squared noise is the mean of theirs over their number.

    Args:
        level: At least one record, no two of equal value: measured again on the same data, a value says nothing new.
        after: The record to judge, of the same identity.
    """
    return None if any(map(_unknown, (*level, after))) else _Level(level).change(after)


class _Level:
    """Values that do not differ beyond noise.

    Args:
        gates: At least one record of a known value and noise, all of one identity.
    """

    def __init__(self, gates: Sequence[GateRecord]) -> None:
        self.identity = gates[0].identity
        self._values: list[float] = []  # sorted
        self._arms: dict[bool, list[float]] = {True: [], False: []}  # upward and downward
        for gate in gates:
            self.add(gate)

    def add(self, gate: GateRecord) -> None:
        """Add a value."""
        assert gate.value is not None
        bisect.insort(self._values, gate.value)
        for upward, arms in self._arms.items():
            arms.append(_arm(gate, upward=upward))

    def has(self, value: float) -> bool:
        """Return whether a value is equal to one of these."""
        at = bisect.bisect(self._values, value)
        return any(math.isclose(value, other, rel_tol=_SAME) for other in self._values[max(at - 1, 0) : at + 1])

    def change(self, after: GateRecord) -> Change:
        """Compare a record of a known value and noise with these."""
        assert after.value is not None
        count = len(self._values)
        before = math.fsum(self._values) / count
        if math.isclose(after.value, before, rel_tol=_SAME):
            return Change(before, after.value, 0.0, 1.0, worse=False)
        rises = after.value > before
        error = math.hypot(_arm(after, upward=not rises), math.hypot(*self._arms[rises]) / count) / _OF_95
        errors = abs(after.value - before) / error if error else math.inf
        return Change(before, after.value, errors, 2 * normal_cdf(-errors), worse=rises == (after.direction == "lower"))


def significant(changes: Sequence[Change]) -> list[bool]:
    """Return which changes between two runs are beyond noise, with 5 % for a false alarm in all of them (Holm)."""
    return [p <= LEVEL for p in holm([change.p_value for change in changes])]


def find_changes(gates: Sequence[GateRecord]) -> list[Finding]:
    """Return what each run says of one gate.

    Each value is compared with the level: all runs since the last change, or since the data or the protocol changed.
    The j-th test of the history may be wrong with a chance of ``LEVEL / (j (j + 1))``. These add up to LEVEL however
    long the history grows, so a later run never takes a finding back. A value equal to one of its level is not tested.
    A run that compared the gate with a reference of its own is not tested either: its verdict says more.

    Args:
        gates: One gate's records, by date.
    """
    findings: list[Finding] = []
    level: _Level | None = None
    former: GateRecord | None = None  # the last that passed or failed
    tests = 0
    for gate in gates:
        if gate.comparison is not None:
            findings.append(_by_verdict(gate, former))
        if gate.verdict in ("pass", "fail"):
            former = gate
        if gate.comparison is not None:
            continue
        if reason := _unknown(gate):
            findings.append(Finding("unknown", reason))
            continue
        assert gate.value is not None
        if level is None or level.identity != gate.identity:
            why = "; ".join(differences(gate.identity, level.identity)) if level else ""
            findings.append(Finding("first", why))
            level = _Level([gate])
            continue
        found = level.change(gate)
        if level.has(gate.value):
            findings.append(Finding("same", change=found))
            continue
        tests += 1
        allowed = LEVEL / (tests * (tests + 1))
        if found.p_value <= allowed:
            findings.append(Finding("worse" if found.worse else "better", change=found, allowed=allowed))
            level = _Level([gate])
        else:
            findings.append(Finding("same", change=found, allowed=allowed))
            level.add(gate)
    return findings


def _by_verdict(gate: GateRecord, former: GateRecord | None) -> Finding:
    """Return what a gate's own verdict says, against that of the last run in which it passed or failed."""
    if former is not None and gate.verdict != former.verdict and gate.verdict in ("pass", "fail"):
        return Finding("worse" if gate.verdict == "fail" else "better")
    if former is None or gate.identity != former.identity:
        return Finding("first", "" if former is None else "; ".join(differences(gate.identity, former.identity)))
    return Finding("same")


def _unknown(gate: GateRecord) -> str:
    if gate.value is None:
        return "not measured"
    if gate.at_least:
        return "a lower bound only, as the measurement was stopped early"
    return "no interval, so its noise is not known" if gate.interval is None else ""


def _arm(gate: GateRecord, *, upward: bool) -> float:
    """Return how far the interval reaches from the value, infinite where its end is."""
    assert gate.value is not None
    assert gate.interval is not None
    end = gate.interval[1 if upward else 0]
    return math.inf if end is None else abs(end - gate.value)
