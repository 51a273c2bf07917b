"""The terminal summary, character by character."""

from typing import Any

from msgspec.structs import replace

from pytest_lmgate.judge.result import Bounded, Verdict
from pytest_lmgate.report.explanation import explain
from pytest_lmgate.report.terminal import plan_lines, summary_lines
from tests.judge.records import compared


def test_a_line_per_gate_between_header_and_counts(
    passed: Verdict, failed: Verdict, without_interval: Verdict, unmeasured: Verdict
) -> None:
    four = [_of(passed, "int8"), _of(failed, "int4"), _of(without_interval, "int3"), unmeasured]
    lines = summary_lines(four)
    assert [outcome for outcome, _ in lines] == ["", "fail", "fail", "error", "pass", ""]
    assert (
        "\n".join(line for _, line in lines)
        == """\
verdict  gate                     value      95% interval  limit          scored  seconds
FAIL     ppl_max[int4-wikitext2]  18.15  [17.25, 19.0625]   16.5  283,287 tokens     12.3
FAIL     ppl_max[int3-wikitext2]     20                 -   16.5  283,287 tokens     12.3
ERROR    bpb_max[gone-wikitext2]      -                 -   16.5               -      0.0
PASS     ppl_max[int8-wikitext2]     16      [15.5, 16.5]   16.5  283,287 tokens   cached
4 gates: 1 pass, 2 fail, 1 error"""
    )


def _of(verdict: Verdict, model: str) -> Verdict:
    return replace(verdict, id=f"{verdict.test}::ppl_max[{model}-wikitext2]", model=model)


def test_an_inconclusive_gate_that_fails_the_build_looks_different_from_one_that_does_not(passed: Verdict) -> None:
    goes_on = replace(_compared(passed, 40, decision="inconclusive"), verdict="inconclusive")
    fails = replace(goes_on, id="t.py::test_b::no_regression:ppl[b-c]", test="t.py::test_b", blocking=True)
    lines = summary_lines([goes_on, fails])
    assert [line.split()[0] for _, line in lines[1:3]] == ["INCONCLUSIVE!", "INCONCLUSIVE"]
    assert [outcome for outcome, _ in lines[1:5]] == ["fail", "inconclusive", "fail", "inconclusive"]
    assert lines[-1] == ("", "2 gates: 2 inconclusive (1 fails the build)")


def _compared(verdict: Verdict, clusters: int, **more: Any) -> Verdict:
    comparison = replace(compared(0.0), clusters=clusters, **{"decision": "pass"} | more)
    return replace(verdict, comparison=comparison)


def _few(*verdicts: Verdict) -> list[str]:
    return [line for _, line in summary_lines(verdicts) if line.startswith("few ")]


def test_verdicts_on_fewer_than_30_rows_are_counted_in_one_line(passed: Verdict) -> None:
    bounded = replace(passed, bounded=Bounded(0.95, 15.5, 16.5, "wilson", clusters=12))
    (line,) = _few(_compared(passed, 29), bounded, _compared(passed, 30))
    assert line.startswith("few rows: 2 gates have fewer than 30 (min 12)")
    (line,) = _few(_compared(passed, 5))
    assert line.startswith("few rows: 1 gate has fewer than 30 (min 5)")
    (line,) = _few(_compared(replace(passed, n=40, unit="row"), 20))
    assert line.startswith("few clusters: 1 gate has fewer than 30 (min 20)")
    (line,) = _few(replace(passed, n=29), _compared(replace(passed, n=3), 5, clustered_by="blocks"), passed)
    assert line.startswith("few targets: 2 gates have fewer than 30 (min 3)")
    assert _few(replace(passed, n=3, unit="row")) == []


def test_a_change_within_that_of_an_unchanged_model_is_named_and_no_other(passed: Verdict) -> None:
    within = _compared(passed, 40, candidate=16.1, reference=16.0, varies_by=0.2, against="baseline of 2026-01-31")
    said = "runs: ppl_max[int8-wikitext2]: changed by no more than an unchanged model does from run to run"
    assert [line for _, line in summary_lines([within])].count(said) == 1
    (line,) = [line for line in explain(within).splitlines() if line.startswith("  runs ")]
    assert line == "  runs       the change is within 0.2, by which lmgate calibrate saw the unchanged model vary here"
    for more in ({"varies_by": None}, {"varies_by": 0.05}, {"candidate": 16.0}):
        other = replace(within, comparison=replace(within.comparison, **more))
        assert said not in [line for _, line in summary_lines([other])]


def test_a_plan_without_a_measurement_says_so_or_why() -> None:
    assert plan_lines([]) == ["no gate needs a measurement"]
    assert plan_lines([], ["test_a: no model 'm'"]) == ["test_a: no model 'm'"]
