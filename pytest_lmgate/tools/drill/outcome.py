"""What a drill found: the table of faults and gates, the smallest set of gates, and what gates promised."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.report.page import rendered
from pytest_lmgate.report.text import counted, table
from pytest_lmgate.tools.drill.plan import DrilledGate, DrillFinding, by_reason, smallest_seen
from pytest_lmgate.tools.drill.planting import Fault, Kind

MOST_EXACT = 12
"""Gates up to which each set of them is looked at."""

Cost = Callable[[Collection[str]], float]
"""Returns what checks cost together, which may be less than their sum."""

_SHADES = {"inconclusive": "open", "never": "missed", "no effect": "missed", "not tried": "blank"}


def smallest_cover(found: Mapping[str, Collection[Hashable]], cost: Cost) -> tuple[list[str], bool]:
    """Return the cheapest checks that find all that any of them finds, and whether that is exact.

    Beyond `MOST_EXACT` checks it is the greedy cover: the next check is the one that costs the least for each new
    finding (Chvatal 1979, "A greedy heuristic for the set-covering problem", Mathematics of Operations Research 4(3)).
    """
    wanted = {finding for findings in found.values() for finding in findings}
    names = [name for name, findings in found.items() if findings]
    if len(names) <= MOST_EXACT:
        sets = [list(one) for size in range(len(names) + 1) for one in itertools.combinations(names, size)]
        covers = [one for one in sets if wanted.issubset(itertools.chain(*(found[name] for name in one)))]
        return min(covers, key=lambda one: (cost(one), len(one))), True
    chosen: list[str] = []
    while wanted:
        base = cost(chosen)
        worth = {
            name: ((cost([*chosen, name]) - base) / len(more), -len(more))
            for name in names
            if (more := wanted.intersection(found[name]))
        }
        chosen.append(min(worth, key=worth.__getitem__))
        wanted -= set(found[chosen[-1]])
    return chosen, False


def redundant(found: Mapping[str, Collection[Hashable]], cost: Cost) -> dict[str, str]:
    """Return the checks that find nothing which a cheaper one does not, with its name; empty for one without findings.

    Of two checks that find the same at the same cost, the first is kept.
    """
    rank = {name: (cost([name]), at) for at, name in enumerate(found)}
    better = {
        name: [other for other in found if rank[other] < rank[name] and set(findings) <= set(found[other])]
        for name, findings in found.items()
    }
    return {name: better[name][0] if found[name] else "" for name in found if better[name] or not found[name]}


def in_unit(healthy: Verdict, size: float | None) -> str:
    """Return a damage in the gate's unit."""
    if size is None:
        return "-"
    is_relative = healthy.comparison is not None and healthy.comparison.tolerance.relative
    return f"{100 * size:+.3g}%" if is_relative else f"{size:+.3g}"


