"""The ledger finds verdicts that never came, or that came and did not count."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from execnet import gateway_base

from pytest_lmgate.judge.result import FixtureCall
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.plugin.ledger import EXTRAS, Ledger
from pytest_lmgate.plugin.xdist import to_builtins
from tests.judge.records import ENTRY, record

TEST = "test_a.py::test_one"


def report(
    when: str = "call", outcome: str = "passed", *, test: str = TEST, verdicts: Any = None, **more: Any
) -> pytest.TestReport:
    judged = {name: record(1.0, id=name, verdict=verdict) for name, verdict in (verdicts or {}).items()}
    made: Any = pytest.TestReport(test, ("test_a.py", 1, "test_one"), {}, outcome, None, when)  # type: ignore[arg-type]
    extras = {**({} if verdicts is None else {"verdicts": judged}), **more.pop(EXTRAS, {})}
    for name, value in ({EXTRAS: extras} | more).items():
        setattr(made, name, value)
    return made  # type: ignore[no-any-return]


def ledger(*reports: pytest.TestReport, expected: int = 1) -> Ledger:
    made = Ledger()
    made.expected = {TEST: expected}
    for each in reports:
        made.receive(each)
    return made


def test_a_test_that_passed_with_a_verdict_too_few_or_of_which_nothing_was_heard_is_named_once() -> None:
    too_few = ledger(report("call", verdicts={"g": "pass"}), report("teardown"), expected=2)
    for made in (too_few, ledger()):
        assert made.discrepancies() == [f"the verdict of {TEST} never arrived"]


def test_a_measuring_test_is_to_be_heard_of_and_the_end_of_a_subtest_is_not_its_end() -> None:
    made = Ledger()
    made.measuring = [TEST]
    for each in (report("setup"), report("call", context="a subtest")):
        made.receive(each)
        assert made.discrepancies() == [f"the report of {TEST} never arrived"]
    made.receive(report("call"))
    assert made.discrepancies() == []


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        ([report("setup", verdicts={"g": "pass"}), report("call", verdicts={"g": "pass"}), report("teardown")], []),
        ([report("setup", "skipped"), report("teardown")], []),
        ([report("setup", "failed"), report("teardown")], []),
        ([report("call", verdicts={"g": "fail"})], [f"{TEST} did not fail although a gate of it did"]),
        ([report("call", verdicts={"g": "error"})], [f"{TEST} did not fail although a gate of it did"]),
    ],
)
def test_a_gate_whose_test_did_not_fail_with_it_is_named(reports: list[pytest.TestReport], said: list[str]) -> None:
    assert ledger(*reports).discrepancies() == said


def test_a_verdict_that_fails_a_test_that_is_expected_to_fail_is_in_order() -> None:
    known: dict[str, Any] = {"wasxfail": "known", EXTRAS: {"expected_to_fail": True}}
    made = ledger(report("call", "skipped", verdicts={"g": "fail"}, **known))
    assert made.discrepancies() == []
    assert made.expected_to_fail == {"g"}
    later = ledger(report("call", "rerun", verdicts={"g": "fail"}), report("call", "skipped", **known))
    assert (len(later.discrepancies()), later.expected_to_fail) == (1, set()), "it excuses no earlier failure"


@pytest.mark.parametrize("outcome", ["rerun", "skipped", "failed"])
def test_a_verdict_that_fails_counts_only_as_pytest_counts_failures(outcome: str) -> None:
    called_known = {} if outcome == "rerun" else {"wasxfail": "known"}
    made = ledger(report("call", outcome, verdicts={"g": "fail"}, **called_known))
    assert made.discrepancies() == [f"{TEST} did not fail although a gate of it did"]
    assert not made.did_fail(TEST)


def test_a_gate_keeps_its_verdict_until_a_later_attempt_has_another() -> None:
    attempts = [report("call", "rerun", verdicts={"g": "fail", "h": "fail"}), report("setup", verdicts={"h": "pass"})]
    made = ledger(*attempts, report("call", "skipped"))
    assert made.discrepancies() == [f"{TEST} did not fail although a gate of it did"]
    assert [verdict.verdict for verdict in made.verdicts()] == ["fail", "pass"]
    made.receive(report("setup", verdicts={"g": "pass"}))
    assert made.discrepancies() == []


def test_records_are_the_same_whether_they_came_from_a_worker_or_never_left(tmp_path: Path) -> None:
    judged = record(1.0, id="g", verdict="fail", interval=(0.5, math.inf), message="half a pair: \ud800")
    call = FixtureCall.of(TEST, "ppl_of", Score(2.0, metric="ppl", interval=(1.0, math.inf)))
    for travels in (False, True):
        entry = json.dumps(msgspec.to_builtins(ENTRY)) if travels else ENTRY
        extras = {"measured": [call], "verdicts": {"g": judged}, "entries": {"g": entry}}
        made, each = Ledger(), report(**{EXTRAS: extras})
        if travels:
            to_builtins(each)
            gateway_base.dumps_internal(vars(each)[EXTRAS])
        made.receive(each)
        assert (made.verdicts(), made.measured, made.entries) == ([judged], {TEST: [call]}, {"g": ENTRY})


def test_verdicts_are_in_the_order_of_the_tests_whoever_was_first() -> None:
    made = Ledger()
    made.expected = {"test_a.py::first": 1, "test_a.py::second": 1}
    for test, verdicts in {"late": {"l": "error"}, "second": {"s": "fail"}, "first": {"f": "pass"}}.items():
        made.receive(report(test=f"test_a.py::{test}", verdicts=verdicts))
    assert [verdict.verdict for verdict in made.verdicts()] == ["pass", "fail", "error"]
    assert made.used == ["l", "s", "f"]


def test_a_gate_was_looked_for_if_its_file_was_collected_or_is_gone(tmp_path: Path) -> None:
    (tmp_path / "test_left_out.py").touch()
    made = Ledger()
    made.collected, made.uncollected = [".", "test_a.py"], ["test_a.py::TestSkipped", "test_broken.py"]
    looked_for = ("test_a.py::t::g", "test_a.py::TestOther::t::g", "test_gone.py::t::g", "gone/test_a.py::t::g")
    assert all(made.was_looked_for(gate, tmp_path) for gate in looked_for)
    others = ("test_left_out.py::test::g", "test_a.py::TestSkipped::test::g", "test_broken.py::test::g")
    assert not any(made.was_looked_for(gate, tmp_path) for gate in others)


def test_what_a_worker_hands_over_is_what_the_controller_takes(tmp_path: Path) -> None:
    worker, controller = ledger(expected=3), Ledger()
    controller.load(tmp_path / "ledger.json")  # no worker has gates yet
    assert controller.expected == {}
    worker.measuring, worker.by_baseline, worker.deselected = ["m"], ["g"], True
    worker.collected, worker.uncollected, worker.problem = ["test_a.py"], ["broken.py"], "a gate is wrong"
    worker.dump(tmp_path / "ledger.json")
    controller.load(tmp_path / "ledger.json")
    for name in ("expected", "measuring", "by_baseline", "deselected", "collected", "uncollected", "problem"):
        assert getattr(controller, name) == getattr(worker, name)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.json"]
