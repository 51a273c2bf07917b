"""The terminal summary, character by character, and texts, counts and bytes as people read them."""

import math
import string
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_lmgate.judge.result import Bounded, Verdict
from pytest_lmgate.report.explanation import explain
from pytest_lmgate.report.formats import write_file
from pytest_lmgate.report.terminal import plan_lines, summary_lines, title
from pytest_lmgate.report.text import byte_size, excerpt, shortened_name, table
from pytest_lmgate.report.wording import divergence_lines
from tests.judge.records import compared


def test_a_line_per_gate_between_header_and_counts(
    passed: Verdict, failed: Verdict, without_interval: Verdict, unmeasured: Verdict
) -> None:
    def of(verdict: Verdict, model: str) -> Verdict:
        return replace(verdict, id=f"{verdict.test}::ppl_max[{model}-wikitext2]", model=model)

    lines = summary_lines([of(passed, "int8"), of(failed, "int4"), of(without_interval, "int3"), unmeasured])
    assert [outcome for outcome, _ in lines] == ["", "fail", "fail", "error", "pass", ""]
    assert "\n".join(line for _, line in lines) == FOUR


FOUR = """\
verdict  gate                     value      95% interval  limit          scored  seconds
FAIL     ppl_max[int4-wikitext2]  18.15  [17.25, 19.0625]   16.5  283,287 tokens     12.3
FAIL     ppl_max[int3-wikitext2]     20                 -   16.5  283,287 tokens     12.3
ERROR    bpb_max[gone-wikitext2]      -                 -   16.5               -      0.0
PASS     ppl_max[int8-wikitext2]     16      [15.5, 16.5]   16.5  283,287 tokens   cached
4 gates: 1 pass, 2 fail, 1 error"""


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


def test_bytes_have_the_largest_unit_below_them() -> None:
    sizes = {0: "0 B", 999: "999 B", 1000: "1 kB", 1.25e6: "1.25 MB", 1.41e11: "141 GB", 2.5e12: "2.5 TB"}
    assert {number: byte_size(number) for number in sizes} == sizes


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("short", 20, "short"),
        ("exactly as many cell", 20, "exactly as many cell"),
        ("exactly as many cells", 20, "exactly as many..."),
        ("a very" + "long" * 10, 20, "a verylonglonglon..."),
        ("天气很好" * 3, 20, "天气很好天气很好..."),
        ("류현진이 공을 던졌다.", 20, "류현진이 공을..."),
        ("e\u0301" * 20, 20, "e\u0301" * 20),
        ("two\nlines\tand\r\x1b[31mred\x1b[0m", 80, r"two\nlines\tand\r\x1b[31mred\x1b[0m"),
        ("no\xa0break, \u202eright to left, half \ud800", 80, r"no\xa0break, \u202eright to left, half \ud800"),
        ("می\u200cخواهم", 20, "می\u200cخواهم"),
        ("\x1b" * 9, 20, r"\x1b\x1b\x1b\x1b..."),
    ],
)
def test_a_text_is_shown_in_one_line_as_far_as_it_fits(text: str, width: int, shown: str) -> None:
    assert excerpt(text, width) == shown


@given(text=st.text(), width=st.integers(4, 60))
def test_an_excerpt_is_printable_and_never_wider_than_it_may_be(text: str, width: int) -> None:
    def cells(c: str) -> int:
        none = c in "\u200c\u200d" or unicodedata.category(c) in ("Mn", "Me")
        return 0 if none else 1 + (unicodedata.east_asian_width(c) in "WF")

    shown = excerpt(text, width)
    assert "\n" not in shown
    shown.encode("utf-8")
    assert sum(map(cells, shown)) <= width


HEADER = ("verdict", "gate", "value", "seconds")
ROWS = [("PASS", "ppl_max[int8-wikitext2]", "16.25", "12.3"), ("FAIL", "ppl_max[int4-wikitext2]", "18", "0.1")]


def in_width(width: int, rows: Sequence[Sequence[str]]) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        return table(HEADER, rows, names=["gate"], left=["verdict"], folds=["seconds"])


def test_columns_go_before_names_are_shortened() -> None:
    whole = [
        "verdict  gate                     value  seconds",
        "PASS     ppl_max[int8-wikitext2]  16.25     12.3",
        "FAIL     ppl_max[int4-wikitext2]     18      0.1",
    ]
    assert in_width(48, ROWS) == whole
    assert in_width(47, ROWS) == [line[:39] for line in whole]


def test_names_are_shortened_in_the_middle_unless_nobody_could_tell_them_apart() -> None:
    long = [("PASS", f"ppl_max[{model}-a-dataset-of-a-long-name]", "1", "2") for model in ("first", "second")]
    assert [line.split()[1] for line in in_width(40, long)[1:]] == [shortened_name(row[1], 24) for row in long]
    assert shortened_name("ppl_max[first-a-dataset-of-a-long-name]", 24) == "ppl_max[fir...long-name]"
    same = [("PASS", f"ppl_max[some-model-number-{number}-a-dataset-of-a-long-name]", "1", "2") for number in range(2)]
    assert [line.split()[1] for line in in_width(40, same)[1:]] == [row[1] for row in same]


@given(name=st.text(string.ascii_letters, max_size=80), most=st.integers(4, 60))
def test_a_shortened_name_keeps_both_ends(name: str, most: int) -> None:
    shown = shortened_name(name, most)
    assert len(shown) == min(len(name), most)
    begin, _, end = shown.partition("...")
    assert name.startswith(begin)
    assert name.endswith(end)


def test_the_title_counts_each_measurement_once(failed: Verdict, passed: Verdict, unmeasured: Verdict) -> None:
    assert title([failed, passed, unmeasured], []) == "lmgate: 3 gates, 1 measurement"
    other = replace(passed, fingerprint="f" * 64)
    assert title([passed, other], []) == "lmgate: 2 gates, 2 measurements (2 cached)"
    unkept = replace(failed, fingerprint="")
    assert title([unkept, unkept, other], []) == "lmgate: 3 gates, 3 measurements (1 cached)"
    assert title([], []) == "lmgate"


def test_a_report_that_the_disk_has_no_room_for_is_an_error() -> None:
    with pytest.raises(OSError, match="No space left on device"):
        write_file(Path("/dev/full"), b"x")


def test_a_figure_that_is_not_finite_reads_the_same_from_a_run_and_from_its_json_report() -> None:
    known = {"Mean KLD": 0.5, "Mean KLD, stderr": 0.125, "Same top p": 0.75}
    run = {"Mean PPL(Q)": math.inf, "Mean PPL(Q), stderr": math.nan, "Mean PPL(base)": 60.0, **known}
    read = {**run, "Mean PPL(Q)": None, "Mean PPL(Q), stderr": None}
    expected = ["Mean PPL(Q) not finite, Mean PPL(base) 60", "Mean KLD 0.5 ± 0.125", "Same top p 75%"]
    assert divergence_lines(run, iid=False) == divergence_lines(read, iid=False) == expected
