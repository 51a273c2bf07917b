"""`Results`: what a session found, of which every report is made, and the `Run` that found it."""

from __future__ import annotations

__all__ = ["Results", "Run"]

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.identity.libraries import versions
from pytest_lmgate.report.measured import Measured

if TYPE_CHECKING:
    from pytest_lmgate.report.runs.past import PastRun

_PACKAGES = ("pytest-lmgate", "pytest", "torch", "transformers", "tokenizers", "numpy")


def _environment() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "packages": versions(_PACKAGES),
    }


@dataclass(frozen=True)
class Run:
    """The call of pytest; a text is empty where it is not known, as all are in reports of earlier versions.

    Attributes:
        project: As in ``owner/name``.
        commit: With ``+`` where tracked files were changed.
        date: When the session ended, ISO 8601 in UTC.
        device: Where the models ran, as in ``cuda``; `hardware` is its name.
        command: Without passwords.
        environment: Versions and the platform.
    """

    project: str = ""
    commit: str = ""
    branch: str = ""
    date: str = ""
    device: str = ""
    hardware: str = ""
    command: str = ""
    environment: Mapping[str, Any] = field(default_factory=_environment)


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
        run: Which run it was.
    """

    verdicts: Sequence[Verdict]
    problems: Sequence[str] = ()
    expected_to_fail: frozenset[str] = frozenset()
    folder: Path = Path()
    measured: Sequence[Measured] = ()
    history: Mapping[str, Sequence[PastRun]] = field(default_factory=dict)
    run: Run = field(default_factory=Run)

    def outcome(self, verdict: Verdict) -> str:
        """Return what a verdict counts as: itself, or ``xfail`` where it failed and its test is marked so."""
        return "xfail" if verdict.failed and not self.fails(verdict) else verdict.verdict

    def fails(self, verdict: Verdict) -> bool:
        """Return whether the build fails by a verdict."""
        return verdict.failed and verdict.id not in self.expected_to_fail

    def worst_first(self) -> list[Verdict]:
        """Return the verdicts: first those that fail the build, then those that are inconclusive, then all others."""

        def rank(verdict: Verdict) -> int:
            return 0 if self.fails(verdict) else 2 if verdict.verdict == "pass" else 1

        return sorted(self.verdicts, key=rank)
