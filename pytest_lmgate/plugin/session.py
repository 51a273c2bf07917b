"""`GateSession`: from marked tests to verdicts, in the process that runs the tests."""

from __future__ import annotations

import contextlib
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest import SkipTest

import pytest

from pytest_lmgate.engines.registry import collected_backends
from pytest_lmgate.errors import (
    BaselineError,
    CacheWarning,
    ConfigError,
    LmgateError,
    RequirementError,
    escape_controls,
)
from pytest_lmgate.judge.baseline import Baselines, gate_of
from pytest_lmgate.judge.judge import Judge, hub_dataset
from pytest_lmgate.judge.result import FixtureCall, HubDataset, Verdict
from pytest_lmgate.measure.binding import Bound, BoundGate
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.loop import Log
from pytest_lmgate.metrics.divergence import Divergence
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.texts import collected_metrics
from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.collection import MarkerLines, test_id
from pytest_lmgate.plugin.options import update
from pytest_lmgate.plugin.private import fixture_definitions
from pytest_lmgate.plugin.yaml_items import GateItem, entry_of
from pytest_lmgate.report.explanation import explain
from pytest_lmgate.report.text import ProgressLine
from pytest_lmgate.report.wording import properties
from pytest_lmgate.settings.decoding import parse_fixture_call, parse_marker
from pytest_lmgate.settings.entries import Project
from pytest_lmgate.settings.file import YamlGate, load_project
from pytest_lmgate.settings.gates import FixtureReference, untaken
from pytest_lmgate.settings.metrics import MARKER_NAMES
from pytest_lmgate.settings.options import BASELINE_NAME, FILE_NAME, find_project_file, misspelt
from pytest_lmgate.settings.session import Options

_SKIPS = (pytest.skip.Exception, pytest.xfail.Exception, SkipTest)
_GATES = pytest.StashKey[dict[str, BoundGate]]()
_PLACES = pytest.StashKey[dict[str, tuple[str, int]]]()
_VERDICTS = pytest.StashKey[list[Verdict]]()


class GateFailed(pytest.fail.Exception):  # type: ignore[name-defined, misc]  # mypy takes an attribute for no class
    """A FAIL; its text is the whole explanation, so that ``--assert=plain`` shows it too."""


GateFailed.__module__ = "builtins"  # as pytest's own outcomes: the short summary then shows the bare name


