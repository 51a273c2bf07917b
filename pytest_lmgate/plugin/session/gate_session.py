"""`GateSession`: from marked tests to verdicts, in the process that runs the tests."""

from __future__ import annotations

__all__ = ["GateFailed", "GateSession"]

import contextlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

import pytest

from pytest_lmgate.config.file import Project
from pytest_lmgate.errors import BaselineError, CacheWarning, ConfigError, LmgateError
from pytest_lmgate.evaluate.evaluator import Evaluator
from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.judge.judge import Resolve
from pytest_lmgate.metrics.divergence import Divergence
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.collection.gated import test_id
from pytest_lmgate.plugin.collection.marker_lines import MarkerLines
from pytest_lmgate.plugin.collection.yaml_items import GateItem, entry_of
from pytest_lmgate.plugin.session.ledger import PROPERTY
from pytest_lmgate.plugin.session.progress import progress_line
from pytest_lmgate.plugin.session.projects import ProjectGates, Projects
from pytest_lmgate.plugin.session.references import ask_for_fixtures, naming_fixture, value_of
from pytest_lmgate.plugin.session.users_own import users_backends, users_metrics
from pytest_lmgate.report.formats.junit import properties
from pytest_lmgate.report.measured import Measured
from pytest_lmgate.report.wording.explanation import explain
from pytest_lmgate.spec.catalogue import MARKERS_HELP
from pytest_lmgate.spec.gates import EvaluationSpec, Gate, NoRegression, untaken
from pytest_lmgate.spec.markers import parse_fixture_call, parse_marker
from pytest_lmgate.spec.yaml_gates import YamlGate

if TYPE_CHECKING:
    from _pytest.outcomes import Failed as _Failed
else:
    _Failed = pytest.fail.Exception

_SKIPS = (pytest.skip.Exception, pytest.xfail.Exception, SkipTest)
_GATES = pytest.StashKey[dict[str, Gate | NoRegression]]()
_PLACES = pytest.StashKey[dict[str, tuple[str, int]]]()
_VERDICTS = pytest.StashKey[list[Verdict]]()


class GateFailed(_Failed):
    """A gate's verdict is FAIL; its text is the whole explanation, so it is shown under ``--assert=plain`` too."""


GateFailed.__module__ = "builtins"  # as pytest's own outcomes: the short summary then shows the bare name


