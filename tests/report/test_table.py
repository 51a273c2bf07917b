"""The terminal summary, character by character."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.table import summary_lines


def test_a_line_per_gate_between_header_and_counts(
    passed: Verdict, failed: Verdict, stopped: Verdict, unmeasured: Verdict
) -> None:
    four = [_of(passed, "int8"), _of(failed, "int4"), _of(stopped, "int3"), unmeasured]
    lines = summary_lines(four)
    assert [outcome for outcome, _ in lines] == ["", "pass", "fail", "fail", "error", ""]
    assert (
        "\n".join(line for _, line in lines)
        == """\
verdict  gate                     value     95 % interval  limit          scored  seconds
PASS     ppl_max[int8-wikitext2]     16      [15.5, 16.5]   16.5  283,287 tokens   cached
FAIL     ppl_max[int4-wikitext2]  18.15  [17.25, 19.0625]   16.5  283,287 tokens     12.3
FAIL     ppl_max[int3-wikitext2]  >= 20                 -   16.5  283,287 tokens     12.3
ERROR    bpb_max[gone-wikitext2]      -                 -   16.5               -      0.0
4 gates: 1 pass, 2 fail, 1 error"""
    )


def test_gates_of_the_same_label_are_told_apart_by_their_tests(passed: Verdict, failed: Verdict) -> None:
    other = replace(failed, id="t.py::test_b::ppl_max[int8-wikitext2]", test="t.py::test_b")
    gates = [line.split()[1] for _, line in summary_lines([passed, other, _of(passed, "int4")])[1:-1]]
    assert gates == [passed.id, other.id, "ppl_max[int4-wikitext2]"]


def _of(verdict: Verdict, model: str) -> Verdict:
    return replace(verdict, id=f"{verdict.test}::ppl_max[{model}-wikitext2]", model=model)


@pytest.mark.parametrize(
    ("outcomes", "counts"),
    [
        (["pass"], "1 gate: 1 pass"),
        (["inconclusive", "pass", "pass"], "3 gates: 2 pass, 1 inconclusive"),
        (["error", "fail"], "2 gates: 1 fail, 1 error"),
    ],
)
def test_the_last_line_counts_what_there_was(passed: Verdict, outcomes: list[str], counts: str) -> None:
    lines = summary_lines([replace(passed, verdict=outcome) for outcome in outcomes])
    assert lines[-1] == ("", counts)


def test_value_and_limit_are_told_apart_in_the_table_too(failed: Verdict) -> None:
    (_, line), *_ = summary_lines([replace(failed, value=16.50000001, interval=None)])[1:]
    assert line.split()[2] == "16.50000001"
    assert line.split()[4] == "16.5"


def test_an_interval_may_have_no_upper_end(failed: Verdict) -> None:
    (_, line), *_ = summary_lines([replace(failed, interval=(17.25, math.inf))])[1:]
    assert "[17.25, inf]" in line


def test_columns_are_as_wide_as_their_longest_text(failed: Verdict) -> None:
    lengths = {len(line) for _, line in summary_lines([failed, _of(failed, "a-model-of-some-other-name")])[:-1]}
    assert len(lengths) == 1
