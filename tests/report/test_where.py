"""Where it got worse, in every report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.gates.where import Passage, Slope, TagChange, TokenChange, Where
from pytest_lmgate.report.formats.github import github_annotations
from pytest_lmgate.report.formats.json_file import json_report
from pytest_lmgate.report.formats.json_reader import read_report
from pytest_lmgate.report.formats.markdown import markdown_report
from pytest_lmgate.report.html.page import html_report
from pytest_lmgate.report.html.where_view import view_of
from pytest_lmgate.report.results import Results
from pytest_lmgate.report.wording.excerpt import ending
from pytest_lmgate.report.wording.explanation import explain
from tests.report.browser import CHROMIUM, chromium
from tests.report.formats.test_schema import check
from tests.report.hostile import HOSTILE


def markdown(verdict: Verdict) -> str:
    return markdown_report(Results([verdict]))


def as_json(verdict: Verdict) -> str:
    return json_report(Results([verdict]))


EXPECTED = """\
  where      parts of the text that cost most: by how much the loss rose, and at which tokens
    row 17: +10 nats over 5 tokens (+2 each)  the cat sat on the mat
            +8  the cat [sat] on the mat  (1.25 to 9.25)
            +2  the cat sat [on] the mat  (0.5 to 2.5)
    row 3: +2 nats over 4 tokens (+0.5 each)  a dog ran
  positions  the loss rises more the later a token stands in the window: +0 nats at 1 to 8, +0.875 at 57 to 64
  tags       language=ko +20.0% [+15.0, +25.0], 10 rows
             not worse beyond noise: language=en +0.0% [-1.0, +1.0], language=fr (no target of these rows was scored) \
