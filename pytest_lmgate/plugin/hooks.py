"""The hooks: thin, and nothing but bookkeeping until the first gate makes a `GateSession`."""

from __future__ import annotations

__all__ = ["GateHooks"]

import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.ledger import Ledger

if TYPE_CHECKING:
    from pytest_lmgate.plugin.session import GateSession


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
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Read the markers of the tests that will run: by now every plugin has deselected what it wants to."""
        gated = [item for item in session.items if any(mark.name in self._markers for mark in item.iter_markers())]
        if not gated:
            return
        try:
            self._ledger.expected = self.session().collect(gated, self._markers)
        except pytest.UsageError as error:
            if self._worker is None:
                raise
            # A worker that raises is an INTERNALERROR of xdist: run nothing, and let the controller say it.
            self._ledger.problem = str(error)
            session.items.clear()
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
        if reports := options.reports(self._config):
            from pytest_lmgate.plugin.rendering import write_reports

            problems += write_reports(self._ledger.verdicts(), reports, self._config)
        # Too late to change testsfailed, but pytest returns this status.
        if would_pass and problems:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._problems = problems
        terminal = self._config.pluginmanager.hasplugin("terminalreporter")
        if not terminal or session.exitstatus == pytest.ExitCode.INTERNAL_ERROR:  # there will be no summary
            sys.stderr.writelines(f"ERROR: {problem}\n" for problem in problems)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the verdicts."""
        if self._worker is None and (self._ledger.verdicts() or self._problems):
            from pytest_lmgate.plugin.rendering import show_summary

            show_summary(terminalreporter, self._ledger.verdicts(), self._problems)

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
