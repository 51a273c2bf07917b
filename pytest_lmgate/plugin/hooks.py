"""The hooks: thin, and nothing but bookkeeping until the first gate makes a `GateSession`."""

from __future__ import annotations

__all__ = ["GateHooks"]

import functools
import sys
import tempfile
import uuid
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_lmgate.config import FILE_NAME, WRONG_NAME
from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.ledger import ENTRIES, NOT_KEPT, REMARKS, XFAILED_BY_BODY, Ledger
from pytest_lmgate.plugin.selection import Collected, only_lists, was_stopped
from pytest_lmgate.plugin.testmon import keep_files, keep_tests
from pytest_lmgate.plugin.typos import mistyped
from pytest_lmgate.plugin.verifying import Verifications

if TYPE_CHECKING:
    from pytest_lmgate.gates.verdict import Verdict
    from pytest_lmgate.plugin.session import GateSession
    from pytest_lmgate.plugin.yaml_items import GateFile

_MEANT_NOT_TO_RUN = (pytest.skip.Exception, pytest.xfail.Exception)


class GateHooks:
    """One per pytest process: the controller (or the only process), or a worker of xdist."""

    NAME = "lmgate-hooks"

    def __init__(self, config: pytest.Config, markers: frozenset[str], fixtures: frozenset[str]) -> None:
        """Hold on to the config; nothing is read yet."""
        self._config, self._markers, self._fixtures = config, markers, fixtures
        self._ledger, self._verifications = Ledger(), Verifications()
        self._collected = Collected()
        self._broke = False  # controller: a worker had an internal error
        self._session: GateSession | None = None
        self._worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        self._run = uuid.uuid4().hex if self._worker is None else str(self._worker["lmgate_run"])
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

            self._session = GateSession(self._config, self._run)
        return self._session

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Let the gates of lmgate.yaml be found, and those that pytest-testmon would pass over."""
        keep_files(self._config, [*self._markers, *self._fixtures])
        if self._config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
            return
        if self._project_file.is_file():
            from pytest_lmgate.plugin.yaml_items import add_to_testpaths

            add_to_testpaths(self._config)
        elif (wrong := self._config.rootpath / WRONG_NAME).is_file():
            from pytest_lmgate.plugin.yaml_items import misnamed

            self._unread += misnamed(wrong)

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> GateFile | None:
        """Collect the gates of lmgate.yaml."""
        if file_path.name not in (self._project_file.name, WRONG_NAME):
            return None
        from pytest_lmgate.plugin.yaml_items import gate_file

        return gate_file(file_path, parent, self._markers, self._unread)

    @functools.cached_property
    def _project_file(self) -> Path:
        return options.project_file(self._config) or self._config.rootpath / FILE_NAME

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Note a test that was found."""
        self._collected.add(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Let tests run that measure, although pytest-testmon sees no change."""
        keep_tests(self._config, items, lambda item: self._is_gated(item) or self._is_measuring(item))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Read the markers of the tests that will run: by now every plugin has deselected what it wants to."""
        ledger, items = self._ledger, session.items
        if not self._collected.are_all_in(items):
            ledger.deselected = True
        gated, measuring = list(filter(self._is_gated, items)), list(filter(self._is_measuring, items))
        problems = [*self._unread, *mistyped(items, self._markers)]
        if not (gated or measuring or problems or options.update(self._config)):
            return
        try:
            expected = self._read(gated, measuring)
        except pytest.UsageError as error:
            expected, problems = {}, [*problems, str(error)]
        if problems:
            problem = "\n".join(dict.fromkeys(problems))  # a file that cannot be read is said by all who need it
            if self._worker is None:
                raise pytest.UsageError(problem)
            # A worker that raises is an INTERNALERROR of xdist: run nothing, and let the controller say it.
            ledger.problem = problem
            items.clear()
        else:
            ledger.expected, ledger.measuring = expected, [item.nodeid for item in measuring]
        if self._worker is not None:
            ledger.hand_over(Path(self._worker["lmgate_handover"]))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Measure, after the test's own fixtures are there."""
        if self._has_more_gates(item):
            self._collect_late(item)
        if self._session is not None:
            self._session.begin(item)
        if item.nodeid in self._ledger.expected and not self._config.getoption("setuponly", False):
            self.session().measure(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Fail by the verdict, before the test's body."""
        if item.nodeid in self._ledger.expected:
            self.session().raise_failures(item)

    @pytest.hookimpl(specname="pytest_runtest_call", wrapper=True, tryfirst=True)
    def pytest_runtest_call_whole(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail by gates that the body adds, which nobody would judge."""
        try:
            result = yield
        except pytest.skip.Exception:
            self._refuse_late(item)
            raise
        self._refuse_late(item)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail by gates that a teardown adds."""
        before = self._gates_of(item)
        result = yield
        if self._gates_of(item) > before:
            self._refuse_late(item)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give a report the entries for the baseline file and remarks for the summary: the controller writes both."""
        report = yield
        if call.excinfo is not None and call.excinfo.errisinstance(pytest.xfail.Exception):
            setattr(report, XFAILED_BY_BODY, True)
        if self._session is not None and self._session.not_kept:
            setattr(report, NOT_KEPT, self._session.not_kept)
        if report.when == "setup" and item.nodeid in self._ledger.expected:
            if call.excinfo is not None and not call.excinfo.errisinstance(_MEANT_NOT_TO_RUN):
                self.session().give_up(item, call.excinfo.exconly())
                report.user_properties = list(item.user_properties)
            if new := self.session().entries(item):
                setattr(report, ENTRIES, new)
        if self._session is not None and (remarks := self._session.take_remarks()):
            setattr(report, REMARKS, remarks)
        return report

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note that this is no full run."""
        self._ledger.deselected = self._ledger.deselected or bool(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what was skipped or failed as a whole: its gates are not known."""
        if not report.passed:
            self._ledger.uncollected.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather verdicts where reports arrive: from here, or from workers."""
        if self._worker is None:
            self._ledger.receive(report)
        else:
            from pytest_lmgate.plugin.travel import make_plain

            make_plain(report)

    def pytest_internalerror(self) -> None:
        """Note that a worker broke: xdist may end with the status of the tests that others ran."""
        self._broke = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of xdist where to write what it expects, and which run it is part of."""
        if self._handover is None:
            self._handover = Path(tempfile.gettempdir()) / f"lmgate-{uuid.uuid4().hex}.json"
        node.workerinput["lmgate_handover"] = str(self._handover)
        node.workerinput["lmgate_run"] = self._run

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Learn what a worker will gate, or that it could not read the markers."""
        assert self._handover is not None
        self._ledger.take_over(self._handover)
        if self._ledger.problem:
            self._handover.unlink(missing_ok=True)
            raise pytest.UsageError(self._ledger.problem)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn what a worker verified."""
        self._verifications.take_over(node)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        """Write reports, and fail a session in which a verdict got lost. Only the controller does."""
        if not hasattr(session, "exitstatus"):  # pytester's getitems() ends a session that never ran
            session.exitstatus = exitstatus
        if self._session is not None and options.verify(self._config) and not was_stopped(session):
            self._verifications.add(self._session.verify())
        if self._worker is not None:
            self._verifications.hand_over(self._config)
        if self._worker is not None or only_lists(self._config):
            return
        if self._handover is not None:
            self._ledger.take_over(self._handover)
            self._handover.unlink(missing_ok=True)
        ended = session.exitstatus
        would_pass = ended in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        problems = self._verifications.problems + ["a worker of xdist broke: the session fails by it"] * (
            self._broke and would_pass
        )
        # A session that was stopped (-x, ctrl-c) fails already, and has tests that were not meant to run.
        if (would_pass or not was_stopped(session)) and not self._config.getoption("setuponly", False):
            problems += [f"{discrepancy}: the session fails by it" for discrepancy in self._ledger.discrepancies()]
        if self._ledger.expected or self._ledger.entries or options.update(self._config):
            from pytest_lmgate.plugin.upkeep import keep_baseline

            self._notes, unwritten = keep_baseline(self._ledger, session)
            problems += unwritten
        if self._ledger.verdicts():
            from pytest_lmgate.plugin.rendering import corrected

            self._verdicts, notes, blocked = corrected(
                self._ledger.verdicts(), self._config, self._ledger.expected_to_fail
            )
            self._notes += notes
            problems += blocked
        self._notes += [*self._ledger.remarks, *filter(None, [self._verifications.note])]
        if self._ledger.not_kept:
            from pytest_lmgate.plugin.rendering import not_kept_note

            self._notes.append(not_kept_note(self._ledger.not_kept))
        if reports := options.reports(self._config):
            from pytest_lmgate.plugin.rendering import write_reports

            problems += write_reports(self._verdicts, reports, self._config)
        # Too late to change testsfailed, but pytest returns this status.
        if would_pass and problems:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR if self._broke else pytest.ExitCode.TESTS_FAILED
        self._problems = problems
        terminal = self._config.pluginmanager.hasplugin("terminalreporter")
        if not terminal or ended == pytest.ExitCode.INTERNAL_ERROR:  # there will be no summary
            sys.stderr.writelines(f"ERROR: {problem}\n" for problem in problems)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the verdicts."""
        if self._worker is None and (self._verdicts or self._problems or self._notes):
            from pytest_lmgate.plugin.rendering import show_summary

            show_summary(terminalreporter, self._verdicts, self._notes, self._problems)

    def _read(self, gated: Sequence[pytest.Item], measuring: Sequence[pytest.Item]) -> dict[str, int]:
        """Return how many gates each test carries, by node id.

        Raises:
            pytest.UsageError: A gate is not what it should be; all that are not are named.
        """
        from pytest_lmgate.plugin.places import judged_by_others

        others = judged_by_others(self._config, [*gated, *measuring])
        problems, expected = list(others.values()), {}
        if ours := [item for item in gated if item not in others]:
            try:
                expected = self.session().collect(ours, self._markers)
                self._ledger.by_baseline = self.session().by_baseline
            except pytest.UsageError as error:
                problems.append(str(error))
        if problems:
            raise pytest.UsageError("\n".join(dict.fromkeys(problems)))
        return expected

    def _collect_late(self, item: pytest.Item) -> None:
        """Read markers again: a fixture has added one to its own test."""
        if self._config.getoption("no_lmgate"):
            pytest.skip("--no-lmgate: gates are not judged")
        try:
            self._ledger.expected |= self.session().collect([item], self._markers)
        except pytest.UsageError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None

    def _is_gated(self, item: pytest.Item) -> bool:
        return self._gates_of(item) > 0

    def _is_measuring(self, item: pytest.Item) -> bool:
        return not self._fixtures.isdisjoint(getattr(item, "fixturenames", ()))

    def _gates_of(self, item: pytest.Item) -> int:
        return sum(mark.name in self._markers for mark in item.iter_markers())

    def _has_more_gates(self, item: pytest.Item) -> bool:
        return self._gates_of(item) > self._ledger.expected.get(item.nodeid, 0)

    def _refuse_late(self, item: pytest.Item) -> None:
        """Fail a test that got a gate after its setup, in which gates are measured."""
        if self._has_more_gates(item) and not self._config.getoption("no_lmgate"):
            names = ", ".join(dict.fromkeys(mark.name for mark in item.iter_markers() if mark.name in self._markers))
            pytest.fail(
                f"{item.nodeid}: a gate was added too late ({names}): add it in a fixture that the test asks for, or "
                "at collection; gates are measured once the test's fixtures are set up",
                pytrace=False,
            )
