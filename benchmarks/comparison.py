"""Contestants side by side: interleaved rounds, medians of ratios within a round, and a table with what is required.

A machine whose speed drifts (other work, heat) slows the contestants of one round alike, so a ratio within a round
says more than a ratio of two best times.
"""

from __future__ import annotations

__all__ = ["Rounds", "Row", "arguments", "exit_status", "machine", "print_rows", "run_rounds"]

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# A run counts as undisturbed where other processes took at most this many processors on average.
_QUIET = 0.1
# A run of so many seconds is told at once, so that a comparison that takes an hour shows how far it is.
_LONG = 20


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: What was measured.
        value: Its value, as shown.
        required: What is required of it, as shown; empty where nothing is.
        holds: Whether it does; true where nothing is required.
        note: Anything to add.
    """

    what: str
    value: str
    required: str = ""
    holds: bool = True
    note: str = ""


@dataclass(frozen=True)
class Rounds:
    """Seconds of each contestant, by name, one per round, and how busy other processes kept the machine meanwhile."""

    seconds: Mapping[str, Sequence[float]]
    others: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        """Median time of a contestant, over undisturbed rounds where there are any."""
        quiet = [number for number in range(len(self.seconds[name])) if self._quiet(number, name)]
        return statistics.median(self.seconds[name][number] for number in quiet or range(len(self.seconds[name])))

    def ratio(self, above: str, below: str) -> float:
        """Median of one contestant's time divided by another's in the same round, over undisturbed rounds."""
        both = range(min(len(self.seconds[above]), len(self.seconds[below])))
        quiet = [number for number in both if self._quiet(number, above, below)]
        return statistics.median(self.seconds[above][n] / self.seconds[below][n] for n in quiet or both)

    @property
    def note(self) -> str:
        """How many runs other processes disturbed."""
        every = [(number, name) for name in self.seconds for number in range(len(self.seconds[name]))]
        disturbed = sum(not self._quiet(*run) for run in every)
        return f"other processes disturbed {disturbed} of {len(every)} runs" if disturbed else "no run was disturbed"

    def _quiet(self, number: int, *names: str) -> bool:
        return all(self.others[name][number] <= _QUIET for name in names)


def run_rounds(
    contestants: Mapping[str, Callable[[], object]], rounds: int, *, at_most: Mapping[str, int] | None = None
) -> Rounds:
    """Time every contestant once per round: A B C A B C ...

    Args:
        contestants: What to run, by name.
        rounds: How many rounds.
        at_most: For slow contestants: in how many of the first rounds to run them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    others: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, run in contestants.items():
            if number >= (at_most or {}).get(name, rounds):
                continue
            begun, all_before, own_before = time.perf_counter(), _machine_seconds(), _own_seconds()
            run()
            seconds[name].append(time.perf_counter() - begun)
            foreign = (_machine_seconds() - all_before) - (_own_seconds() - own_before)
            others[name].append(foreign / seconds[name][-1])
            if seconds[name][-1] >= _LONG:
                print(f"round {number + 1} of {rounds}, {name}: {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
    return Rounds(seconds, others)


def print_rows(title: str, rows: Sequence[Row]) -> bool:
    """Print a table; return whether everything required holds."""
    widths = [max(len(getattr(row, column)) for row in rows) for column in ("what", "value", "required")]
    widths[2] = max(widths[2], len("required"))
    print(f"\n{title}")
    print(f"  {'':{widths[0]}}  {'':>{widths[1]}}  {'required':{widths[2]}}")
    for row in rows:
        verdict = ("ok" if row.holds else "BROKEN") if row.required else ""
        line = (
            f"  {row.what:{widths[0]}}  {row.value:>{widths[1]}}  {row.required:{widths[2]}}  {verdict:6}  {row.note}"
        )
        print(line.rstrip())
    sys.stdout.flush()
    return all(row.holds for row in rows)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that the comparisons share: --threads and --no-check.

    Args:
        doc: The docstring of the program.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-check", action="store_true", help="only print; always exit 0")
    return parser


def exit_status(args: argparse.Namespace, compare: Callable[[], bool]) -> int:
    """Compare with so many threads, say on what machine, and return what the program exits with.

    Args:
        args: Read by the parser of `arguments`.
        compare: Returns whether everything required holds; it imports torch, which reads the number of threads then.
    """
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    print(machine(args.threads))
    holds = compare()
    print(f"\nafterwards: {machine(args.threads)}")
    return 0 if holds or args.no_check else 1


def machine(threads: int) -> str:
    """Say what the figures were measured on, and whether it was busy."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = "; BUSY: figures will be blurred" if load > 0.5 else ""
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, {threads} threads used, "
        f"Python {platform.python_version()}, load average {load:.1f}{busy}"
    )


def _machine_seconds() -> float:
    """Processor time that the whole machine has spent at work; on Linux, elsewhere 0, which calls every run quiet."""
    try:
        user, nice, system, _, _, irq, soft, steal = Path("/proc/stat").read_text().split()[1:9]
    except (OSError, ValueError):
        return 0.0
    return sum(map(int, (user, nice, system, irq, soft, steal))) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])
