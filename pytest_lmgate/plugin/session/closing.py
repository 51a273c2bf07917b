"""The end of a session, in the controller: lost verdicts, the baseline file, the summary and the report files."""

from __future__ import annotations

__all__ = ["Closing", "close", "print_reports", "show_summary"]

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.collection.selection import asks_for_all, passed, was_stopped
from pytest_lmgate.plugin.session.ledger import Ledger
from pytest_lmgate.plugin.session.verifying import Verifications
from pytest_lmgate.plugin.updates import update

if TYPE_CHECKING:
    from pytest_lmgate.gates.verdict import Verdict
    from pytest_lmgate.report.measured import Measured
    from pytest_lmgate.report.results import Run
    from pytest_lmgate.report.runs.past import PastRun

_COLOURS = {
    "pass": {"green": True},
    "fail": {"red": True},
    "error": {"red": True},
    "inconclusive": {"yellow": True},
    "xfail": {"yellow": True},
}


@dataclass
class Closing:
    """What the summary shows, and what is printed after it.

    Attributes:
        verdicts: Of all gates.
        measured: What fixtures measured.
        told: Of these, what the summary shows: those of tests that failed, or with ``-v`` all.
        notes: What else there is to say.
        problems: What fails the session although every test passed.
        printed: Reports for stdout.
        expected_to_fail: Ids of gates of tests that are marked xfail.
    """

    verdicts: Sequence[Verdict] = ()
    measured: Sequence[Measured] = ()
    told: Sequence[Measured] = ()
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    expected_to_fail: frozenset[str] = frozenset()

    @property
    def is_shown(self) -> bool:
        """Whether there is anything to show."""
        return any([self.verdicts, self.told, self.notes, self.problems])


def close(ledger: Ledger, verifications: Verifications, session: pytest.Session, *, run: str, broke: str) -> Closing:
    """Find what was lost or broke, write the baseline and the reports. Sessions without gates import nothing."""
    config, closing = session.config, Closing(problems=list(verifications.problems))
    closing.expected_to_fail = frozenset(ledger.expected_to_fail)
    if broke and passed(session):
        closing.problems.append(f"{broke}: the session fails")
    # A session that was stopped (-x, ctrl-c) fails already, and has tests that were not meant to run.
    if (passed(session) or not was_stopped(session)) and not config.getoption("setuponly", False):
        closing.problems += [f"{discrepancy}: the session fails" for discrepancy in ledger.discrepancies()]
    if received := ledger.verdicts():
        from pytest_lmgate.gates.verdict import Verdict

        closing.verdicts = [Verdict.from_json(text) for text in received]
    _keep_baseline(closing, ledger, session)
    if closing.verdicts and options.flag(config, "holm"):
        from pytest_lmgate.judge.family import corrected

        closing.verdicts, notes, blocked = corrected(
            closing.verdicts, strict=options.flag(config, "strict"), expected_to_fail=closing.expected_to_fail
        )
        closing.notes += notes
        closing.problems += blocked
    closing.notes += [*ledger.remarks, *filter(None, [verifications.note]), *ledger.left_out]
    if ledger.not_kept:
        from pytest_lmgate.report.terminal.summary import not_kept_note

        closing.notes.append(not_kept_note(ledger.not_kept))
    if ledger.measured:
        from pytest_lmgate.report.measured import Measured

        measured = {test: [Measured(**each) for each in found] for test, found in ledger.measured.items()}
        told = [test for test in measured if config.option.verbose > 0 or ledger.did_fail(test)]
        closing.told = [each for test in told for each in measured[test]]
        closing.measured = [each for found in measured.values() for each in found]
    reports = options.reports(config)
    is_shown = any(kind in ("json", "html") for kind, _ in reports)
    past = _keep_history(closing, ledger, session, run, is_shown=is_shown)
    if reports:
        from pytest_lmgate.report.formats.table import write_reports
        from pytest_lmgate.report.results import Results

        expected, here = closing.expected_to_fail, config.invocation_params.dir
        this = _this_run(config, closing.verdicts)
        results = Results(closing.verdicts, tuple(closing.problems), expected, here, closing.measured, past, this)
        write_reports(results, reports, closing.printed, closing.problems)
    return closing


def show_summary(terminal: pytest.TerminalReporter, closing: Closing) -> None:
    """Print one line per gate, what the cache said where asked, and what else fails the session."""
    from pytest_lmgate.report.wording.excerpt import printable

    heading, lines = "lmgate", list[tuple[str, str]]()
    if closing.verdicts or closing.measured:
        from pytest_lmgate.report.measured import measured_line
        from pytest_lmgate.report.terminal.replaced import replaced_lines
        from pytest_lmgate.report.terminal.summary import summary_lines, title

        heading = title(closing.verdicts, closing.measured)
        lines += summary_lines(closing.verdicts, closing.expected_to_fail) if closing.verdicts else []
        lines += [("", f"cache {verdict.id}: {verdict.cache}") for verdict in closing.verdicts if verdict.cache]
        lines += [("", measured_line(found)) for found in closing.told]
        lines += replaced_lines(closing.verdicts)
    terminal.write_sep("=", heading)  # unlike section(), it ends the line of dots first
    for outcome, line in lines:
        terminal.write_line(printable(line), **_COLOURS.get(outcome, {}))
    for note in closing.notes:
        terminal.write_line(printable(note))
    for problem in closing.problems:
        terminal.write_line(printable(f"ERROR: {problem}"), red=True)


