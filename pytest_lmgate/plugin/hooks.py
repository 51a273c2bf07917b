"""The hooks: thin, and only bookkeeping until the first gate makes a `GateSession`."""

from __future__ import annotations

import functools
import os
import sys
import uuid
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_lmgate.errors import ConfigError, escape_controls
from pytest_lmgate.plugin import collection, options
from pytest_lmgate.plugin.ledger import EXTRAS, VERIFIED, Ledger, skip_reason
from pytest_lmgate.plugin.options import update
from pytest_lmgate.plugin.yaml_items import GateFile, add_to_testpaths, gate_file, placed, wrong_files
from pytest_lmgate.report.text import counted
from pytest_lmgate.settings.metrics import MARKER_NAMES
from pytest_lmgate.settings.options import FILE_NAME

if TYPE_CHECKING:
    from pytest_lmgate.plugin.closing import Closing
    from pytest_lmgate.plugin.session import GateSession
    from pytest_lmgate.plugin.xdist import Controller

_HOOKS = pytest.StashKey["GateHooks"]()
_MEANT_NOT_TO_RUN = (pytest.skip.Exception, pytest.xfail.Exception)


class GateHooks:
    """One per process: the controller (or the only process), or a worker of xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        config.stash[_HOOKS] = self
        self._ledger = Ledger()
        self._found: list[pytest.Item] = []
        self._broke = ""  # controller: what happened to workers
        self._session: GateSession | None = None
        self._worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        self._run = uuid.uuid4().hex if self._worker is None else str(self._worker["lmgate_run"])
        self._skipped_files: list[str] = []  # a sentence for each that names gates
        self._unread: list[str] = []  # problems of gates in lmgate.yaml
        self._gate_files: set[Path] = set()  # the lmgate.yaml whose gates were collected
        self.running = config.rootpath  # the file of the running test, whose lmgate.yaml its fixtures use
        self._is_finished = False
        self._closing: Closing | None = None  # controller: what the summary shows
        self.controller: Controller | None = None
        if hasattr(config.option, "dist"):  # else there is no xdist, nor anything to import for it
            from pytest_lmgate.plugin.xdist import Controller

            self.controller = Controller(self._ledger, {"lmgate_run": self._run})

    @staticmethod
    def of(config: pytest.Config) -> GateHooks:
        return config.stash[_HOOKS]

    @property
    def left_out(self) -> list[str]:
        return self._ledger.left_out

    def session(self) -> GateSession:
        """Make the session for the first gate: heavy imports happen here."""
        if self._session is None:
            from pytest_lmgate.plugin.session import GateSession

            self._session = GateSession(self._config, self._run)
        return self._session

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        if self._config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            add_to_testpaths(self._config)

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> GateFile | None:
        if file_path.name != self._project_file.name:
            return None
        node = gate_file(file_path, parent, self._unread)
        if node is None:  # it has no gates any more
            self._ledger.collected.append(Path(os.path.relpath(file_path, self._config.rootpath)).as_posix())
        return node

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        if isinstance(collector, GateFile):
            self._gate_files.add(placed(collector.path))
        elif isinstance(collector, pytest.Directory):
            self._unread += wrong_files(collector)

    @functools.cached_property
    def _project_file(self) -> Path:
        return options.project_file(self._config) or self._config.rootpath / FILE_NAME

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._found.append(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Read the markers of the tests that will run: plugins have deselected theirs by now."""
        ledger, items = self._ledger, session.items
        found, self._found = self._found, []
        ledger.deselected |= not collection.are_all_in(found, items)
        gated, measuring = list(filter(collection.is_gated, items)), list(filter(collection.is_measuring, items))
        problems = [*self._unread, *collection.mistyped(items, MARKER_NAMES), *collection.mixed_up(gated, measuring)]
        try:
            ledger.left_out = collection.left_out(self._config, self._gate_files)
        except ConfigError as error:
            problems.append(str(error))
        empty = collection.without_parameters(items)
        told = {item: f"{item.nodeid}: its parameters are none, so its gates did not run" for item in empty}
        missing = [*ledger.left_out, *told.values()]
        known = {*gated, *measuring}  # whose skip is told with its reason
        ledger.left_out += [*(told[item] for item in empty if item not in known), *self._skipped_files]
        if options.flag(self._config, "require-all"):
            has_gates = any(collection.is_gated(item) or collection.is_measuring(item) for item in found)
            if not (missing or has_gates or self._project_file.exists()):
                missing = [f"no test has a gate, and there is no {self._project_file}: was it moved?"]
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
            ledger.problem = "\n".join(dict.fromkeys(problems))  # each test of an unreadable file reports it
            if self._worker is None:
                raise pytest.UsageError(ledger.problem)
            items.clear()  # an error raised in a worker is an INTERNALERROR of xdist: the controller raises it instead
        else:
            ledger.expected, ledger.measuring = expected, [item.nodeid for item in measuring]
        if self._worker is not None:
            ledger.dump(Path(self._worker["lmgate_handover"]))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        self.running = item.path

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if len(collection.gates_of(item)) > self._expected(item):
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
        """Fail a test whose body adds a gate, because it would not be judged."""
        try:
            result = yield
        except pytest.skip.Exception:
            collection.refuse_late_gates(item, self._expected(item))
            raise
        collection.refuse_late_gates(item, self._expected(item))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        before = max(len(collection.gates_of(item)), self._expected(item))
        result = yield
        collection.refuse_late_gates(item, before)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach baseline entries and remarks, for the controller."""
        report, failure = (yield), call.excinfo
        is_gated_setup = report.when == "setup" and item.nodeid in self._ledger.expected
        if is_gated_setup and failure is not None and not failure.errisinstance(_MEANT_NOT_TO_RUN):
            self.session().record_setup_failure(item, failure.exconly())
            report.user_properties = list(item.user_properties)
        extras = {} if self._session is None else self._session.take_extras(item, has_verdicts=is_gated_setup)
        by_call = failure is not None and failure.errisinstance(pytest.xfail.Exception)
        if hasattr(report, "wasxfail") and not by_call and item.get_closest_marker("xfail"):
            extras["expected_to_fail"] = True
        if extras:
            setattr(report, EXTRAS, extras)
        return report

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._ledger.deselected |= bool(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.passed and "::" not in report.nodeid:
            self._ledger.collected.append(report.nodeid)
        elif not report.passed:
            self._ledger.uncollected.append(report.nodeid)
            path = self._config.rootpath / report.nodeid.partition("::")[0]
            if report.skipped and path.exists() and collection.names_gates(path):
                self._skipped_files.append(f"{report.nodeid} was skipped with its gates ({skip_reason(report)})")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._worker is None:
            self._ledger.receive(report)
        else:
            from pytest_lmgate.plugin.xdist import to_builtins

            to_builtins(report)

    def pytest_internalerror(self) -> None:
        """Note that a worker crashed, because xdist may still exit with 0."""
        self._broke = "an xdist worker crashed"

    @pytest.hookimpl(specname="pytest_sessionfinish", wrapper=True, tryfirst=True)
    def pytest_sessionfinish_whole(self, session: pytest.Session) -> Generator[None, object, object]:
        """Fail a session whose exit status another plugin, a conftest or ``pytest.exit`` set to success after us."""
        try:
            result = yield
        except (pytest.exit.Exception, SystemExit) as error:
            if not self._is_finished:
                self._finish(session)
            status = "code" if isinstance(error, SystemExit) else "returncode"
            if not getattr(error, status) and self._has_failed:
                setattr(error, status, pytest.ExitCode.TESTS_FAILED)
                sys.stderr.write("ERROR: a gate failed, so the session fails\n")  # there will be no summary
            raise
        if self._has_failed and collection.passed(session):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return result

    @property
    def _has_failed(self) -> bool:
        return self._closing is not None and self._closing.has_failed

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        """Write reports, and fail a session that lost a verdict; only in the controller."""
        if not hasattr(session, "exitstatus"):  # pytester's getitems() ends a session that never ran
            session.exitstatus = exitstatus
        self._finish(session)

    def _finish(self, session: pytest.Session) -> None:
        self._is_finished = True
        if self._session is not None and options.verify(self._config) and not collection.was_stopped(session):
            self._ledger.verified.append(self._session.verify())
        if self._worker is not None:
            self._config.workeroutput[VERIFIED] = self._ledger.verified  # type: ignore[attr-defined]
        if self._worker is not None or collection.only_lists(self._config):
            return
        if self.controller is not None and not self.controller.end():
            self._broke = "the xdist workers ended before they had collected the tests, so no gate ran"
        if not (self._ledger.has_news or self._broke or update(self._config) or options.reports(self._config)):
            return
        from pytest_lmgate.plugin.closing import close

        ended, would_pass = session.exitstatus, collection.passed(session)
        self._closing = close(self._ledger, session, run=self._run, broke=self._broke)
        problems = self._closing.problems
        # Too late to change testsfailed, but pytest returns this status.
        if would_pass and problems:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR if self._broke else pytest.ExitCode.TESTS_FAILED
        terminal = self._config.pluginmanager.hasplugin("terminalreporter")
        if not terminal or ended == pytest.ExitCode.INTERNAL_ERROR:  # there will be no summary
            sys.stderr.writelines(f"ERROR: {problem}\n" for problem in problems)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._closing is not None and self._closing.is_shown:
            self._closing.show(terminalreporter)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Print reports last: CI services read commands only at the start of a line."""
        if self._closing is not None:
            self._closing.print_reports(self._config)

    def _read(self, gated: Sequence[pytest.Item], measuring: Sequence[pytest.Item]) -> dict[str, int]:
        """Return the number of gates of each test by node id; a usage error names all wrong gates."""
        if not gated:
            return {}
        options.history(self._config)  # raises here rather than after an hour of measuring
        expected = self.session().collect(gated)
        self._ledger.by_baseline, self._ledger.folders = self.session().by_baseline, self.session().folders
        models = self._ledger.models = {item.nodeid: self.session().models_of(item) for item in gated}
        by_model = self._worker is not None and self._worker["lmgate_by_model"]
        if by_model and all(models.values()) and not measuring:  # else any worker may measure
            from pytest_lmgate.plugin.xdist import groups_of

            self.session().share_processors(len(set(groups_of(models).values())))
        return expected

    def _collect_late(self, item: pytest.Item) -> None:
        """Read the markers again after a fixture added one."""
        if self._config.getoption("no_lmgate"):
            pytest.skip("--no-lmgate: gates are not judged")
        try:
            self._ledger.expected |= self.session().collect([item])
        except pytest.UsageError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None

    def _expected(self, item: pytest.Item) -> int:
        return self._ledger.expected.get(item.nodeid, 0)


