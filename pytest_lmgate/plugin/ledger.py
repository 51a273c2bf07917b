"""The ledger of a session: which tests carry gates, and what came back. It catches what would be green by accident.

A worker that dies on the way can leave "no tests ran" with exit code 0. So each worker writes down which tests it
will gate before it runs the first, and the controller compares that with what it received.
"""

from __future__ import annotations

import ast
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    import msgspec

    from pytest_lmgate.judge.baseline import BaselineEntry
    from pytest_lmgate.judge.result import FixtureCall, Verdict

_Record = TypeVar("_Record", bound="msgspec.Struct")

VERIFIED = "lmgate_verified"
"""Key of what came of ``--lmgate-verify`` in a worker, in the output that xdist sends to the controller."""
EXTRAS = "lmgate"
"""Attribute of a report: a mapping of what travels to the controller. Not a property, which other plugins would show.

``verdicts`` by gate; ``entries`` for the baseline file; ``remarks`` for the summary; ``measured``, what fixtures
measured; ``not_kept``, models with the reason; and ``expected_to_fail`` if the test is marked xfail: a call of
``pytest.xfail``, or another plugin, excuses no gate.
"""
_DUMPED = (
    "expected", "measuring", "models", "problem", "by_baseline", "folders", "deselected", "collected", "uncollected",
    "left_out",
)  # fmt: skip


