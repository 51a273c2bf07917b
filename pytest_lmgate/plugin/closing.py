"""The end of a session, in the controller: lost verdicts, the baseline file, the summary and the report files."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_lmgate.cache.remote import Address, is_from_fork
from pytest_lmgate.engines.devices import hardware_of
from pytest_lmgate.errors import RecordError, escape_controls
from pytest_lmgate.judge.baseline import write_baseline
from pytest_lmgate.judge.provenance import driver_of, run_now
from pytest_lmgate.judge.result import FixtureCall, Results, Run, Verdict
from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.collection import asks_for_all, passed, was_stopped
from pytest_lmgate.plugin.ledger import Ledger
from pytest_lmgate.plugin.options import update
from pytest_lmgate.report.history import append_to_history, read_history
from pytest_lmgate.report.terminal import (
    measured_line,
    not_kept_note,
    replaced_lines,
    summary_lines,
    title,
    verified_note,
)

_COLOURS = {
    "pass": {"green": True},
    "fail": {"red": True},
    "error": {"red": True},
    "inconclusive": {"yellow": True},
    "xfail": {"yellow": True},
}


class Closing:
    """What the summary shows, and what is printed after it."""

    def __init__(self) -> None:
        self.verdicts: Sequence[Verdict] = ()
        self.measured: Sequence[FixtureCall] = ()
        self.shown: Sequence[FixtureCall] = ()  # what the summary shows of `measured`: failed tests, or all with -v
        self.remarks: tuple[str, ...] = ()  # those of `notes` that the reports show too
        self.notes: list[str] = []
        self.unread: list[str] = []  # why there are no gates: pytest shows it, and reports have it too
        self.problems: list[str] = []  # what fails the session although every test passed
        self.printed: list[str] = []  # reports for stdout
        self.did_fail = False  # whether a test failed that measures by a fixture

    @property
    def is_shown(self) -> bool:
        return any([self.verdicts, self.shown, self.notes, self.problems])

    @property
    def has_failed(self) -> bool:
        return (
            self.did_fail
            or bool(self.problems)
            or any(verdict.failed and not verdict.xfail for verdict in self.verdicts)
        )

    def results(self, run: Run) -> Results:
        return Results(
            run=run,
            verdicts=tuple(self.verdicts),
            measured=tuple(self.measured),
            problems=(*self.unread, *self.problems),
            remarks=self.remarks,
        )

    def show(self, terminal: pytest.TerminalReporter) -> None:
        heading, lines = "lmgate", list[tuple[str, str]]()
        if self.verdicts or self.measured:
            heading = title(self.verdicts, self.measured)
            lines += summary_lines(self.verdicts) if self.verdicts else []
            lines += [("", f"cache {verdict.id}: {verdict.cache}") for verdict in self.verdicts if verdict.cache]
            lines += [("", measured_line(found)) for found in self.shown]
            lines += replaced_lines(self.verdicts)
        terminal.write_sep("=", heading)  # unlike section(), it ends the line of dots first
        for outcome, line in lines:
            colour = _COLOURS.get("inconclusive" if outcome.startswith("advisory") else outcome, {})
            terminal.write_line(escape_controls(line), **colour)
        for note in self.notes:
            terminal.write_line(escape_controls(note))
        for problem in self.problems:
            terminal.write_line(escape_controls(f"ERROR: {problem}"), red=True)

    def print_reports(self, config: pytest.Config) -> None:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        for text in self.printed:
            if terminal is None:
                sys.stdout.write(text)
            else:
                terminal.ensure_newline()
                terminal.write(text, flush=True)


def close(ledger: Ledger, session: pytest.Session, *, run: str, broke: str) -> Closing:
    """Find what was lost or broke, write the baseline and the reports."""
    config, closing = session.config, Closing()
    closing.unread = ledger.problem.splitlines()
    closing.problems += [problem for found in ledger.verified for problem in found["problems"]]
    if broke and passed(session):
        closing.problems.append(f"{broke}: the session fails")
    # A session that was stopped (-x, ctrl-c) fails already, and has tests that were not meant to run.
    if (passed(session) or not was_stopped(session)) and not config.getoption("setuponly", False):
        closing.problems += [f"{discrepancy}: the session fails" for discrepancy in ledger.discrepancies()]
    if received := ledger.verdicts():
        expected = ledger.expected_to_fail
        closing.verdicts = [replace(verdict, xfail=verdict.id in expected) for verdict in received]
    closing.did_fail = any(map(ledger.did_fail, ledger.measuring))
    if passed(session) and closing.has_failed and not closing.problems:
        which = f"a gate{' or a test that measures' * closing.did_fail}"
        closing.problems.append(
            f"{which} failed, but a plugin, a conftest or pytest.exit set the exit status {int(session.exitstatus)}: "
            "the session fails"
        )
    _keep_baseline(closing, ledger, session)
    closing.remarks = tuple(ledger.remarks)
    closing.notes += closing.remarks
    if ledger.verified:
        closing.notes.append(verified_note(ledger.verified))
    closing.notes += ledger.left_out
    if not config.getoption("no_lmgate"):
        closing.notes += ledger.not_run()
    if ledger.not_kept:
        closing.notes.append(not_kept_note(ledger.not_kept))
    closing.measured = [each for found in ledger.measured.values() for each in found]
    shown = [test for test in ledger.measured if config.getoption("verbose", 0) > 0 or ledger.did_fail(test)]
    closing.shown = [each for test in shown for each in ledger.measured[test]]
    reports, history = options.reports(config), options.history(config) if closing.verdicts else None
    was_judged = bool(closing.verdicts or closing.measured or (closing.problems and ledger.expected))
    is_heard = was_judged and bool(config.hook.pytest_lmgate_report.get_hookimpls())
    if not (reports or is_heard) and history is None:
        return closing
    call = _this_run(session, closing.verdicts, run)
    if history is not None:
        _keep_history(history, closing, call, is_shown=is_heard or any(kind in ("json", "html") for kind, _ in reports))
    results = closing.results(call)
    if reports:
        from pytest_lmgate.report.formats import write_reports

        folder = config.invocation_params.dir
        closing.notes += write_reports(
            results, reports, folder, closing.printed, closing.problems, offline=options.flag(config, "offline")
        )
    if is_heard:
        closing.problems += _hand_over(results, config)
    return closing


def _hand_over(results: Results, config: pytest.Config) -> list[str]:
    """Call the hook of each plugin, apart from the others', and return what went wrong there."""
    name, problems = "pytest_lmgate_report", []
    listeners = [listener.plugin for listener in config.hook.pytest_lmgate_report.get_hookimpls()]
    for plugin in reversed(listeners):  # as pluggy calls them, the last registered first
        others = [other for other in listeners if other is not plugin]
        try:
            config.pluginmanager.subset_hook_caller(name, others)(config=config, run=results)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # pytest.fail and sys.exit too: the verdicts must still show
            from pytest_lmgate.plugin.session import line_of

            where = line_of(error, config, name) or f"{config.pluginmanager.get_name(plugin)}: "
            problems.append(f"{where}{name}: {type(error).__name__}: {error}: the session fails")
    return problems