class GateSession:
    """Collects gates and has them judged, in the run of this id, which is the same in every worker of xdist."""

    def __init__(self, config: pytest.Config, run: str) -> None:
        self._config = config
        self.cache_warnings: list[str] = []  # not told yet
        self._remarks: list[str] = []
        self._measured: list[tuple[str, Score | Divergence]] = []  # what fixtures measured in this phase of a test
        self._progress = progress_line(config)
        try:
            self._options = options.session_options(config, run)
            self._evaluator = Evaluator(
                Project(config.rootpath),
                self._options,
                report=self._progress.show,
                note=self._progress.say,
                remark=self._remarks.append,
                warn=self.cache_warnings.append,
                users_metrics=users_metrics(config),
                users_backends=users_backends(config),
            )
        except LmgateError as error:
            raise pytest.UsageError(str(error)) from error
        config.add_cleanup(self._evaluator.resolver.close)
        self._follows_gate_of_yaml = False
        self._projects = Projects(config, self._evaluator, self._options)
        self.by_baseline: list[str] = []
        """Gates that go by the committed baseline, by id."""
        self.folders = self._projects.folders
        """Folders of baselines, as `options.baseline_file` takes them."""

    def begin(self, item: pytest.Item) -> None:
        """Note that a test begins: no measurement that is not kept outlives code of the user's.

        The gates of one test share such measurements, and so do gates of lmgate.yaml that follow each other.
        """
        is_yaml = isinstance(item, GateItem)
        if not (is_yaml and self._follows_gate_of_yaml):
            self._evaluator.forget(share=True)
        self._follows_gate_of_yaml = is_yaml

    def take_extras(self, item: pytest.Item, *, has_verdicts: bool) -> dict[str, Any]:
        """Return what the report of a phase of a test carries beside verdicts (see `EXTRAS`)."""
        gates, entries, renamed = item.stash.get(_GATES, {}) if has_verdicts else {}, {}, {}
        if gates:
            project = self._projects.of(item.path)
            entries = {name: project.judge.entries[name] for name in gates if name in project.judge.entries}
            renamed = {name: former for name in gates if (former := project.baselines.renamed.get(name))}
        remarks, self._remarks[:] = list(dict.fromkeys(self._remarks)), []
        measured = [asdict(Measured.of(test_id(item), fixture, score)) for fixture, score in self._measured]
        self._measured.clear()
        extras = {"entries": entries, "renamed": renamed, "remarks": remarks, "measured": measured}
        extras["not_kept"] = dict(self._evaluator.not_kept)
        return {key: value for key, value in extras.items() if value}

    def collect(self, items: Sequence[pytest.Item]) -> dict[str, int]:
        """Read the markers of `items`, and return how many gates each test carries, by node id.

        Raises:
            pytest.UsageError: A marker's arguments are wrong; every wrong one is named.
        """
        problems: list[str] = []
        expected, lines = {}, MarkerLines()
        for item in items:
            try:
                project = self._projects.of(item.path)
            except LmgateError as error:  # no fault of the gates whose names it has, and said once
                problems.append(str(error))
                continue
            gates: dict[str, Gate | NoRegression] = {}
            places: dict[str, tuple[str, int]] = {}
            labels: set[str] = set()
            for mark in reversed([mark for mark in item.iter_markers() if mark.name in MARKERS_HELP]):
                entry = entry_of(item, mark)
                try:
                    gate = self._read(item, mark, entry, project)
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
                    labels.add(label := untaken(gate.label, labels))
                    identity = f"{test}::{label}"
                gates[identity] = gate
                places[identity] = lines.place_of(item, mark)
                if gate.uses_baseline:
                    self.by_baseline.append(identity)
            item.stash[_GATES], item.stash[_PLACES] = gates, places
            expected[item.nodeid] = len(gates)
            if self._config.getoption("no_lmgate"):
                item.add_marker(pytest.mark.skip(reason="--no-lmgate: gates are not judged"))
        if problems:
            raise pytest.UsageError("\n".join(dict.fromkeys(problems)))
        return expected

    def models_of(self, item: pytest.Item) -> list[str]:
        """Return the models that a test's gates load: names in a project, which a worker of xdist loads alone."""
        evaluator, found = self.evaluations(item)
        project = evaluator.project
        served = {name for name, model in project.spec.models.items() if model.server}
        names = [name for what in found for name in what.loaded_names if name not in served]
        return list(dict.fromkeys(f"{project.folder}: {name}" for name in names))

    def evaluations(self, item: pytest.Item) -> tuple[Evaluator, list[EvaluationSpec]]:
        """Return what evaluates the gates of a test, and what they evaluate."""
        found = [what for gate in item.stash[_GATES].values() for what in gate.evaluations]
        return self._projects.of(item.path).evaluator, found

    def share_processors(self, workers: int) -> None:
        """Note that only so many workers of xdist measure, so that each may use more processors."""
        for project in self._projects.all():
            project.evaluator.resolver.workers = min(workers, self._options.workers)

    def note_gates(self, *, are_all: bool) -> None:
        """Note which gates were collected: where they are all, unused entries of the baseline file are known."""
        for project in self._projects.all():
            project.baselines.gates, project.baselines.has_all_gates = frozenset(self.by_baseline), are_all

    def _read(
        self, item: pytest.Item, mark: pytest.Mark, entry: YamlGate | None, project: ProjectGates
    ) -> Gate | NoRegression:
        gate = entry.gate if entry else parse_marker(mark.name, mark.args, mark.kwargs)
        try:
            project.evaluator.check(gate)
        except ConfigError as error:
            raise naming_fixture(item, gate, error) from None
        if gate.uses_baseline:
            project.read_baseline()
        ask_for_fixtures(item, gate)
        return gate

    def measure(self, item: pytest.Item) -> None:
        """Measure and judge every gate of a test; called in its setup phase.

        Raises:
            pytest.fail.Exception: Something could not be measured; the explanation names all of it.
            Exception: Something failed that this package does not account for; it comes with its traceback.
            BaseException: A function that was measured skipped the test, and no gate failed.
        """
        verdicts: list[Verdict] = []
        unexpected: Exception | None = None
        skipped: BaseException | None = None
        with self._projects.of(item.path).evaluator.sharing():
            for identity, gate in item.stash[_GATES].items():
                try:
                    with self._progress:
                        verdict, error = self._judged(item, identity, gate, lambda given: value_of(given, item))
                    if isinstance(error, SkipTest):
                        raise error
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
        # A gate that was judged fails its test, whatever another one does.
        if skipped is not None and not any(verdict.failed for verdict in verdicts):
            raise skipped

    def give_up(self, item: pytest.Item, reason: str) -> None:
        """Note gates that were not measured since their test could not be set up; reports are to have them too."""
        if _VERDICTS in item.stash:
            return

        def refuse(_: object) -> None:
            raise LmgateError(f"not measured, as the test could not be set up: {reason}")

        gates = item.stash[_GATES].items()
        verdicts = [self._judged(item, identity, gate, refuse)[0] for identity, gate in gates]
        item.stash[_VERDICTS] = verdicts
        _attach(item, verdicts)

    def _judged(
        self, item: pytest.Item, identity: str, gate: Gate | NoRegression, resolve: Resolve
    ) -> tuple[Verdict, Exception | None]:
        verdict, error = self._projects.of(item.path).judge.judge(gate, identity, test_id(item), resolve)
        file, line = item.stash[_PLACES][identity]
        return replace(verdict, file=file, line=line), error

    def raise_failures(self, item: pytest.Item) -> None:
        """Raise `GateFailed` if a verdict fails the test; called in its call phase."""
        failed = [verdict for verdict in item.stash.get(_VERDICTS, []) if verdict.failed]
        if failed:
            raise GateFailed("\n\n".join(explain(verdict) for verdict in failed), pytrace=False)

    def score(self, path: Path, fixture: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Score | Divergence:
        """Measure what a fixture such as ``ppl_of`` was asked for, by a test in the file `path`.

        Raises:
            LmgateError: It cannot be measured.
        """
        __tracebackhide__ = True
        self._evaluator.forget()
        try:
            evaluator, what = self._projects.of(path).evaluator, parse_fixture_call(fixture, args, kwargs)
            with self._progress:
                score = evaluator.evaluate(what) if what.is_number else evaluator.compare(what)
        except LmgateError as error:
            # The message says it all; the way down to where it was noticed is ours, not the user's.
            raise error.with_traceback(None) from None
        finally:
            self._evaluator.forget()
        self._measured.append((fixture, score))
        self._emit_warnings()
        return score

    def verify(self) -> dict[str, Any]:
        """Measure some of the cache hits again; see `Verification.run`."""
        with self._progress:
            return self._evaluator.verify()

    def _emit_warnings(self) -> None:
        """Warn of the cache only once what was measured is safe: under ``-W error`` a warning raises."""
        messages, self.cache_warnings[:] = dict.fromkeys(self.cache_warnings), []
        for message in messages:
            warnings.warn(CacheWarning(message), stacklevel=3)


def _attach(item: pytest.Item, verdicts: Sequence[Verdict]) -> None:
    """Put verdicts where reports carry them: plain values only, since execnet takes no others.

    The controller takes the JSON out again; the rest is for JUnit's XML and the like.
    """
    item.user_properties.append((PROPERTY, json.dumps({verdict.id: verdict.to_json() for verdict in verdicts})))
    for verdict in verdicts:
        item.user_properties += [(f"lmgate.{verdict.label}.{key}", value) for key, value in properties(verdict).items()]