class Ledger:
    """Expected and received verdicts."""

    def __init__(self) -> None:
        self.expected: dict[str, int] = {}  # how many gates each test carries, by node id
        self.measuring: list[str] = []  # tests that measure by a fixture: without a verdict, but their end must come
        self.models: dict[str, list[str]] = {}  # the models of each test with gates, by node id
        self.problem = ""  # why the markers could not be read
        self.by_baseline: list[str] = []  # gates that go by the committed baseline, by id
        self.deselected = False
        self.collected: list[str] = []  # files and folders that were collected whole
        self.uncollected: list[str] = []  # files and folders skipped or failed at collection: their gates are unknown
        self.folders: list[str] = []  # of baselines, as `options.baseline_file` takes them
        self.left_out: list[str] = []  # which gates of lmgate.yaml pytest was led past, a sentence for each file
        self.entries: dict[str, BaselineEntry] = {}  # for the baseline file, by gate
        self.measured: dict[str, list[FixtureCall]] = {}  # by fixtures, by the test that asked
        self.remarks: dict[str, None] = {}  # sentences for the summary, each once
        self.not_kept: dict[str, str] = {}  # models whose measurements were not kept, with the reason
        self.verified: list[dict[str, Any]] = []  # what came of measuring cache hits again, of each process
        self._verdicts: dict[str, dict[str, Verdict]] = {}
        self._ended: set[str] = set()
        self._ended_otherwise: set[str] = set()
        self._failed: set[str] = set()  # tests of which pytest counted a failure
        self._expected_to_fail: set[str] = set()
        self._rerun: set[str] = set()  # tests of which an attempt failed that no xfail mark excused
        self._died: set[str] = set()  # tests in which a worker died
        self._skipped: dict[str, str] = {}  # why tests were skipped, by node id

    def receive(self, report: pytest.TestReport) -> None:
        """Note a report; a later attempt of a test replaces its verdicts."""
        extras = vars(report).pop(EXTRAS, {})
        if extras.keys() & {"verdicts", "entries", "measured"}:
            from pytest_lmgate.judge.baseline import BaselineEntry
            from pytest_lmgate.judge.result import FixtureCall, Verdict

            verdicts = {name: _record(each, Verdict) for name, each in extras.get("verdicts", {}).items()}
            self._verdicts.setdefault(report.nodeid, {}).update(verdicts)
            self.entries |= {name: _record(each, BaselineEntry) for name, each in extras.get("entries", {}).items()}
            if measured := [_record(each, FixtureCall) for each in extras.get("measured", ())]:
                self.measured.setdefault(report.nodeid, []).extend(measured)
        self.remarks |= dict.fromkeys(extras.get("remarks", ()))
        self.not_kept |= extras.get("not_kept", {})
        is_part = hasattr(report, "context")  # a subtest, whose end is not the test's
        if report.when != "setup" and not is_part:
            self._ended.add(report.nodeid)
        if report.outcome != "passed" and not (is_part and report.outcome == "skipped"):
            self._ended_otherwise.add(report.nodeid)
        if is_part:
            return
        if report.outcome == "skipped":
            self._skipped[report.nodeid] = skip_reason(report)
        if str(report.when) == "???":  # as xdist says it
            self._died.add(report.nodeid)
        if "expected_to_fail" in extras:
            self._expected_to_fail.add(report.nodeid)
        elif report.outcome not in ("passed", "failed", "skipped"):
            self._rerun.add(report.nodeid)
        if report.outcome == "failed" and not hasattr(report, "wasxfail"):  # as pytest counts: a rerun is no failure
            self._failed.add(report.nodeid)

    @property
    def has_news(self) -> bool:
        """Whether there is anything to check, to write or to show; a session without gates has nothing."""
        known = (self.expected, self.measuring, self._verdicts, self.entries, self.measured, self.verified)
        return any(known) or any((self.remarks, self.not_kept, self.left_out))

    @property
    def used(self) -> list[str]:
        """Return the gates that may have a baseline entry: those known at collection, and later ones."""
        return [*self.by_baseline, *(name for verdicts in self._verdicts.values() for name in verdicts)]

    def was_looked_for(self, gate: str, root: Path) -> bool:
        """Return whether a gate would have been found: its file was collected, or is gone from the root folder.

        A test that its file defines under a condition may not be there on this machine.
        """
        name = gate.partition("::")[0]
        if gate.startswith(tuple(self.uncollected)):
            return False
        if name not in self.collected:
            return not (root / name).exists()
        test = gate.rpartition("::")[0].partition("[")[0]
        is_here = any(each.partition("[")[0] == test for each in self.expected)
        return is_here or test.rpartition("::")[2] not in _conditional(root / name)

    @property
    def expected_to_fail(self) -> set[str]:
        """Return the ids of gates of xfail tests; a mark of a later attempt excuses no earlier failure."""
        return {name for test in self._expected_to_fail - self._rerun for name in self._verdicts.get(test, ())}

    def did_fail(self, test: str) -> bool:
        return test in self._failed

    def discrepancies(self) -> list[str]:
        """Name verdicts that never arrived without a failure or skip to explain it, and failures that did not count.

        A skip does not excuse a test that ran again because its worker died: it had something to measure.
        """
        excused = self._ended_otherwise - (self._died - self._failed)
        without_verdict = [
            test
            for test, count in self.expected.items()
            if len(self._verdicts.get(test, ())) < count and test not in excused
        ]
        heard = {*without_verdict, *self._ended, *self._ended_otherwise}
        lost = [f"the verdict of {test} never arrived" for test in without_verdict]
        lost += [
            f"the report of {test} never arrived"
            for test in dict.fromkeys([*self.expected, *self.measuring])
            if test not in heard
        ]
        ignored = [
            f"{test} did not fail although a gate of it did"
            for test, verdicts in self._verdicts.items()
            if test not in self._failed | (self._expected_to_fail - self._rerun)
            and any(verdict.failed for verdict in verdicts.values())
        ]
        return lost + ignored

    def not_run(self) -> list[str]:
        """Return a sentence for each reason for which tests with gates or measurements were skipped."""
        by_reason: dict[str, list[str]] = {}
        for test in dict.fromkeys([*self.expected, *self.measuring]):
            is_whole = len(self._verdicts.get(test, ())) >= self.expected.get(test, 1) or test in self.measured
            if test in self._skipped and not is_whole:
                by_reason.setdefault(self._skipped[test], []).append(test)
        return [
            f"{'a gate' if len(tests) == 1 else f'gates of {len(tests)} tests'} did not run ({reason}): "
            f"{', '.join(tests[:3])}{' and more' if len(tests) > 3 else ''}"
            for reason, tests in by_reason.items()
        ]

    def verdicts(self) -> Sequence[Verdict]:
        """Return the received verdicts in the order of the tests."""
        tests = [*self.expected, *(test for test in self._verdicts if test not in self.expected)]
        return [verdict for test in tests for verdict in self._verdicts.get(test, {}).values()]

    def dump(self, path: Path) -> None:
        """Tell the controller what this worker will gate; every worker writes the same."""
        temporary = path.with_suffix(f".{uuid.uuid4().hex}")
        temporary.write_text(json.dumps({key: getattr(self, key) for key in _DUMPED}), encoding="utf-8")
        temporary.replace(path)

    def load(self, path: Path) -> None:
        """Read what a worker dumped, if any has gates."""
        if path.exists():
            data = json.loads(path.read_text(encoding="utf-8"))
            for key in _DUMPED:
                setattr(self, key, data[key])


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where = report.longrepr  # a file, a line and the reason
    reason = getattr(report, "wasxfail", "") or (where[-1] if isinstance(where, list | tuple) else where)
    return str(reason).removeprefix("Skipped: ")


def _record(value: Any, kind: type[_Record]) -> _Record:
    """Return a record that never left its process, or that a worker sent."""
    if isinstance(value, kind):
        return value
    import msgspec

    return msgspec.convert(json.loads(value), kind)


def _conditional(file: Path) -> set[str]:
    """Return the functions that a Python file defines under a condition, such as ``if torch.cuda.is_available():``."""
    if file.suffix != ".py" or not file.exists():
        return set()
    branches = [each for each in ast.walk(ast.parse(file.read_bytes())) if isinstance(each, ast.If | ast.Try)]
    inner = [each for branch in branches for each in ast.walk(branch)]
    return {each.name for each in inner if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
