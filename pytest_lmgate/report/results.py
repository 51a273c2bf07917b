"""`Results`: what a session found, of which every report is made."""

from __future__ import annotations

__all__ = ["Results"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.measured import Measured

if TYPE_CHECKING:
    from pytest_lmgate.report.runs.past import PastRun


@dataclass(frozen=True)
class Results:
    """What a session found.

    Attributes:
        verdicts: In the order of the tests.
        problems: What fails the session although every test passed, such as a verdict that got lost.
        expected_to_fail: Ids of the gates whose tests are marked xfail.
        folder: Where pytest was called.
        measured: What fixtures measured.
        history: The last runs of each gate, this one last, by the gate's id; empty where none is kept.
    """

    verdicts: Sequence[Verdict]
    problems: Sequence[str] = ()
    expected_to_fail: frozenset[str] = frozenset()
    folder: Path = Path()
    measured: Sequence[Measured] = ()
    history: Mapping[str, Sequence[PastRun]] = field(default_factory=dict)

    def fails(self, verdict: Verdict) -> bool:
        """Return whether the build fails by a verdict."""
        return verdict.failed and verdict.id not in self.expected_to_fail

    def worst_first(self) -> list[Verdict]:
        """Return the verdicts: first those that fail the build, then those that are inconclusive, then all others."""

        def rank(verdict: Verdict) -> int:
            return 0 if self.fails(verdict) else 2 if verdict.verdict == "pass" else 1

        return sorted(self.verdicts, key=rank)
