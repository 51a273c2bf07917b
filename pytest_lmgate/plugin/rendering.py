"""What the controller does with verdicts at the end: Holm's correction, the terminal's table and the report files."""

from __future__ import annotations

__all__ = ["corrected", "not_kept_note", "show_summary", "write_reports"]

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from pytest_lmgate.cache.files import write_durably
from pytest_lmgate.gates.holm import correct_verdicts
from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.plugin import options
from pytest_lmgate.report.excerpt import printable
from pytest_lmgate.report.json_file import json_report
from pytest_lmgate.report.table import summary_lines

_COLOURS = {"pass": {"green": True}, "fail": {"red": True}, "error": {"red": True}, "inconclusive": {"yellow": True}}
_TYPES = {"json": json_report}


def corrected(
    verdicts: Sequence[str], config: pytest.Config, expected_to_fail: Collection[str]
) -> tuple[list[Verdict], list[str], list[str]]:
    """Decode verdicts, and with ``--lmgate-holm`` correct those of the no_regression gates for how many they are.

    Args:
        verdicts: In JSON.
        config: The pytest config.
        expected_to_fail: Gates of xfail tests, by id: none of them fails the session.

    Returns:
        The verdicts, what to say of them, and what fails the session although its test passed: in strict mode a gate
        that is inconclusive only by the correction.
    """
    decoded = [Verdict.from_json(text) for text in verdicts]
    if not options.flag(config, "holm"):
        return decoded, [], []
    strict = options.flag(config, "strict")
    after = correct_verdicts(decoded, strict=strict)
    problems = [
        f"{new.id}: inconclusive after Holm's correction, which --lmgate-strict does not let pass"
        for old, new in zip(decoded, after, strict=True)
        if new.failed and not old.failed and new.id not in expected_to_fail
    ]
    tested = [verdict for verdict in after if verdict.change is not None and verdict.change.p_pass is not None]
    turned = sum(verdict.change is not None and verdict.change.corrected for verdict in after)
    note = (
        f"Holm: verdicts hold for {len(tested)} no_regression gates together; {turned} inconclusive by the correction"
    )
    return after, [note] * bool(tested), problems


def not_kept_note(reasons: Mapping[str, str]) -> str:
    """Say in one line which models are measured again in each session, why, and how to keep their measurements."""
    named = [f"{model} ({reason})" for model, reason in sorted(reasons.items())]
    more = f" and {len(named) - 2} more" if len(named) > 2 else ""
    return (
        f"not kept, measured again in each session: {', '.join(named[:2])}{more}; to keep the measurements, give the "
        'model a revision that you change with its code: lmgate.model(..., revision="1"), or revision: in lmgate.yaml'
    )


def show_summary(
    terminal: pytest.TerminalReporter, verdicts: Sequence[Verdict], notes: Sequence[str], problems: Sequence[str]
) -> None:
    """Print one line per gate, what the cache said where asked, and what else fails the session."""
    terminal.write_sep("=", "lmgate")  # unlike section(), it ends the line of dots first
    if verdicts:
        for outcome, line in summary_lines(verdicts):
            terminal.write_line(printable(line), **_COLOURS.get(outcome, {}))
    for verdict in verdicts:
        if verdict.cache:
            terminal.write_line(printable(f"cache {verdict.id}: {verdict.cache}"))
    for note in notes:
        terminal.write_line(printable(note))
    for problem in problems:
        terminal.write_line(printable(f"ERROR: {problem}"), red=True)


def write_reports(verdicts: Sequence[Verdict], reports: Sequence[tuple[str, str]], config: pytest.Config) -> list[str]:
    """Write each report, given by type and destination, which is relative to where pytest was called.

    Returns:
        What could not be written, and why: the session must still show its verdicts.
    """
    problems = []
    for kind, destination in reports:
        try:
            path = config.invocation_params.dir / Path(destination).expanduser()
            _write(path, _TYPES[kind](verdicts).encode())
        except (OSError, RuntimeError) as error:  # RuntimeError: a home that nobody has
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
