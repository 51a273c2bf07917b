"""What the controller does with verdicts at the end: the terminal's table and the report files."""

from __future__ import annotations

__all__ = ["show_summary", "write_reports"]

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_lmgate.cache.files import write_durably
from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.json_file import json_report
from pytest_lmgate.report.table import summary_lines

_COLOURS = {"pass": {"green": True}, "fail": {"red": True}, "error": {"red": True}, "inconclusive": {"yellow": True}}
_TYPES = {"json": json_report}


def show_summary(terminal: pytest.TerminalReporter, verdicts: Sequence[str], problems: Sequence[str]) -> None:
    """Print one line per gate, what the cache said where asked, and what else fails the session."""
    terminal.section("lmgate", sep="=")
    decoded = [Verdict.from_json(text) for text in verdicts]
    if decoded:
        for outcome, line in summary_lines(decoded):
            terminal.write_line(line, **_COLOURS.get(outcome, {}))
    for verdict in decoded:
        if verdict.cache:
            terminal.write_line(f"cache {verdict.id}: {verdict.cache}")
    for problem in problems:
        terminal.write_line(f"ERROR: {problem}", red=True)


def write_reports(verdicts: Sequence[str], reports: Sequence[tuple[str, str]], config: pytest.Config) -> list[str]:
    """Write each report, given by type and destination, which is relative to where pytest was called.

    Returns:
        What could not be written, and why: the session must still show its verdicts.
    """
    decoded = [Verdict.from_json(text) for text in verdicts]
    problems = []
    for kind, destination in reports:
        path = config.invocation_params.dir / Path(destination)
        try:
            _write(path, _TYPES[kind](decoded).encode())
        except OSError as error:
            problems.append(f"--lmgate-report {kind}:{destination}: cannot be written: {error}")
    return problems


def _write(path: Path, data: bytes) -> None:
    """Write a file whole; what is a link, a pipe or a device is written to, never replaced by a file."""
    if path.is_relative_to("/dev"):
        with path.open("ab") as file:  # /dev/stdout may be a file, with pytest's own output in it
            file.write(data)
    elif path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(data)
    else:
        write_durably(path, data)
