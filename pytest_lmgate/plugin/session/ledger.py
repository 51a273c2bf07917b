"""The ledger of a session: which tests carry gates, and what came back. It catches what would be green by accident.

A worker that dies on the way can leave "no tests ran" with exit code 0. So each worker writes down which tests it
will gate before it runs the first, and the controller compares that with what it received.
"""

from __future__ import annotations

__all__ = ["Ledger"]

import contextlib
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

PROPERTY = "lmgate:verdicts"
"""Property in which a test's verdicts travel to the controller, in JSON; nobody is shown it."""
EXTRAS = "lmgate"
"""Attribute of a report: a mapping with what else travels. Not a property, which JUnit's XML would hold.

``entries`` for the baseline file, and ``renamed``, the former names of gates; ``remarks`` for the summary;
``measured``, what fixtures measured; ``not_kept``, models with the reason; and
``expected_to_fail`` if the test is marked xfail: a call of ``pytest.xfail``, or another plugin, excuses no gate.
"""
_HANDED_OVER = (
    "expected", "measuring", "models", "problem", "by_baseline", "folders", "deselected", "uncollected", "left_out",
)  # fmt: skip


class Ledger:
    """Expected and received verdicts, as they travel: JSON text, decoded only when rendered."""

    def __init__(self) -> None:
        """Open an empty ledger."""
        self.expected: dict[str, int] = {}  # how many gates each test carries, by node id
        self.measuring: list[str] = []  # tests that measure by a fixture: without a verdict, but their end must come
        self.models: dict[str, list[str]] = {}  # the models of each test with gates, by node id
        self.problem = ""  # why the markers could not be read
        self.by_baseline: list[str] = []  # gates that go by the committed baseline, by id
        self.deselected = False
        self.uncollected: list[str] = []  # files and folders skipped or failed at collection: their gates are unknown
        self.folders: list[str] = []  # of baselines, as `options.baseline_file` takes them
        self.left_out: list[str] = []  # which gates of lmgate.yaml pytest was led past, a sentence for each file
        self.entries: dict[str, str] = {}  # for the baseline file, in JSON, by gate
        self.renamed: dict[str, str] = {}  # former names of gates whose entry was found under it
        self.measured: dict[str, list[dict[str, Any]]] = {}  # by fixtures, by the test that asked
        self.remarks: dict[str, None] = {}  # sentences for the summary, each once
        self.not_kept: dict[str, str] = {}  # models whose measurements were not kept, with the reason
        self._verdicts: dict[str, dict[str, str]] = {}
        self._ended: set[str] = set()
        self._ended_otherwise: set[str] = set()
        self._failed: set[str] = set()  # tests of which pytest counted a failure
        self._expected_to_fail: set[str] = set()
        self._rerun: set[str] = set()  # tests of which an attempt failed that no xfail mark excused
        self._died: set[str] = set()  # tests in which a worker died

    def receive(self, report: pytest.TestReport) -> None:
        """Note a report; a gate keeps its verdict until a later attempt of its test has another."""
        self._take_verdicts(report)
        extras = getattr(report, EXTRAS, {})
        self.entries |= extras.get("entries", {})
        self.renamed |= extras.get("renamed", {})
        if measured := extras.get("measured"):
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
        if str(report.when) == "???":  # as xdist says it
            self._died.add(report.nodeid)
        if "expected_to_fail" in extras:
            self._expected_to_fail.add(report.nodeid)
        elif report.outcome not in ("passed", "failed", "skipped"):
            self._rerun.add(report.nodeid)
        if report.outcome == "failed" and not hasattr(report, "wasxfail"):  # as pytest counts: a rerun is no failure
            self._failed.add(report.nodeid)

    def _take_verdicts(self, report: pytest.TestReport) -> None:
        """Take the verdicts out of a report's properties, before JUnit's XML gets them.

        Properties are anybody's: whatever does not hold verdicts stays, even if it has no name or ours.
        """
        found = [(each, _verdicts_in(each)) for each in getattr(report, "user_properties", None) or ()]
        for _, verdicts in found:
            if verdicts is not None:
                self._verdicts.setdefault(report.nodeid, {}).update(verdicts)
                report.user_properties = [each for each, verdicts in found if verdicts is None]

    @property
    def used(self) -> list[str]:
        """Gates that may have an entry in the baseline file: those known at collection, and those that came later."""
        return [*self.by_baseline, *(name for verdicts in self._verdicts.values() for name in verdicts)]

    @property
    def expected_to_fail(self) -> set[str]:
        """Gates of tests that are marked xfail, by id; a mark that a later attempt brings excuses no earlier one."""
        return {name for test in self._expected_to_fail - self._rerun for name in self._verdicts.get(test, ())}

    def did_fail(self, test: str) -> bool:
        """Return whether a test ended otherwise than it should."""
        return test in self._failed

    def discrepancies(self) -> list[str]:
        """Say which verdicts never came although nothing else failed or skipped their test, and which did not count.

        A skip excuses no test that was run again because its worker died: there was something to be measured.
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
            and any(_failed(json.loads(verdict)) for verdict in verdicts.values())
        ]
        return lost + ignored

    def verdicts(self) -> list[str]:
        """Return the verdicts received, in JSON, in the order of the tests, whichever worker was first."""
        tests = [*self.expected, *(test for test in self._verdicts if test not in self.expected)]
        return [verdict for test in tests for verdict in self._verdicts.get(test, {}).values()]

    def hand_over(self, path: Path) -> None:
        """Tell the controller what this worker will gate; every worker writes the same."""
        temporary = path.with_suffix(f".{uuid.uuid4().hex}")
        temporary.write_text(json.dumps({key: getattr(self, key) for key in _HANDED_OVER}), encoding="utf-8")
        temporary.replace(path)

    def take_over(self, path: Path) -> None:
        """Read what a worker handed over, if any has gates."""
        if path.exists():
            data = json.loads(path.read_text(encoding="utf-8"))
            for key in _HANDED_OVER:
                setattr(self, key, data[key])


def _verdicts_in(given: object) -> dict[str, str] | None:
    """Return the verdicts that a property holds, in JSON by gate; None where it is somebody else's."""
    match given:
        case (str(name), str(text)) if name == PROPERTY:
            with contextlib.suppress(ValueError, RecursionError, AttributeError, TypeError):
                verdicts: dict[str, str] = json.loads(text)
                if all({"verdict", "blocking"} <= json.loads(verdict).keys() for verdict in verdicts.values()):
                    return verdicts
    return None


def _failed(verdict: dict[str, Any]) -> bool:
    """As `Verdict.failed`, which is not imported here: sessions without gates pay nothing."""
    return verdict["verdict"] in ("fail", "error") or bool(verdict["blocking"])