@dataclass(frozen=True)
class Report:
    """The findings of a drill, in words and as records."""

    guards: Sequence[DrilledGate]
    findings: Sequence[DrillFinding]
    seconds: Mapping[str, float]  # of each measurement without a fault, by address
    left_out: Sequence[Fault] = ()
    suggestions: Sequence[tuple[str, list[str]]] = ()  # lines of YAML, with the faults that these gates catch

    @property
    def table(self) -> dict[str, list[DrillFinding]]:
        """The findings of each fault that was planted in a model, in the order of the gates; the faults by kind."""
        kinds, rows = get_args(Kind), dict[str, list[DrillFinding]]()
        for found in sorted(self.findings, key=lambda found: kinds.index(found.fault.kind)):
            rows.setdefault(found.fault.name, []).append(found)
        return {name: row for name, row in rows.items() if any(found.sight != "not tried" for found in row)}

    @property
    def not_tried(self) -> dict[str, str]:
        """The faults that no model has, with the reason."""
        tried = self.table
        return {found.fault.name: found.reason for found in self.findings if found.fault.name not in tried}

    @property
    def seen(self) -> dict[str, dict[tuple[str, int], None]]:
        """The faults that each gate catches at each strength: a gate that catches a weaker one adds something."""
        return {
            guard.name: {
                (found.fault.name, strength): None
                for found in self.findings
                if found.guard is guard and found.sight == "caught"
                for strength in range(found.strength, len(found.fault.levels) + 1)
            }
            for guard in self.guards
        }

    @property
    def smallest(self) -> tuple[list[str], bool]:
        """The cheapest gates that catch what any catches, and whether that is exact."""
        return smallest_cover(self.seen, self.cost)

    @property
    def redundant(self) -> dict[str, str]:
        """The gates that add nothing, with one that catches the same or more; empty for a gate that catches nothing."""
        return redundant(self.seen, self.cost)

    def cost(self, names: Collection[str]) -> float:
        """Return the seconds of the measurements of gates, each measurement once."""
        addresses = {address for guard in self.guards if guard.name in names for address in guard.addresses}
        return sum(self.seconds.get(address, 0.0) for address in addresses)

    @property
    def missed(self) -> list[Fault]:
        """The faults that no gate catches."""
        return [row[0].fault for row in self.table.values() if all(found.sight != "caught" for found in row)]

    @property
    def answer(self) -> str:
        """The share of faults that the gates catch."""
        count, missed = len(self.table), ", ".join(fault.name for fault in self.missed)
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
        found, (chosen, is_exact) = [], self.smallest
        if chosen and len(chosen) < len(self.guards):
            how = "" if is_exact else ", by a greedy search"
            found.append(f"These catch the same in {self.cost(chosen):.3g} s{how}: {', '.join(chosen)}.")
        for name, other in self.redundant.items():
            why = f"{other} catches the same or more" if other else "it catches no fault"
            found.append(f"{name} adds nothing{' for the faults that were tried' * bool(self.left_out)}: {why}.")
        for guard in self.guards:
            least, (size, fault) = smallest_seen(guard.healthy), self.passed(guard)
            if least is not None and size > least:
                promise, passed = in_unit(guard.healthy, least), in_unit(guard.healthy, size)
                found.append(
                    f"{guard.name} sees less than it promised: from {promise} on, but {fault} passed with {passed}."
                )
        if self.left_out:
            found.append(f"No time for {', '.join(fault.name for fault in self.left_out)}.")
        return found + [f"Not tried: {names}, because {why}." for why, names in by_reason(self.not_tried).items()]

    def passed(self, guard: DrilledGate) -> tuple[float, str]:
        """Return the largest damage that a gate let pass, and the name of the fault; none is smaller than any."""
        sizes = [
            (size, found.fault.name)
            for found in self.findings
            for strength, verdict in found.trials.items()
            if found.guard is guard and not verdict.failed and (size := found.damage_of(strength)) is not None
        ]
        return max(sizes, key=lambda pair: pair[0], default=(-math.inf, ""))

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
                found.fault.name,
                str(at),
                found.fault.shown(found.strength),
                *(in_unit(found.guard.healthy, size) for size in (found.damage_of(found.strength), found.promised)),
            )
            for row in self.table.values()
            for at, found in enumerate(row, 1)
            if found.sight == "caught"
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
        return [(row[0].fault, [self._cell(found) for found in row]) for row in self.table.values()]

    @staticmethod
    def _cell(found: DrillFinding) -> tuple[str, str]:
        if found.sight != "caught":
            return _SHADES[found.sight], found.sight
        is_error = found.trials[found.strength].verdict == "error"
        words = found.fault.shown(found.strength) + (" (error)" if is_error else "")
        return "early" if 2 * found.strength <= len(found.fault.levels) + 1 else "late", words

    def html(self) -> str:
        """Return the page."""
        return rendered("drill.html", report=self)

    def data(self) -> dict[str, Any]:
        """Return the records."""
        chosen, is_exact = self.smallest
        return {
            "gates": {
                guard.name: {
                    "value": guard.healthy.value,
                    "seconds": self.cost([guard.name]),
                    "promised": smallest_seen(guard.healthy),
                    "caught": list(dict.fromkeys(name for name, _ in self.seen[guard.name])),
                }
                for guard in self.guards
            },
            "findings": [found.data() for found in self.findings],
            "smallest": {"gates": chosen, "seconds": self.cost(chosen), "exact": is_exact},
            "adds_nothing": self.redundant,
            "suggestions": dict(self.suggestions),
            "left_out": [fault.name for fault in self.left_out],
        }
