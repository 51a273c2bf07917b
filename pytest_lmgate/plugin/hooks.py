"""The hooks: thin, and nothing but bookkeeping until the first gate makes a `GateSession`."""

from __future__ import annotations

__all__ = ["GateHooks"]

import functools
import sys
import tempfile
import time
import uuid
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_lmgate.config import FILE_NAME
from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.ledger import ENTRIES, Ledger

if TYPE_CHECKING:
    from pytest_lmgate.gates.verdict import Verdict
    from pytest_lmgate.plugin.session import GateSession
    from pytest_lmgate.plugin.yaml_items import GateFile


class GateHooks:
    """One per pytest process: the controller (or the only process), or a worker of xdist."""

    NAME = "lmgate-hooks"

    def __init__(self, config: pytest.Config, markers: frozenset[str]) -> None:
        """Hold on to the config; nothing is read yet."""
        self._config, self._markers = config, markers
        self._ledger = Ledger()
        self._session: GateSession | None = None
        self._worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        self._started = time.time() if self._worker is None else self._worker.get("lmgate_started", time.time())
        self._handover: Path | None = None  # controller: where workers write what they expect
        self._unread: list[str] = []  # what is wrong with the gates of lmgate.yaml
        self._verdicts: Sequence[Verdict] = ()  # controller: as they are shown
        self._notes: list[str] = []  # controller: what else there is to say
        self._problems: list[str] = []  # controller: what fails the session although every test passed

    @classmethod
    def of(cls, config: pytest.Config) -> GateHooks:
        """Return the hooks of a pytest process."""
        found = config.pluginmanager.get_plugin(cls.NAME)
        assert isinstance(found, cls)
        return found

    def session(self) -> GateSession:
        """Return the session that measures; made for the first gate, which is when anything is imported."""
        if self._session is None:
            from pytest_lmgate.plugin.session import GateSession

            self._session = GateSession(self._config, self._started)
        return self._session

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Let the gates of lmgate.yaml be found."""
        if self._config.args_source is pytest.Config.ArgsSource.TESTPATHS and self._project_file.is_file():
            from pytest_lmgate.plugin.yaml_items import add_to_testpaths

            add_to_testpaths(self._config)

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> GateFile | None:
        """Collect the gates of lmgate.yaml."""
        if file_path.name != self._project_file.name:
            return None
        from pytest_lmgate.plugin.yaml_items import gate_file

        return gate_file(file_path, parent, self._markers, self._unread)

    @functools.cached_property
    def _project_file(self) -> Path:
        return options.project_file(self._config) or self._config.rootpath / FILE_NAME

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Read the markers of the tests that will run: by now every plugin has deselected what it wants to."""
        gated = [item for item in session.items if any(mark.name in self._markers for mark in item.iter_markers())]
        if not gated and not self._unread:
            return
        problems, expected = list(self._unread), {}
        if gated:
            try:
                expected = self.session().collect(gated, self._markers)
            except pytest.UsageError as error:
                problems.append(str(error))
        if problems:
            problem = "\n".join(dict.fromkeys(problems))  # a file that cannot be read is said by all who need it
            if self._worker is None:
                raise pytest.UsageError(problem)
            # A worker that raises is an INTERNALERROR of xdist: run nothing, and let the controller say it.
            self._ledger.problem = problem
            session.items.clear()
        else:
            self._ledger.expected, self._ledger.by_baseline = expected, self.session().by_baseline
        if self._worker is not None:
            self._ledger.hand_over(Path(self._worker["lmgate_handover"]))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Measure, after the test's own fixtures are there."""
        if sum(mark.name in self._markers for mark in item.iter_markers()) > self._ledger.expected.get(item.nodeid, 0):
            self._collect_late(item)
        if item.nodeid in self._ledger.expected and not self._config.getoption("setuponly", False):
            self.session().measure(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Fail by the verdict, before the test's body."""
        if item.nodeid in self._ledger.expected:
            self.session().raise_failures(item)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give a report the entries for the baseline file, which only the controller writes."""
        report = yield
        if report.when == "setup" and item.nodeid in self._ledger.expected and (new := self.session().entries(item)):
            setattr(report, ENTRIES, new)
        return report

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note that this is no full run."""
        self._ledger.deselected = self._ledger.deselected or bool(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what was skipped or failed as a whole: its gates are not known."""
        if not report.passed:
            self._ledger.uncollected.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather verdicts where reports arrive: from here, or from workers."""
        if self._worker is None:
            self._ledger.receive(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of xdist where to write what it expects, and when the session began."""
        if self._handover is None:
            self._handover = Path(tempfile.gettempdir()) / f"lmgate-{uuid.uuid4().hex}.json"
        node.workerinput["lmgate_handover"] = str(self._handover)
        node.workerinput["lmgate_started"] = self._started

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Learn what a worker will gate, or that it could not read the markers."""
        assert self._handover is not None
        self._ledger.take_over(self._handover)
        if self._ledger.problem:
            self._handover.unlink(missing_ok=True)
            raise pytest.UsageError(self._ledger.problem)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write reports, and fail a session in which a verdict got lost. Only the controller does."""
        if self._worker is not None or self._config.option.collectonly:
            return
        if self._handover is not None:
            self._ledger.take_over(self._handover)
            self._handover.unlink(missing_ok=True)
        would_pass = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        problems = []
        # A session that was stopped (-x, ctrl-c) fails already, and has tests that were not meant to run.
        if would_pass or not _stopped(session):
            problems += [f"{discrepancy}: the session fails by it" for discrepancy in self._discrepancies()]
        problems += self._keep_baseline(session)
        if self._ledger.verdicts():
            from pytest_lmgate.plugin.rendering import corrected

            self._verdicts, notes, blocked = corrected(self._ledger.verdicts(), self._config)
            self._notes += notes
            problems += blocked
        if reports := options.reports(self._config):
            from pytest_lmgate.plugin.rendering import write_reports

            problems += write_reports(self._verdicts, reports, self._config)
        # Too late to change testsfailed, but pytest returns this status.
        if would_pass and problems:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._problems = problems
        terminal = self._config.pluginmanager.hasplugin("terminalreporter")
        if not terminal or session.exitstatus == pytest.ExitCode.INTERNAL_ERROR:  # there will be no summary
            sys.stderr.writelines(f"ERROR: {problem}\n" for problem in problems)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the verdicts."""
        if self._worker is None and (self._verdicts or self._problems or self._notes):
            from pytest_lmgate.plugin.rendering import show_summary

            show_summary(terminalreporter, self._verdicts, self._notes, self._problems)

    def _keep_baseline(self, session: pytest.Session) -> list[str]:
        """Write the entries of gates that ran, and say which entries no gate uses; return what went wrong."""
        ledger, updating = self._ledger, options.update(self._config)
        full = not ledger.deselected and not _stopped(session) and _asks_for_all(self._config)
        if not ledger.entries and not (ledger.by_baseline and full):
            return []
        from pytest_lmgate.errors import BaselineError
        from pytest_lmgate.plugin.baselines import unused, update_file

        path = options.baseline_file(self._config)
        try:
            if updating:
                used = ledger.used if full and updating == "all" else None
                self._notes += update_file(path, ledger.entries, used=used, unknown=ledger.uncollected)
            else:
                self._notes += [
                    f"baseline {path.name}: no gate uses {name}; remove it by --lmgate-update"
                    for name in unused(path, ledger.used, ledger.uncollected)
                ]
        except (BaselineError, OSError) as error:
            return [f"the baseline was not written: {error}"]
        return []

    def _collect_late(self, item: pytest.Item) -> None:
        """Read markers again: a fixture has added one to its own test."""
        if self._config.getoption("no_lmgate"):
            pytest.skip("--no-lmgate: gates are not judged")
        try:
            self._ledger.expected |= self.session().collect([item], self._markers)
        except pytest.UsageError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None

    def _discrepancies(self) -> list[str]:
        return [] if self._config.getoption("setuponly", False) else self._ledger.discrepancies()


def _stopped(session: pytest.Session) -> bool:
    return bool(session.shouldfail or session.shouldstop) or session.exitstatus == pytest.ExitCode.INTERRUPTED


def _asks_for_all(config: pytest.Config) -> bool:
    """Whether the command line selects nothing: no tests, no other gates, no part of the folders."""
    option = config.option
    selects = ("lf", "stepwise", "ignore", "ignore_glob", "deselect", "keyword", "markexpr", "maxfail")
    others = ("override_ini", "noconftest", "lmgate_config")
    by_arguments = config.args_source is pytest.Config.ArgsSource.ARGS
    in_rootdir = config.invocation_params.dir.resolve() == config.rootpath.resolve()
    return in_rootdir and not by_arguments and not any(getattr(option, name, None) for name in selects + others)
