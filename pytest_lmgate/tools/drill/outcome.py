"""What a drill found: the table of faults and gates, the smallest set of gates, and what gates promised."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.judge.verdict import smallest_seen
from pytest_lmgate.report.text import counted, table
from pytest_lmgate.stats.cover import redundant, smallest_cover
from pytest_lmgate.tools.drill.plan import Finding, Guard
from pytest_lmgate.tools.drill.planting import Fault


def damage(verdict: Verdict, healthy: Verdict) -> float | None:
    """Return how much worse a broken model is in the gate's unit; larger is worse. None if it has no value."""
    if verdict.comparison is not None:
        # The healthy model need not be equal to what the gate compares with.
        return verdict.comparison.degradation
    if verdict.value is None or healthy.value is None:
        return None
    return (verdict.value - healthy.value) * (1 if healthy.direction == "lower" else -1)


def in_unit(healthy: Verdict, size: float | None) -> str:
    """Return a damage in the gate's unit."""
    if size is None:
        return "-"
    is_relative = healthy.comparison is not None and healthy.comparison.tolerance.relative
    return f"{100 * size:+.3g}%" if is_relative else f"{size:+.3g}"


@dataclass(frozen=True)
class Report:
    """The findings of a drill, in words and as records."""

    guards: Sequence[Guard]
    findings: Sequence[Finding]
    seconds: Mapping[str, float]  # of each measurement without a fault, by address
    left_out: Sequence[Fault] = ()

    @property
    def faults(self) -> list[Fault]:
        """The faults that were planted in a model, in order."""
        tried = (finding.fault for finding in self.findings if finding.sight != "not tried")
        return list({fault.name: fault for fault in tried}.values())

    @property
    def not_tried(self) -> dict[str, str]:
        """The faults that no model has, with the reason."""
        tried = {fault.name for fault in self.faults}
        return {finding.fault.name: finding.reason for finding in self.findings if finding.fault.name not in tried}

    @property
    def caught(self) -> dict[str, list[str]]:
        """The faults that each gate catches."""
        return {
            guard.name: [
                found.fault.name for found in self.findings if found.guard is guard and found.sight == "caught"
            ]
            for guard in self.guards
        }

    def cost(self, names: Collection[str]) -> float:
        """Return the seconds of the measurements of gates, each measurement once."""
        addresses = {address for guard in self.guards if guard.name in names for address in guard.addresses}
        return sum(self.seconds.get(address, 0.0) for address in addresses)

    def finding(self, fault: Fault, guard: Guard) -> Finding:
        return next(found for found in self.findings if found.fault.name == fault.name and found.guard is guard)

    def cell(self, finding: Finding) -> str:
        """Return what a gate saw of a fault, in a few words: the weakest strength that it catches."""
        if finding.sight != "caught":
            return finding.sight
        verdict = finding.weakest
        shown = finding.fault.shown(finding.strength)
        return f"{shown} (error)" if verdict is not None and verdict.verdict == "error" else shown

    @property
    def answer(self) -> str:
        """The share of faults that the gates catch."""
        caught = {fault for faults in self.caught.values() for fault in faults}
        missed = [fault.name for fault in self.faults if fault.name not in caught]
        line = f"{len(caught)} of {counted(len(self.faults), 'fault')} caught"
        return f"{line}; no gate catches {', '.join(missed)}" if missed else line

    @property
    def sentences(self) -> list[str]:
        """What follows for the gates."""
        found, (chosen, is_exact) = [], smallest_cover(self.caught, self.cost)
        if chosen and len(chosen) < len(self.guards):
            how = "" if is_exact else ", by a greedy search"
            found.append(f"These catch the same in {self.cost(chosen):.3g} s{how}: {', '.join(chosen)}.")
        for name, other in redundant(self.caught, self.cost).items():
            why = f"{other} catches the same or more" if other else "it catches no fault"
            found.append(f"{name} adds nothing: {why}.")
        for guard in self.guards:
            if (unseen := self.unseen(guard)) is not None:
                finding, size = unseen
                found.append(
                    f"{guard.name} sees less than its verdict promised: it should see {self.promise(guard)}, but "
                    f"{finding.fault.name} with {in_unit(guard.healthy, size)} passed."
                )
        if self.left_out:
            found.append(f"No time for {', '.join(fault.name for fault in self.left_out)}.")
        found += [f"Not tried: {name}, because {reason}." for name, reason in self.not_tried.items()]
        return found

    def promise(self, guard: Guard) -> str:
        return in_unit(guard.healthy, smallest_seen(guard.healthy))

    def unseen(self, guard: Guard) -> tuple[Finding, float] | None:
        """Return the largest damage that a gate let pass although its verdict promised to see it."""
        least = smallest_seen(guard.healthy)
        passed = [
            (finding, size)
            for finding in self.findings
            if finding.guard is guard
            for trial in finding.trials
            if not trial.verdict.failed and (size := damage(trial.verdict, guard.healthy)) is not None
        ]
        passed = [(finding, size) for finding, size in passed if least is not None and size > least]
        return max(passed, key=lambda pair: pair[1], default=None)

    @property
    def header(self) -> tuple[str, ...]:
        return ("fault", *(str(index) for index, _ in enumerate(self.guards, 1)))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [
            (fault.name, *(self.cell(self.finding(fault, guard)) for guard in self.guards)) for fault in self.faults
        ]

    @property
    def sights(self) -> list[tuple[str, ...]]:
        """For each fault that a gate catches: the damage at the weakest strength, and what the verdict promised."""
        return [
            (
                finding.fault.name,
                str(index),
                finding.fault.shown(finding.strength),
                in_unit(guard.healthy, damage(finding.weakest, guard.healthy) if finding.weakest else None),
                self.promise(guard),
            )
            for fault in self.faults
            for index, guard in enumerate(self.guards, 1)
            if (finding := self.finding(fault, guard)).sight == "caught"
        ]

    def lines(self) -> list[str]:
        """Return the terminal's lines."""
        gates = [
            f"{index}  {guard.name}, {self.cost([guard.name]):.2g} s" for index, guard in enumerate(self.guards, 1)
        ]
        lines = ["caught from this strength on, by gate:", *table(self.header, self.rows, names=("fault",)), ""]
        lines += [*gates, "", f"{self.answer}."]
        if self.sights:
            lines += ["", "damage at that strength, and the smallest that the verdict promised to see:"]
            lines += table(("fault", "gate", "strength", "damage", "promised"), self.sights, names=("fault",))
        return [*lines, "", *self.sentences] if self.sentences else lines

    def data(self) -> dict[str, Any]:
        """Return the records."""
        chosen, is_exact = smallest_cover(self.caught, self.cost)
        return {
            "gates": [
                {
                    "gate": guard.name,
                    "value": guard.healthy.value,
                    "seconds": self.cost([guard.name]),
                    "promised": smallest_seen(guard.healthy),
                    "caught": self.caught[guard.name],
                }
                for guard in self.guards
            ],
            "findings": [
                {
                    "fault": finding.fault.name,
                    "gate": finding.guard.name,
                    "sight": finding.sight,
                    "level": finding.fault.levels[finding.strength - 1] if finding.strength else None,
                    "reason": finding.reason,
                    "trials": [
                        {
                            "level": finding.fault.levels[trial.strength - 1],
                            "verdict": trial.verdict.verdict,
                            "failed": trial.verdict.failed,
                            "value": trial.verdict.value,
                            "damage": damage(trial.verdict, finding.guard.healthy),
                            "message": trial.verdict.message,
                        }
                        for trial in finding.trials
                    ],
                }
                for finding in self.findings
            ],
            "smallest": {"gates": chosen, "seconds": self.cost(chosen), "exact": is_exact},
            "adds_nothing": redundant(self.caught, self.cost),
            "not_tried": self.not_tried,
            "left_out": [fault.name for fault in self.left_out],
        }
