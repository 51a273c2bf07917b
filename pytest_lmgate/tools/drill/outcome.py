"""What a drill found: the table of faults and gates, the smallest set of gates, and what gates promised."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.report.page import rendered
from pytest_lmgate.report.text import counted, table
from pytest_lmgate.tools.drill.cover import redundant, smallest_cover
from pytest_lmgate.tools.drill.plan import Finding, Guard
from pytest_lmgate.tools.drill.planting import Fault, Kind
from pytest_lmgate.tools.drill.promise import smallest_seen


def in_unit(healthy: Verdict, size: float | None) -> str:
    """Return a damage in the gate's unit."""
    if size is None:
        return "-"
    is_relative = healthy.comparison is not None and healthy.comparison.tolerance.relative
    return f"{100 * size:+.3g}%" if is_relative else f"{size:+.3g}"


_SHADES = {"inconclusive": "open", "never": "missed", "no effect": "missed", "not tried": "blank"}


@dataclass(frozen=True)
class Report:
    """The findings of a drill, in words and as records."""

    guards: Sequence[Guard]
    findings: Sequence[Finding]
    seconds: Mapping[str, float]  # of each measurement without a fault, by address
    left_out: Sequence[Fault] = ()
    suggestions: Sequence[tuple[str, list[str]]] = ()  # lines of YAML, with the faults that these gates catch

    @property
    def faults(self) -> list[Fault]:
        """The faults that were planted in a model, by kind."""
        tried = {finding.fault.name: finding.fault for finding in self.findings if finding.sight != "not tried"}
        return sorted(tried.values(), key=lambda fault: get_args(Kind).index(fault.kind))

    @property
    def not_tried(self) -> dict[str, str]:
        """The faults that no model has, with the reason."""
        tried = {fault.name for fault in self.faults}
        return {finding.fault.name: finding.reason for finding in self.findings if finding.fault.name not in tried}

    @property
    def caught(self) -> dict[str, list[str]]:
        """The faults that each gate catches."""
        caught = [finding for finding in self.findings if finding.sight == "caught"]
        return {guard.name: [one.fault.name for one in caught if one.guard is guard] for guard in self.guards}

    @property
    def seen(self) -> dict[str, set[tuple[str, int]]]:
        """The faults that each gate catches at each strength: a gate that catches a weaker one adds something."""
        return {
            guard.name: {
                (found.fault.name, strength)
                for found in self.findings
                if found.guard is guard and found.sight == "caught"
                for strength in range(found.strength, len(found.fault.levels) + 1)
            }
            for guard in self.guards
        }

    def cost(self, names: Collection[str]) -> float:
        """Return the seconds of the measurements of gates, each measurement once."""
        addresses = {address for guard in self.guards if guard.name in names for address in guard.addresses}
        return sum(self.seconds.get(address, 0.0) for address in addresses)

    def finding(self, fault: Fault, guard: Guard) -> Finding:
        return next(found for found in self.findings if found.fault.name == fault.name and found.guard is guard)

    @property
    def missed(self) -> list[Fault]:
        """The faults that no gate catches."""
        caught = {name for names in self.caught.values() for name in names}
        return [fault for fault in self.faults if fault.name not in caught]

    @property
    def answer(self) -> str:
        """The share of faults that the gates catch."""
        count, missed = len(self.faults), ", ".join(fault.name for fault in self.missed)
        line = f"{count - len(self.missed)} of {counted(count, 'fault')} caught"
        return f"{line}; no gate catches {missed}" if missed else line

    @property
    def yaml(self) -> str:
        """The gates that would catch what passes, as lines of lmgate.yaml; empty without any."""
        return "".join(f"  # catches {', '.join(caught)}\n  {line}\n" for line, caught in self.suggestions)

    wanting = "Gates that would catch more, tried on the same broken models"

    @property
    def sentences(self) -> list[str]:
        """What follows for the gates."""
        found, (chosen, is_exact) = [], smallest_cover(self.seen, self.cost)
        if chosen and len(chosen) < len(self.guards):
            how = "" if is_exact else ", by a greedy search"
            found.append(f"These catch the same in {self.cost(chosen):.3g} s{how}: {', '.join(chosen)}.")
        for name, other in redundant(self.seen, self.cost).items():
            why = f"{other} catches the same or more" if other else "it catches no fault"
            found.append(f"{name} adds nothing: {why}.")
        for guard in self.guards:
            if (unseen := self.unseen(guard)) is not None:
                name, passed = unseen[0].fault.name, in_unit(guard.healthy, unseen[1])
                promise = in_unit(guard.healthy, smallest_seen(guard.healthy))
                found.append(
                    f"{guard.name} sees less than it promised: from {promise} on, but {name} passed with {passed}."
                )
        if self.left_out:
            found.append(f"No time for {', '.join(fault.name for fault in self.left_out)}.")
        found += [f"Not tried: {name}, because {reason}." for name, reason in self.not_tried.items()]
        return found

    @staticmethod
    def promised(finding: Finding) -> float | None:
        """Return the smallest damage that a verdict says to find: that of the unbroken model, if it knows its noise."""
        healthy, verdict = smallest_seen(finding.guard.healthy), finding.trials.get(finding.strength)
        return healthy if healthy is not None or verdict is None else smallest_seen(verdict)

    def unseen(self, guard: Guard) -> tuple[Finding, float] | None:
        """Return the largest damage that a gate let pass although its verdict promised to see it."""
        least = smallest_seen(guard.healthy)
        passed = [
            (found, size)
            for found in self.findings
            for strength, verdict in found.trials.items()
            if found.guard is guard and not verdict.failed and (size := found.damage_of(strength)) is not None
        ]
        worst = max(passed, key=lambda pair: pair[1], default=None)
        return worst if worst is not None and least is not None and worst[1] > least else None

    @property
    def header(self) -> tuple[str, ...]:
        return ("fault", *(str(at) for at, _ in enumerate(self.guards, 1)))

    @property
    def gates(self) -> list[str]:
        """The gates by the numbers that the header has, with the seconds of their measurements."""
        return [f"{at}  {guard.name}, {self.cost([guard.name]):.2g} s" for at, guard in enumerate(self.guards, 1)]

    promises = "damage at that strength, and the smallest that the verdict promised to see"
    sight_header = ("fault", "gate", "strength", "damage", "promised")

    @property
    def sights(self) -> list[tuple[str, ...]]:
        """For each fault that a gate catches: the damage at the weakest strength, and what the verdict promised."""
        return [
            (
                fault.name,
                str(at),
                fault.shown(found.strength),
                in_unit(guard.healthy, found.damage_of(found.strength)),
                in_unit(guard.healthy, self.promised(found)),
            )
            for fault in self.faults
            for at, guard in enumerate(self.guards, 1)
            if (found := self.finding(fault, guard)).sight == "caught"
        ]

    def lines(self) -> list[str]:
        """Return the terminal's lines."""
        rows = [(fault.name, *(text for _, text in cells)) for fault, cells in self.picture()]
        lines = ["caught from this strength on, by gate:", *table(self.header, rows, names=("fault",)), "", *self.gates]
        lines += ["", f"{self.answer}."]
        if self.sights:
            lines += ["", f"{self.promises}:", *table(self.sight_header, self.sights, names=("fault",))]
        lines += ["", *self.sentences] if self.sentences else []
        return [*lines, "", f"{self.wanting}:", "gates:", self.yaml.rstrip()] if self.yaml else lines

    def picture(self) -> list[tuple[Fault, list[tuple[str, str]]]]:
        """Return for each fault the shade and the words of its cells, a gate each."""
        return [(fault, [self._cell(self.finding(fault, guard)) for guard in self.guards]) for fault in self.faults]

    @staticmethod
    def _cell(finding: Finding) -> tuple[str, str]:
        if finding.sight != "caught":
            return _SHADES[finding.sight], finding.sight
        is_error = finding.trials[finding.strength].verdict == "error"
        words = finding.fault.shown(finding.strength) + (" (error)" if is_error else "")
        return "early" if 2 * finding.strength <= len(finding.fault.levels) + 1 else "late", words

    def html(self) -> str:
        """Return the page."""
        return rendered("drill.html", report=self)

    def data(self) -> dict[str, Any]:
        """Return the records."""
        chosen, is_exact = smallest_cover(self.seen, self.cost)
        return {
            "gates": {
                guard.name: {
                    "value": guard.healthy.value,
                    "seconds": self.cost([guard.name]),
                    "promised": smallest_seen(guard.healthy),
                    "caught": self.caught[guard.name],
                }
                for guard in self.guards
            },
            "findings": [self._record(finding) for finding in self.findings],
            "smallest": {"gates": chosen, "seconds": self.cost(chosen), "exact": is_exact},
            "adds_nothing": redundant(self.seen, self.cost),
            "suggestions": dict(self.suggestions),
            "left_out": [fault.name for fault in self.left_out],
        }

    @staticmethod
    def _record(found: Finding) -> dict[str, Any]:
        levels = (None, *found.fault.levels)
        trials = [
            {"level": levels[strength], "damage": found.damage_of(strength), "failed": verdict.failed}
            | {name: getattr(verdict, name) for name in ("verdict", "value", "message")}
            for strength, verdict in found.trials.items()
        ]
        names = {"fault": found.fault.name, "gate": found.guard.name, "sight": found.sight, "reason": found.reason}
        return {**names, "level": levels[found.strength], "promised": Report.promised(found), "trials": trials}