class PlanHooks:
    """``--lmgate-plan``: say after collection what the session would measure, and run no test.

    One process collects, even with ``-n``.
    """

    def __init__(self, config: pytest.Config, hooks: GateHooks) -> None:
        config.option.dist = "no"  # xdist then starts no workers
        self._hooks, self._lines = hooks, list[str]()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Plan instead of running, unless collection failed: pytest reports that."""
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            return None
        from pytest_lmgate.measure.plan import Plan
        from pytest_lmgate.report.terminal import plan_lines

        plan, gates, ids = Plan(options.cache_folder(session.config)), self._hooks.session(), list[str]()
        for item in filter(collection.is_gated, session.items):
            if item.get_closest_marker("skip") is None:
                evaluator, evaluations = gates.evaluations(item)
                for bound in evaluations:
                    plan.add(evaluator, bound)
                ids += gates.ids(item)
        self._write(session.config, ids)
        self._lines = plan_lines(plan.measurements, [*plan.problems, *gates.cache_warnings, *self._hooks.left_out])
        if measuring := sum(map(collection.is_measuring, session.items)):
            tests = counted(measuring, "test")
            self._lines.append(f"{tests} may measure by a fixture such as ppl_of, which is known only when they run")
        return True

    def _write(self, config: pytest.Config, ids: list[str]) -> None:
        """Write the gates for ``lmgate report --join``, where one is typed; the ini file names those of runs."""
        from pytest_lmgate.judge.result import PlannedGates, to_json
        from pytest_lmgate.report.formats import write_file

        for kind, destination in options.reports(config) if config.getoption("--lmgate-report") else ():
            if kind != "json" or destination == "-":
                raise pytest.UsageError(
                    f"--lmgate-plan writes --lmgate-report json:FILE alone, got {kind}:{destination}"
                )
            try:
                write_file(config.invocation_params.dir / destination, to_json(PlannedGates(tuple(ids))).encode())
            except OSError as error:
                raise pytest.UsageError(f"--lmgate-report {kind}:{destination}: cannot be written: {error}") from error

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._lines:
            return
        terminalreporter.write_sep("=", "lmgate: the plan; nothing was measured")
        for line in self._lines:
            terminalreporter.write_line(escape_controls(line))
