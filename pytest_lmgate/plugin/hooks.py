"""The hooks: thin, and nothing but bookkeeping until the first gate makes a `GateSession`."""

from __future__ import annotations

__all__ = ["GateHooks"]

import functools
import sys
import uuid
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_lmgate.config import FILE_NAME
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.collection.gated import gates_of, is_gated, is_measuring, mixed_up, refuse_late_gates
from pytest_lmgate.plugin.collection.left_out import hidden, left_out
from pytest_lmgate.plugin.collection.selection import are_all_in, asks_for_all, only_lists, passed, was_stopped
from pytest_lmgate.plugin.collection.testmon import keep_files, keep_tests
from pytest_lmgate.plugin.collection.typos import mistyped
from pytest_lmgate.plugin.collection.yaml_items import GateFile, add_to_testpaths, gate_file, placed, wrong_files
from pytest_lmgate.plugin.session.closing import Closing, close, print_reports, show_summary
from pytest_lmgate.plugin.session.ledger import EXTRAS, Ledger
from pytest_lmgate.plugin.session.verifying import Verifications
from pytest_lmgate.plugin.updates import update
from pytest_lmgate.plugin.xdist.controller import Controller
from pytest_lmgate.plugin.xdist.scheduling import groups_of
from pytest_lmgate.plugin.xdist.travel import make_plain
from pytest_lmgate.spec.catalogue import FIXTURES_HELP, MARKERS_HELP

if TYPE_CHECKING:
    from pytest_lmgate.plugin.session.gate_session import GateSession

_HOOKS = pytest.StashKey["GateHooks"]()
_MEANT_NOT_TO_RUN = (pytest.skip.Exception, pytest.xfail.Exception)