def _this_run(session: pytest.Session, verdicts: Sequence[Verdict], run: str) -> Run:
    config = session.config
    # An accelerator comes first: its name says more than the processor's.
    devices = sorted({verdict.device for verdict in verdicts} - {""}, key=lambda device: (device == "cpu", device))
    first = next(iter(devices), "")
    hardware = sorted({verdict.hardware for verdict in verdicts if verdict.device == first} - {""})
    return run_now(
        config.rootpath,
        ["pytest", *config.invocation_params.args],
        id=run,
        device=", ".join(devices),
        hardware=", ".join(hardware) or hardware_of(first),
        driver=driver_of(first),
        stopped=was_stopped(session),
    )


def _keep_history(history: Path | Address, closing: Closing, run: Run, *, is_shown: bool) -> None:
    if isinstance(history, Address) and is_from_fork(os.environ):
        closing.notes.append(
            f"--lmgate-history {history}: this run is not recorded, because its code comes from a fork"
        )
        return
    results = closing.results(run)
    try:
        is_written = append_to_history(history, results)
    except OSError as error:
        closing.problems.append(f"--lmgate-history {history}: cannot be written: {error}")
        return
    if not (is_written and is_shown):
        return
    from pytest_lmgate.report.history import past_runs

    try:
        past = past_runs(read_history(history), results)
    except RecordError as error:
        closing.notes.append(f"the reports have no history: {error}")
        return
    closing.verdicts = [replace(verdict, history=past.get(verdict.id, ())) for verdict in closing.verdicts]


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
            notes, problems = write_baseline(
                path,
                mode,
                entries,
                used=[name for name in ledger.used if name in own] if is_looked_at else None,
                was_looked_for=lambda gate: ledger.was_looked_for(gate, config.rootpath),
                expected=by_baseline,
                unjudged={verdict.id for verdict in closing.verdicts if verdict.verdict == "error"},
                prefix=prefix,
            )
            closing.notes += notes
            closing.problems += problems


def _folder_of(gate: str, folders: Sequence[str]) -> str:
    return max((folder for folder in folders if not folder or gate.startswith(f"{folder}/")), key=len)
