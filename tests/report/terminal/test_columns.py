"""A table keeps to the width of the terminal."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.terminal.columns import fitted, shortened_name
from pytest_lmgate.report.terminal.summary import summary_lines, title

HEADER = ("verdict", "gate", "value", "seconds")
ROWS = [("PASS", "ppl_max[int8-wikitext2]", "16.25", "12.3"), ("FAIL", "ppl_max[int4-wikitext2]", "18", "0.1")]


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (
            48,
            [
                "verdict  gate                     value  seconds",
                "PASS     ppl_max[int8-wikitext2]  16.25     12.3",
                "FAIL     ppl_max[int4-wikitext2]     18      0.1",
            ],
        ),
        (
            47,
            [
                "verdict  gate                     value",
                "PASS     ppl_max[int8-wikitext2]  16.25",
                "FAIL     ppl_max[int4-wikitext2]     18",
            ],
        ),
    ],
)
def test_columns_go_before_names_are_shortened(width: int, lines: list[str]) -> None:
    assert fitted(HEADER, ROWS, width, ["seconds"]) == lines


def test_names_are_shortened_in_the_middle_unless_nobody_could_tell_them_apart() -> None:
    long = [("PASS", f"ppl_max[{model}-a-dataset-of-a-long-name]", "1", "2") for model in ("first", "second")]
    assert [line.split()[1] for line in fitted(HEADER, long, 40, ["seconds"])[1:]] == [
        shortened_name(row[1], 24) for row in long
    ]
    assert shortened_name("ppl_max[first-a-dataset-of-a-long-name]", 24) == "ppl_max[fir...long-name]"
    same = [("PASS", f"ppl_max[some-model-number-{number}-a-dataset-of-a-long-name]", "1", "2") for number in range(2)]
    assert [line.split()[1] for line in fitted(HEADER, same, 40, ["seconds"])[1:]] == [row[1] for row in same]


def test_columns_go_before_names_look_alike() -> None:
    rows = [("PASS", f"test_models.py::TestInt8::test_{name}::ppl_max[int8-news]", "16.25", "12.3") for name in "ab"]
    assert fitted(HEADER, rows, 68, ["seconds"]) == [
        f"verdict  gate{'value':>55}",
        "PASS     test_models.py::TestInt8::test_a::ppl_max[int8-news]  16.25",
        "PASS     test_models.py::TestInt8::test_b::ppl_max[int8-news]  16.25",
    ]


@given(name=st.text(string.ascii_letters, max_size=80), most=st.integers(4, 60))
def test_a_shortened_name_keeps_both_ends(name: str, most: int) -> None:
    shown = shortened_name(name, most)
    assert len(shown) == min(len(name), most)
    begin, _, end = shown.partition("...")
    assert name.startswith(begin)
    assert name.endswith(end)


def test_both_tables_fit_80_columns(failed: Verdict, compared: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    blocked = replace(
        compared,
        id="t.py::test_x::no_regression:bpb[a-model-of-a-long-name-vs-another-one-wikitext2]",
        test="t.py::test_x",
        verdict="inconclusive",
        blocking=True,
    )
    lines = [line for _, line in summary_lines([failed, compared, blocked])]
    tables = [line for line in lines if line.startswith(("verdict", "FAIL  ", "INCONCLUSIVE!  "))]
    assert len(tables) == 5
    assert max(map(len, tables)) <= 80


def test_the_title_counts_each_measurement_once(failed: Verdict, passed: Verdict, unmeasured: Verdict) -> None:
    assert title([failed, passed, unmeasured], []) == "lmgate: 3 gates, 1 measurement"
    other = replace(passed, fingerprint="f" * 64)
    assert title([passed, other], []) == "lmgate: 2 gates, 2 measurements (2 cached)"
    unkept = replace(failed, fingerprint="")
    assert title([unkept, unkept, other], []) == "lmgate: 3 gates, 3 measurements (1 cached)"
    assert title([], []) == "lmgate"
