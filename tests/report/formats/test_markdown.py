"""The Markdown report, read by a reader of Markdown."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.formats.markdown import markdown_report, markdown_section
from pytest_lmgate.report.results import Results, Run
from pytest_lmgate.report.wording.explanation import explain
from tests.report.hostile import HOSTILE


def _read(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def _cells(tokens: list[Token]) -> list[list[Token]]:
    """The inline contents of each row of the table, without its header."""
    rows: list[list[Token]] = []
    for before, token in itertools.pairwise(tokens):
        if before.type == "tr_open":
            rows.append([])
        if before.type in ("td_open", "th_open"):
            rows[-1].append(token)
    return rows[1:]


def _fenced(tokens: list[Token]) -> list[str]:
    return [token.content for token in tokens if token.type == "fence"]


def test_counts_come_first_then_a_table_with_failures_first_then_explanations(
    passed: Verdict, failed: Verdict, unmeasured: Verdict, compared: Verdict
) -> None:
    other = replace(passed, id="t.py::test_b::ppl_max[int8-x]", test="t.py::test_b", dataset="x")
    better = replace(compared, id="t.py::test_c::no_regression[int8-x]", test="t.py::test_c")
    text = markdown_report(Results([other, failed, unmeasured, better]))
    assert (
        text.partition("\n\n<details>")[0]
        == """\
**4 gates: 1 pass, 2 fail, 1 error**

| verdict | gate | value | limit or reference | change | scored | seconds |
|---|---|---:|---:|---:|---:|---:|
| ❌ FAIL | `ppl_max[int8-wikitext2]` | 18.15 [17.25, 19.0625] | 16.5 |  | 283,287 tokens | 12.3 |
| ❌ ERROR | `bpb_max[gone-wikitext2]` |  | 16.5 |  |  | 0.0 |
| ❌ FAIL | `no_regression[int8-x]` | 18.15 [17.25, 19.0625] | 16.5 `model 'fp16'` | +10.0% [+9.0, +11.0], \
tolerance 1% | 283,287 tokens | 12.3 |
| ✅ PASS | `ppl_max[int8-x]` | 16 [15.5, 16.5] | 16.5 |  | 283,287 tokens | cached |"""
    )
    assert _fenced(_read(text)) == [f"{explain(verdict)}\n" for verdict in (failed, unmeasured, better)]


def test_the_run_stands_below_the_counts(passed: Verdict, run: Run) -> None:
    assert markdown_report(Results([passed], run=run)).split("\n\n")[1] == (
        "project `owner/model` · commit `0c0ffee1c0f0+ on main` · date `2026-03-31 18:00 UTC` · "
        "device `cuda (an accelerator)` · versions `Python 3.11.7, torch 2.13.0` · command `pytest -k quality`"
    )


def test_inconclusive_gates_stand_between_failures_and_passes_and_are_explained(
    passed: Verdict, failed: Verdict, compared: Verdict
) -> None:
    open_ = replace(compared, verdict="inconclusive", id="t.py::test_c::no_regression[int8-x]", test="t.py::test_c")
    text = markdown_report(Results([replace(passed, id="t.py::p", test="t.py"), open_, failed]))
    assert [row[0].content for row in _cells(_read(text))] == ["❌ FAIL", "⚠️ INCONCLUSIVE", "✅ PASS"]
    assert _fenced(_read(text)) == [f"{explain(failed)}\n", f"{explain(open_)}\n"]


def test_a_gate_that_is_expected_to_fail_does_not_come_first(passed: Verdict, failed: Verdict) -> None:
    known = replace(failed, id="t.py::test_known", test="t.py::test_known")
    text = markdown_report(Results([known, passed, failed], expected_to_fail=frozenset({known.id})))
    assert [row[0].content for row in _cells(_read(text))] == ["❌ FAIL", "⚠️ FAIL (xfail)", "✅ PASS"]


def test_what_fails_the_session_beside_gates_is_said(passed: Verdict) -> None:
    text = markdown_report(Results([passed], problems=("the verdict of t.py::test_x never arrived",)))
    assert "- ❌ `the verdict of t.py::test_x never arrived`" in text.split("\n\n")[1]


def test_a_session_without_gates_says_so() -> None:
    assert markdown_report(Results([])) == "**0 gates**\n"


def test_a_section_stands_below_what_others_wrote(passed: Verdict) -> None:
    results = Results([passed])
    tokens = _read("a line without an end" + markdown_section(results))
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h2"]
    assert markdown_section(results).endswith(markdown_report(results))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_are_shown_and_take_no_effect(failed: Verdict, compared: Verdict, text: str) -> None:
    assert compared.comparison is not None
    test = f"t.py::test_x[{text}]"
    one = replace(failed, id=f"{test}::ppl_max[{text}]", test=test, model=text, dataset=text, signature=text)
    found = replace(compared.comparison, against=f"model {text!r} {text}", notes=(text,))
    two = replace(compared, id=f"{test}::{text}", test=test, comparison=found, worst=((0, 0.5, text, text, text),))
    run = Run(text, text, text, "2026-03-31", text, text, text)
    report = markdown_report(Results([one, two], problems=(text,), run=run))
    report.encode("utf-8")
    tokens = _read(report)
    rows = _cells(tokens)
    assert [len(row) for row in rows] == [7, 7]
    for token in (token for row in rows for token in row):
        assert {child.type for child in token.children or ()} <= {"text", "code_inline"}
        shown = "".join(child.content for child in token.children or () if child.type == "text")
        assert "obeyed" not in shown
    assert _fenced(tokens) != []
    blocks = [token.content for token in tokens if token.type == "html_block"]
    assert [block.startswith("<details><summary>FAIL <code>") or block == "</details>\n" for block in blocks]
    assert all(block.count("<") in (1, 5) for block in blocks)
    assert "\x1b" not in report
    assert "\u202e" not in report
    assert not [line for line in report.splitlines() if line.startswith(("::", "##["))]
    assert len(report) < 100_000


def test_the_report_is_never_larger_than_a_step_summary_may_be(passed: Verdict, failed: Verdict) -> None:
    many = [replace(failed, id=f"t.py::test_{i}", test=f"t.py::test_{i}", signature="s" * 1900) for i in range(400)]
    many += [replace(passed, id=f"t.py::p{i}{'n' * 280}", test="t.py") for i in range(1200)]
    report = markdown_report(Results(many))
    assert len(report.encode()) < 2**20
    rows, explained = len(_cells(_read(report))), report.count("<details>")
    assert f"\n\n{1600 - rows:,} more rows would be too much" in report
    assert f"\n\n{400 - explained:,} more explanations would be too much" in report
    assert rows > 1000
    assert explained > 100