class GateHooks:
    """One per pytest process: the controller (or the only process), or a worker of xdist."""

    def __init__(self, config: pytest.Config) -> None:
        """Hold on to the config; nothing is read yet."""
        self._config = config
        config.stash[_HOOKS] = self
        self._ledger, self._verifications = Ledger(), Verifications()
        self._found: list[pytest.Item] = []
        self._broke = ""  # controller: what happened to workers
        self._session: GateSession | None = None
        self._worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        self._run = uuid.uuid4().hex if self._worker is None else str(self._worker["lmgate_run"])
        self._unread: list[str] = []  # what is wrong with the gates of lmgate.yaml
        self._gate_files: set[Path] = set()  # whose gates were collected
        self.running = config.rootpath
        """The file of the test that runs."""
        self._closing: Closing | None = None  # controller: what the summary shows
        self.controller = Controller(self._ledger, self._verifications, self._told)
        """The hooks of xdist's controller."""

    @staticmethod
    def of(config: pytest.Config) -> GateHooks:
        """Return the hooks of a pytest process."""
        return config.stash[_HOOKS]

    @property
    def left_out(self) -> list[str]:
        """Which gates of lmgate.yaml pytest did not collect, a sentence for each file."""
        return self._ledger.left_out

    def session(self) -> GateSession:
        """Return the session that measures; made for the first gate, which is when anything is imported."""
        if self._session is None:
            from pytest_lmgate.plugin.session.gate_session import GateSession

            self._session = GateSession(self._config, self._run)
        return self._session

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Let the gates of lmgate.yaml be found, and those that pytest-testmon would pass over."""
        keep_files(self._config, [*MARKERS_HELP, *FIXTURES_HELP])
        if self._config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            add_to_testpaths(self._config)

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> GateFile | None:
        """Collect the gates of lmgate.yaml."""
        if file_path.name != self._project_file.name:
            return None
        return gate_file(file_path, parent, self._unread)

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Note which gates of lmgate.yaml are collected: pytest asks for files beside its arguments too."""
        if isinstance(collector, GateFile):
            self._gate_files.add(placed(collector.path))
        elif isinstance(collector, pytest.Directory):
            self._unread += wrong_files(collector)

    def _told(self) -> dict[str, Any]:
        """Return what the controller tells its workers."""
        return {"lmgate_run": self._run, "lmgate_asks_for_all": self._asks_for_all}

    @functools.cached_property
    def _asks_for_all(self) -> bool:
        return asks_for_all(self._config) if self._worker is None else bool(self._worker["lmgate_asks_for_all"])

    @functools.cached_property
    def _project_file(self) -> Path:
        return options.project_file(self._config) or self._config.rootpath / FILE_NAME

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Note a test that was found."""
        self._found.append(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Let tests run that measure, although pytest-testmon sees no change."""
        keep_tests(self._config, items, lambda item: is_gated(item) or is_measuring(item))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Read the markers of the tests that will run: by now every plugin has deselected what it wants to."""
        ledger, items = self._ledger, session.items
        found, self._found = self._found, []
        ledger.deselected |= not are_all_in(found, items)
        gated, measuring = list(filter(is_gated, items)), list(filter(is_measuring, items))
        problems = [*self._unread, *mistyped(items, MARKERS_HELP), *mixed_up(gated, measuring)]
        try:
            ledger.left_out = left_out(self._config, self._gate_files)
        except ConfigError as error:
            problems.append(str(error))
        missing = [*ledger.left_out, *hidden(self._config)]
        if missing and options.flag(self._config, "require-all"):
            problems += [f"--lmgate-require-all: {sentence}" for sentence in missing]
        if gated or measuring or ledger.left_out:
            problems += options.unknown_variables()
        if not (gated or measuring or problems or ledger.left_out or update(self._config)):
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

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Note which test runs: what its fixtures measure is looked up in the lmgate.yaml that it goes by."""
        self.running = item.path

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Measure, after the test's own fixtures are there."""
        if len(gates_of(item)) > self._expected(item):
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
            refuse_late_gates(item, self._expected(item))
            raise
        refuse_late_gates(item, self._expected(item))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail by gates that a teardown adds."""
        before = max(len(gates_of(item)), self._expected(item))
        result = yield
        refuse_late_gates(item, before)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give a report the entries for the baseline file and remarks for the summary: the controller writes both."""
        report, failure = (yield), call.excinfo
        is_gated_setup = report.when == "setup" and item.nodeid in self._ledger.expected
        if is_gated_setup and failure is not None and not failure.errisinstance(_MEANT_NOT_TO_RUN):
            self.session().give_up(item, failure.exconly())
            report.user_properties = list(item.user_properties)
        extras = {} if self._session is None else self._session.take_extras(item, has_verdicts=is_gated_setup)
        by_call = failure is not None and failure.errisinstance(pytest.xfail.Exception)
        if hasattr(report, "wasxfail") and not by_call and item.get_closest_marker("xfail"):
            extras["expected_to_fail"] = True
        if extras:
            setattr(report, EXTRAS, extras)
        return report

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note that this is no full run."""
        self._ledger.deselected |= bool(items)

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
            make_plain(report)

    def pytest_internalerror(self) -> None:
        """Note that a worker crashed: xdist may still end with the status of the tests that other workers ran."""
        self._broke = "an xdist worker crashed"

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
        if not self.controller.end():
            self._broke = "the xdist workers ended before they had collected the tests, so no gate ran"
        ended, would_pass = session.exitstatus, passed(session)
        self._closing = close(self._ledger, self._verifications, session, run=self._run, broke=self._broke)
        problems = self._closing.problems
        # Too late to change testsfailed, but pytest returns this status.
        if would_pass and problems:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR if self._broke else pytest.ExitCode.TESTS_FAILED
        terminal = self._config.pluginmanager.hasplugin("terminalreporter")
        if not terminal or ended == pytest.ExitCode.INTERNAL_ERROR:  # there will be no summary
            sys.stderr.writelines(f"ERROR: {problem}\n" for problem in problems)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the verdicts."""
        if self._closing is not None and self._closing.is_shown:
            show_summary(terminalreporter, self._closing)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Print reports when pytest has written everything else: a CI service reads commands at the begin of a line."""
        if self._closing is not None:
            print_reports(self._config, self._closing)

    def _read(self, gated: Sequence[pytest.Item], measuring: Sequence[pytest.Item]) -> dict[str, int]:
        """Return how many gates each test carries, by node id; a usage error names every gate that is wrong."""
        if not gated:
            return {}
        options.history(self._config)  # one that cannot be used is said now, not after an hour of measuring
        expected = self.session().collect(gated)
        self._ledger.by_baseline, self._ledger.folders = self.session().by_baseline, self.session().folders
        models = self._ledger.models = {item.nodeid: self.session().models_of(item) for item in gated}
        by_model = self._worker is not None and self._worker["lmgate_by_model"]
        if by_model and all(models.values()) and not measuring:  # else any worker may measure
            self.session().share_processors(len(set(groups_of(models).values())))
        are_all = self._asks_for_all and not (self._ledger.deselected or self._ledger.uncollected)
        self.session().note_gates(are_all=are_all)
        return expected

    def _collect_late(self, item: pytest.Item) -> None:
        """Read markers again: a fixture has added one to its own test."""
        if self._config.getoption("no_lmgate"):
            pytest.skip("--no-lmgate: gates are not judged")
        try:
            self._ledger.expected |= self.session().collect([item])
        except pytest.UsageError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None

    def _expected(self, item: pytest.Item) -> int:
        return self._ledger.expected.get(item.nodeid, 0)