def print_reports(config: pytest.Config, closing: Closing) -> None:
    """Print the reports for stdout, each from the beginning of a line."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    for text in closing.printed:
        if terminal is None:
            sys.stdout.write(text)
        else:
            terminal.ensure_newline()
            terminal.write(text, flush=True)


def _this_run(config: pytest.Config, verdicts: Sequence[Verdict]) -> Run:
    from pytest_lmgate.judge.provenance import provenance
    from pytest_lmgate.judge.repository import branch, project
    from pytest_lmgate.report.results import Run

    # An accelerator comes first: its name says more than the processor's.
    devices = sorted({verdict.device for verdict in verdicts} - {""}, key=lambda device: (device == "cpu", device))
    made = provenance(config.rootpath, next(iter(devices), ""))
    return Run(
        project=project(config.rootpath),
        commit=made.commit,
        branch=branch(config.rootpath),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        device=", ".join(devices),
        hardware=made.hardware,
        command=_command(config.invocation_params.args),
    )


def _command(arguments: Iterable[str]) -> str:
    """Return the call without what may be secret: user, password and query of an address, the value of ``--token``."""
    from pytest_lmgate.errors import harmless_line

    given = ["pytest", *arguments]
    given = [re.sub(r"(\w://[^\s?]*)\?\S*", r"\1?***", harmless_line(str(each))) for each in given]
    secret = r"(?i)(\0--?[\w-]*(?:token|key|secret|password)(?:=|\0(?!-)))[^\0]*"
    return shlex.join(re.sub(secret, r"\1***", "\0".join(given)).split("\0"))


def _keep_history(
    closing: Closing, ledger: Ledger, session: pytest.Session, run: str, *, is_shown: bool
) -> Mapping[str, Sequence[PastRun]]:
    """Write the run's record, and return what earlier runs and this one say of each gate, where that is shown."""
    config = session.config
    history = options.history(config) if closing.verdicts else None
    if history is None:
        return {}
    from pytest_lmgate.cache.remote import Address, is_from_fork
    from pytest_lmgate.errors import RecordError
    from pytest_lmgate.judge.history import append_to_history, read_history

    if isinstance(history, Address) and is_from_fork(os.environ):
        closing.notes.append(f"--lmgate-history {history}: this run is not recorded, as its code comes from a fork")
        return {}
    try:
        record = append_to_history(
            history,
            closing.verdicts,
            run=run,
            rootdir=config.rootpath,
            stopped=was_stopped(session),
            problems=tuple(closing.problems),
            expected_to_fail=closing.expected_to_fail,
        )
    except OSError as error:
        closing.problems.append(f"--lmgate-history {history}: cannot be written: {error}")
        return {}
    if record is None or not is_shown:
        return {}
    from pytest_lmgate.report.runs.past import past_runs

    try:
        return past_runs(read_history(history), record)
    except RecordError as error:
        closing.notes.append(f"the reports have no history: {error}")
        return {}


def _keep_baseline(closing: Closing, ledger: Ledger, session: pytest.Session) -> None:
    config = session.config
    if not (ledger.expected or ledger.entries or update(config)):
        return
    mode = update(config)
    full = not ledger.deselected and not was_stopped(session) and asks_for_all(config)
    folders = list(dict.fromkeys(["", *ledger.folders]))
    folder_of = {name: _folder_of(name, folders) for name in [*ledger.entries, *ledger.used]}
    for folder in folders:
        path, prefix = options.baseline_file(config, folder)
        own = {name for name, its in folder_of.items() if its == folder}
        entries = {name: entry for name, entry in ledger.entries.items() if name in own}
        by_baseline = [name for name in ledger.by_baseline if name in own]
        if len(folders) > 1 and not own and not path.exists():
            continue
        # The last gate that went by the baseline may be gone: then nobody but the file knows of its entry.
        to_look_at = {
            "all": session.testscollected > 0,
            "prune": session.testscollected > 0,
            "new": bool(by_baseline),
            "": bool(ledger.expected) and path.exists(),
        }
        is_looked_at = full and to_look_at[mode]
        if entries or mode == "prune" or is_looked_at:
            from pytest_lmgate.judge.upkeep import keep_baseline

            notes, problems = keep_baseline(
                path,
                mode,
                entries,
                used=[name for name in ledger.used if name in own] if is_looked_at else None,
                unknown=ledger.uncollected,
                renamed={name: former for name, former in ledger.renamed.items() if name in own},
                expected=by_baseline,
                unjudged={verdict.id for verdict in closing.verdicts if verdict.verdict == "error"},
                prefix=prefix,
            )
            closing.notes += notes
            closing.problems += problems


def _folder_of(gate: str, folders: Sequence[str]) -> str:
    """Return the innermost of the folders that a gate's id begins with."""
    return max((folder for folder in folders if not folder or gate.startswith(f"{folder}/")), key=len)