class GateSession:
    """Collects gates and has them judged, in one run, whose id all workers of xdist share."""

    def __init__(self, config: pytest.Config, run: str) -> None:
        self._config = config
        self.cache_warnings: list[str] = []  # not told yet
        self._remarks: list[str] = []
        self._measured: list[
            tuple[str, Score | Divergence, HubDataset | None]
        ] = []  # what fixtures measured in this phase of a test
        self._progress = _progress_line(config)
        try:
            self._options = options.session_options(config, run)
            self._evaluator = Evaluator(
                Project(config.rootpath),
                self._options,
                Log(self._progress.show, self._progress.say, self._remarks.append, self.cache_warnings.append),
                users_metrics=_registered(config, "pytest_lmgate_metrics", "TextMetric", collected_metrics),
                users_backends=_registered(config, "pytest_lmgate_backends", "Backend", collected_backends),
            )
        except LmgateError as error:
            raise pytest.UsageError(str(error)) from error
        config.add_cleanup(self._evaluator.close)
        self._follows_gate_of_yaml = False
        self._projects = Projects(config, self._evaluator, self._options)
        self.by_baseline: list[str] = []
        """Gates that go by the committed baseline, by id."""
        self.folders = self._projects.folders
        """Folders of baselines, as `options.baseline_file` takes them."""

    def begin(self, item: pytest.Item) -> None:
        """Note that a test begins: uncacheable measurements do not outlive code of the user's.

        The gates of one test share them, and so do consecutive gates of lmgate.yaml.
        """
        is_yaml = isinstance(item, GateItem)
        if not (is_yaml and self._follows_gate_of_yaml):
            self._evaluator.forget(share=True)
        self._follows_gate_of_yaml = is_yaml

    def take_extras(self, item: pytest.Item, *, has_verdicts: bool) -> dict[str, Any]:
        """Return what the report of a phase of a test carries (see `EXTRAS`)."""
        gates, entries = item.stash.get(_GATES, {}) if has_verdicts else {}, {}
        if gates:
            judge = self._projects.of(item.path)
            entries = {name: entry for name, entry in judge.entries.items() if name in gates or gate_of(name) in gates}
        remarks, self._remarks[:] = list(dict.fromkeys(self._remarks)), []
        measured = [FixtureCall.of(test_id(item), *measured) for measured in self._measured]
        self._measured.clear()
        verdicts = {verdict.id: verdict for verdict in item.stash.get(_VERDICTS, [])}
        extras = {"verdicts": verdicts, "entries": entries, "remarks": remarks, "measured": measured}
        extras["not_kept"] = dict(self._evaluator.measurements.uncacheable_reasons)
        return {key: value for key, value in extras.items() if value}

    def collect(self, items: Sequence[pytest.Item]) -> dict[str, int]:
        """Read the markers of `items`, and return the number of gates of each test by node id."""
        problems: list[str] = []
        expected, lines = {}, MarkerLines()
        for item in items:
            try:
                judge = self._projects.of(item.path)
            except LmgateError as error:  # no fault of the gates whose names it has, and said once
                problems.append(str(error))
                continue
            gates: dict[str, BoundGate] = {}
            places: dict[str, tuple[str, int]] = {}
            labels: set[str] = set()
            for mark in reversed([mark for mark in item.iter_markers() if mark.name in MARKER_NAMES]):
                entry = entry_of(item, mark)
                try:
                    bound = self._read(item, mark, entry, judge)
                except BaselineError as error:  # no fault of the gates that are judged by it, and said once
                    problems.append(str(error))
                    continue
                except LmgateError as error:
                    where = f"{item.nodeid}: @pytest.mark.{mark.name}"
                    problems.append(entry.problem(error) if entry else f"{where}: {error}")
                    continue
                test = test_id(item)
                identity = test
                if entry is None:
                    labels.add(label := untaken(bound.gate.label, labels))
                    identity = f"{test}::{label}"
                gates[identity] = bound
                places[identity] = lines.place_of(item, mark)
                if bound.gate.uses_baseline:
                    self.by_baseline.append(identity)
            item.stash[_GATES], item.stash[_PLACES] = gates, places
            expected[item.nodeid] = len(gates)
            if self._config.getoption("no_lmgate"):
                item.add_marker(pytest.mark.skip(reason="--no-lmgate: gates are not judged"))
        if problems:
            raise pytest.UsageError("\n".join(dict.fromkeys(problems)))
        for judge in self._projects.judges.values():
            judge.baselines.gates = frozenset(self.by_baseline)  # unused entries may be those of renamed gates
        return expected

    def models_of(self, item: pytest.Item) -> list[str]:
        """Return the names of the models that a test's gates load, which only one worker of xdist should load."""
        evaluator, evaluations = self.evaluations(item)
        project = evaluator.project
        served = {name for name, model in project.spec.models.items() if model.server or model.results}
        names = [name for each in evaluations for name in each.what.loaded_names if name not in served]
        return list(dict.fromkeys(f"{project.folder}: {name}" for name in names))

    def evaluations(self, item: pytest.Item) -> tuple[Evaluator, list[Bound]]:
        """Return what measures for the gates of a test, and what they measure."""
        sides = [side for gate in item.stash[_GATES].values() for side in gate.sides]
        return self._projects.of(item.path).evaluator, sides

    def ids(self, item: pytest.Item) -> list[str]:
        """Return the ids of a test's gates."""
        gates = item.stash[_GATES]
        return list(gates)

    def share_processors(self, workers: int) -> None:
        """Note that only so many workers of xdist measure, so each may use more processors."""
        for judge in self._projects.judges.values():
            judge.evaluator.resolver.workers = min(workers, self._options.workers)

    def _read(self, item: pytest.Item, mark: pytest.Mark, entry: YamlGate | None, judge: Judge) -> BoundGate:
        gate = entry.gate if entry else parse_marker(mark.name, mark.args, mark.kwargs)
        try:
            bound = judge.evaluator.bind_gate(gate)
        except ConfigError as error:
            raise _naming_fixture(item, gate.given, error) from None
        if gate.uses_baseline:
            judge.baselines.read()
        for given in gate.given:
            if isinstance(given, FixtureReference):
                _request_fixture(given.name, item)
        return bound

    def measure(self, item: pytest.Item) -> None:
        """Measure and judge all gates of a test, in its setup phase."""
        verdicts: list[Verdict] = []
        unexpected: Exception | None = None
        skipped: BaseException | None = None
        judge, places = self._projects.of(item.path), item.stash[_PLACES]

        def resolve(given: Any) -> Any:
            return getattr(item, "funcargs", {})[given.name] if isinstance(given, FixtureReference) else given

        with judge.evaluator.sharing():
            for identity, bound in item.stash[_GATES].items():
                try:
                    with self._progress:
                        verdict, error = judge.judge(bound, identity, test_id(item), resolve, places[identity])
                    if isinstance(error, SkipTest):
                        raise error
                    if isinstance(error, RequirementError):
                        self._skip_unless_required(error)
                        error = None
                except _SKIPS as outcome:  # by a function that a gate measures
                    skipped = skipped or outcome
                    continue
                verdicts.append(verdict)
                unexpected = unexpected or error
        if not self._follows_gate_of_yaml:
            self._evaluator.forget()
        item.stash[_VERDICTS] = verdicts
        _attach(item, verdicts)
        if any(verdict.verdict == "error" for verdict in verdicts):
            with contextlib.suppress(CacheWarning):  # under -W error it would hide the graver message
                self._emit_warnings()
            explanation = "\n\n".join(explain(verdict) for verdict in verdicts if verdict.failed)
            if unexpected is None:
                pytest.fail(explanation, pytrace=False)
            item.add_report_section("setup", "lmgate", explanation)
            raise unexpected
        self._emit_warnings()
        # A gate that was judged fails its test, even if another one raises.
        if skipped is not None and not any(verdict.failed for verdict in verdicts):
            raise skipped

    def record_setup_failure(self, item: pytest.Item, reason: str) -> None:
        """Note gates that were not measured because their test's setup failed, for the reports."""
        if _VERDICTS in item.stash:
            return

        judge, places, test = self._projects.of(item.path), item.stash[_PLACES], test_id(item)
        message = escape_controls(f"not measured, as the test could not be set up: {reason}")
        verdicts = [
            judge.unmeasured(each.gate, identity, test, places[identity], message)
            for identity, each in item.stash[_GATES].items()
        ]
        item.stash[_VERDICTS] = verdicts
        _attach(item, verdicts)

    def raise_failures(self, item: pytest.Item) -> None:
        """Raise `GateFailed` if a verdict fails the test, in its call phase."""
        failed = [verdict for verdict in item.stash.get(_VERDICTS, []) if verdict.failed]
        if failed:
            raise GateFailed("\n\n".join(explain(verdict) for verdict in failed), pytrace=False)

    def score(self, path: Path, fixture: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Score | Divergence:
        """Measure for a fixture such as ``ppl_of`` in a test of the file `path`."""
        __tracebackhide__ = True
        self._evaluator.forget()
        try:
            evaluator, what = self._projects.of(path).evaluator, parse_fixture_call(fixture, args, kwargs)
            bound = evaluator.bind(what)
            with self._progress:
                score = evaluator.evaluate(bound) if what.is_number else evaluator.compare(bound)
        except LmgateError as error:
            if isinstance(error, RequirementError):
                self._skip_unless_required(error)
            # The message says it all; the way down to where it was noticed is ours, not the user's.
            raise error.with_traceback(None) from None
        finally:
            self._evaluator.forget()
        self._measured.append((fixture, score, hub_dataset(bound.data)))
        self._emit_warnings()
        return score

    def _skip_unless_required(self, error: RequirementError) -> None:
        if not options.flag(self._config, "require-all"):
            raise pytest.skip.Exception(str(error)) from None

    def verify(self) -> dict[str, Any]:
        with self._progress:
            return vars(self._evaluator.measurements.verify())

    def _emit_warnings(self) -> None:
        """Warn of the cache only after everything is saved: under ``-W error`` a warning raises."""
        messages, self.cache_warnings[:] = dict.fromkeys(self.cache_warnings), []
        for message in messages:
            warnings.warn(CacheWarning(message), stacklevel=3)


def _progress_line(config: pytest.Config) -> ProgressLine:
    # A worker of xdist has no terminal and writes to the controller's standard error.
    is_worker = hasattr(config, "workerinput")

    def on_terminal() -> bool:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        return not is_worker and terminal is not None and bool(terminal.isatty)

    def write(text: str) -> None:
        capture: Any = config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            stream = sys.__stderr__ if is_worker and sys.__stderr__ is not None else sys.stdout
            stream.write(text)
            stream.flush()

    return ProgressLine(write, on_terminal, apart=True)


def _attach(item: pytest.Item, verdicts: Sequence[Verdict]) -> None:
    """Give JUnit's XML and the like the verdicts' main values."""
    for verdict in verdicts:
        item.user_properties += [(f"lmgate.{verdict.label}.{key}", value) for key, value in properties(verdict).items()]


class Projects:
    """The projects of a session, each read for its first test; all share measurements."""

    def __init__(self, config: pytest.Config, evaluator: Evaluator, settings: Options) -> None:
        self._config, self._evaluator, self._options = config, evaluator, settings
        self._files: dict[Path, Path | None] = {}
        self.judges: dict[Path | None, Judge] = {}
        self.folders: list[str] = []
        """Folders of the projects' baselines, as `options.baseline_file` takes them."""

    def of(self, path: Path) -> Judge:
        file = self._file(path)
        if file not in self.judges:
            self.judges[file] = self._read(file)
        return self.judges[file]

    def _file(self, path: Path) -> Path | None:
        if path not in self._files:
            named, folder = options.project_file(self._config), path if path.is_dir() else path.parent
            found = find_project_file(folder) or find_project_file(self._config.rootpath)
            if named is None and found is not None:
                _refuse_misnamed(folder, found)
            self._files[path] = named or found
        return self._files[path]

    def _read(self, file: Path | None) -> Judge:
        named, root = options.project_file(self._config), self._config.rootpath
        project = Project(root) if file is None else load_project(file.parent, named)
        evaluator, folder = self._evaluator.for_project(project), options.baseline_folder(self._config, file)
        path, prefix = options.baseline_file(self._config, folder)
        ambiguous = self._ambiguous_baseline(file)
        baselines = Baselines(
            path,
            update(self._config),
            self._options.arguments,
            prefix,
            ambiguous=ambiguous,
            label=project.spec.label,
            alike=project.spec.devices,
        )
        self.folders.append(folder)
        return Judge(evaluator, self._options, baselines)

    def _ambiguous_baseline(self, file: Path | None) -> str:
        """Say why a project's baseline file is ambiguous; empty if it is not."""
        root = self._config.rootpath
        if file is None or options.text(self._config, "baseline"):
            return ""
        nearby = file.parent / BASELINE_NAME
        if options.project_file(self._config):
            if file.parent == root or not nearby.exists():
                return ""
            return (
                f"{nearby} is next to the lmgate.yaml of --lmgate-config, whose baseline is in rootdir, {root}: "
                "choose one of them with --lmgate-baseline"
            )
        if file.parent.is_relative_to(root) or root.is_relative_to(file.parent):
            return ""
        return (
            f"{file} lies outside of pytest's rootdir, {root}, so that ids do not tell its gates from those of other "
            "projects: call pytest with --rootdir of a folder that contains them all"
        )


def _refuse_misnamed(folder: Path, found: Path) -> None:
    """Refuse an lmgate.yml, or other spelling, that is nearer than the file that would be read instead."""
    for each in (folder, *folder.parents):
        if each == found.parent:
            return
        if wrong := misspelt(each):
            raise ConfigError(f"{wrong[0]} is not read, since only a file named {FILE_NAME} is: rename it")


# The metrics and engines that a conftest or another plugin registers, and the messages if that fails.


T = TypeVar("T")


def _registered(
    config: pytest.Config, hook: str, kind: str, collect: Callable[[Iterable[Any]], Mapping[str, T]]
) -> Mapping[str, T]:
    try:
        return collect(
            [each for given in getattr(config.hook, hook)(config=config) for each in _listed(given, hook, kind)]
        )
    except LmgateError as error:
        raise pytest.UsageError(str(error)) from error
    except Exception as error:  # it is the user's code that ran
        message = f"{line_of(error, config, hook)}{hook}: {type(error).__name__}: {error}"
        raise pytest.UsageError(message) from error


def _listed(given: Any, hook: str, kind: str) -> Iterable[Any]:
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(f"{hook}: expected a list of {kind} objects, got {type(given).__name__} {given!r:.80}")
    return given


def line_of(error: BaseException, config: pytest.Config, hook: str) -> str:
    """Return the file and line of the user's hook in which an error arose; empty if it arose elsewhere."""
    files = {each.function.__code__.co_filename for each in getattr(config.hook, hook).get_hookimpls()}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""


# The user's fixtures that ``lmgate.fixture("name")`` names: pytest sets such a fixture up with the test's own, and its
# value stands in the gate.


def _naming_fixture(item: pytest.Item, names: Iterable[Any], error: ConfigError) -> ConfigError:
    """Add a hint to the error of an unknown name if the test has a fixture of that name."""
    for name in names:
        is_it = isinstance(name, str) and f"{name!r} is not known" in str(error) and hasattr(item, "fixturenames")
        if is_it and fixture_definitions(item, name):
            hint = f"; {name!r} is a fixture: lmgate.fixture({name!r}) stands for its value"
            return ConfigError(f"{error}{hint}")
    return error


def _request_fixture(name: str, item: pytest.Item) -> None:
    """Have pytest set a fixture up for a test that does not name it among its arguments."""
    names: list[str] | None = getattr(item, "fixturenames", None)
    if names is None:
        raise ConfigError(f"lmgate.fixture({name!r}): a {type(item).__name__} has no fixtures; name a model")
    if not fixture_definitions(item, name):
        if name in _parameters(item):
            raise ConfigError(
                f"lmgate.fixture: {name!r} is an argument of parametrize, not a fixture: make it one and say "
                f"indirect=[{name!r}], or give each value its marker by pytest.param(..., marks=...)"
            )
        raise ConfigError(
            f"lmgate.fixture: no fixture {name!r} for this test; pytest --fixtures lists the known fixtures"
        )
    if name in names:
        return
    if parametrized := _without_parameter(name, item, set()):
        raise ConfigError(
            f"lmgate.fixture: fixture {parametrized!r} has params: pytest collects a test once for each of them only "
            f"if the test asks for the fixture; add {name!r} to the test's arguments or to @pytest.mark.usefixtures"
        )
    names.append(name)


def _parameters(item: pytest.Item) -> Mapping[str, Any]:
    return getattr(getattr(item, "callspec", None), "params", {})


def _without_parameter(name: str, item: pytest.Item, seen: set[str]) -> str:
    """Return the first fixture with params, of `name` and those that it needs, that this test does not request."""
    if name in seen or name in _parameters(item):
        return ""
    seen.add(name)
    definitions = fixture_definitions(item, name)
    if any(definition.params is not None for definition in definitions[-1:]):
        return name
    needed = (other for definition in definitions for other in definition.argnames)
    return next(filter(None, (_without_parameter(other, item, seen) for other in needed)), "")