and 4 more
  note       a note"""


def test_the_explanation_names_documents_tokens_positions_and_tags(located: Verdict) -> None:
    assert EXPECTED in explain(located)
    assert EXPECTED in markdown_report(Results([located]))


def test_a_slope_within_noise_has_no_line_and_one_downward_says_so(located: Verdict, where: Where) -> None:
    level, down = Slope(0.1, -0.1, 0.3), Slope(-1.0, -1.5, -0.5)
    assert "positions" not in explain(replace(located, where=replace(where, slope=level)))
    assert "positions" not in explain(replace(located, where=replace(where, slope=None)))
    told = explain(replace(located, where=replace(where, slope=down)))
    assert "positions  the loss rises less the later a token stands in it" in told


def test_many_tags_that_got_worse_are_counted(located: Verdict, where: Where) -> None:
    tags = tuple(TagChange("l", f"t{at}", 5, 2.0, 1.0, 0.2, 0.1, 0.3) for at in range(12))
    told = explain(replace(located, where=replace(where, tags=tags)))
    assert told.count("l=t") == 5
    assert "7 more that got worse beyond noise" in told


def test_lines_fit_a_narrow_terminal(located: Verdict, where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = TokenChange("before " * 20, "token" * 8, " after" * 20, 9.0, 1.0)
    passage = Passage("row 1", 10, 3.0, "begin " * 40, (long,), ())
    lines = explain(replace(located, where=Where(passages=(passage,)))).splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("    row 1"))
    assert all(len(line) <= 80 for line in lines[begin : begin + 2])
    assert "[tokentoken" in lines[begin + 1]


def test_a_verdict_travels_whole(located: Verdict) -> None:
    assert Verdict.from_json(located.to_json()) == located


def test_json_has_all_of_it_and_fits_its_schema(located: Verdict) -> None:
    found = check(json_report(Results([located])))["gates"][0]["where"]
    assert found["passages"][0]["tokens"][0] == {
        "before": "the cat ", "token": "sat", "after": " on the mat", "loss": 9.25, "reference": 1.25
    }  # fmt: skip
    assert found["passages"][0]["spelled"][4] == ["the ", None]
    assert found["slope"] == {"change": 1.0, "lower": 0.5, "upper": 1.5}
    assert found["tags"][0]["degradation"] == 0.2
    check(json_report(Results([replace(located, where=Where())])))


def test_a_report_that_is_read_back_has_all_of_it(located: Verdict, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json_report(Results([located])))
    assert read_report(tmp_path / "report.json").verdicts[0].where == located.where


def hostile_where(text: str) -> Where:
    token = TokenChange(text[-60:], text[:40], text[:30], 3.0, 1.0)
    return Where(
        passages=(Passage("row 1", 3, 2.0, text[:120], (token,), ((text[:40], 2.0), (text[:40], None))),),
        tags=(TagChange(text, text, 3, 1.0, 1.0, 0.5, 0.25, 0.75), TagChange(text, "b", 3, problem=text)),
        notes=(text,),
    )


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("render", [explain, markdown, as_json], ids=["explain", "markdown", "json"])
def test_hostile_text_is_shown_and_not_obeyed(compared: Verdict, text: str, render: Callable[[Verdict], str]) -> None:
    told = render(replace(compared, where=hostile_where(text)))
    told.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", told)
    assert render is as_json or len(told) < 20_000


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_document_adds_no_line_to_the_annotation_of_github(compared: Verdict, text: str) -> None:
    told = github_annotations(Results([replace(compared, where=hostile_where(text))]))
    assert told.strip().count("\n") == 0


def test_the_end_of_a_text_is_cut_from_the_left() -> None:
    assert ending("the cat sat", 20) == "the cat sat"
    assert ending("the cat sat", 8) == "...sat"
    assert ending("a\nb", 4) == "a\\nb"


def test_bars_stand_in_the_order_of_their_numbers(located: Verdict, where: Where) -> None:
    assert located.comparison is not None
    view = view_of(located.comparison, where)
    positions, tags = view.plots
    assert [bar.begin + bar.width for bar in positions.bars] == sorted(bar.begin + bar.width for bar in positions.bars)
    assert [bar.tells for bar in positions.bars] == [False] + [True] * 7
    worse, same = tags.bars
    assert (worse.tells, same.tells) == (True, False)
    assert worse.begin == tags.zero < worse.low < worse.begin + worse.width < worse.high <= 100
    assert (same.width, same.low < tags.zero < same.high) == (0, True)
    first = view.passages[0]
    assert [shade for _, shade, _ in first.parts] == ["", "", "up5", "up1", "", ""]


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (375, True)])
def test_the_page_shows_it_in_a_browser(
    located: Verdict, compared: Verdict, tmp_path: Path, width: int, dark: bool
) -> None:
    gates = [
        located,
        *(replace(compared, id=f"t::{at}", where=hostile_where(text)) for at, text in enumerate(HOSTILE.values())),
    ]
    file = tmp_path / "report.html"
    file.write_text(html_report(Results(gates)), encoding="utf-8")
    with chromium(tmp_path / "profile") as page:
        page.open(file, width=width, dark=dark)
        page.run("document.querySelectorAll('.gate').forEach(e => { e.open = true; })")
        page.picture(tmp_path / "page.png")
        assert page.run("document.title").startswith("lmgate:")
        assert page.run("document.documentElement.scrollWidth") <= width
        shown = page.run("document.querySelector('.passage p').textContent")
        assert shown == "the cat sat on the mat"
        colour = "getComputedStyle(document.querySelector('.up5')).backgroundColor"
        assert page.run(colour) not in ("rgba(0, 0, 0, 0)", "transparent")
        assert page.run("document.querySelectorAll('.bars tr.tells').length") >= 8
        assert page.run("document.querySelectorAll('.gate').length") == len(gates)
        assert not page.console
        assert page.requests == [file.as_uri()]


def test_the_page_is_well_below_a_megabyte_with_a_hundred_failures(located: Verdict, where: Where) -> None:
    full = replace(where, passages=where.passages[:1] * 5, tags=where.tags[:1] * 20)
    gates = [replace(located, id=f"t::{at}", where=full) for at in range(100)]
    assert len(html_report(Results(gates))) < 3_000_000
    assert len(json.dumps([json.loads(gate.to_json()) for gate in gates])) < 1_000_000
