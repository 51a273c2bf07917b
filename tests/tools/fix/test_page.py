"""The page of `lmgate fix`: the picture at its edges, and the same words as on the terminal."""

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import html5lib
import pytest

from pytest_lmgate.settings.gate_options import WindowProtocol
from pytest_lmgate.stats.means import ClusteredMean
from pytest_lmgate.tools.fix.hybrids import Part
from pytest_lmgate.tools.fix.page import FixReport
from pytest_lmgate.tools.fix.search import Fix, Limit, PartGroup, Trial, Tried
from tests.report.browser import CHROMIUM, chromium
from tests.report.hostile import HOSTILE


def judged(value: float, limit: float, noise: float = 0.01) -> Trial:
    lower, upper = value * (1 - noise), value * (1 + noise)
    outcome: Any = "pass" if upper <= limit else "fail" if lower > limit else "inconclusive"
    return Trial(outcome, ClusteredMean(value, 5000, 150, noise, 149.0), limit, upper, upper / (limit or 1), 9000)


def report_of(
    *sets: tuple[int, float], limit: float, proof: float | None = None, metric: str = "kl", budget: float | None = None
) -> FixReport:
    """Return the report of sets, given by extra bytes (of 1,000) and value, each with one more group."""
    groups = tuple(PartGroup(Part(f"model.layers.{index} o", "o", (), index), 0.01, 10) for index in range(len(sets)))
    tried = tuple(Tried(tuple(range(count)), *one, judged(one[1], limit)) for count, one in enumerate(sets))
    passing = [each for each in tried[1:] if each.judged.outcome == "pass"]
    chosen = min(passing, key=lambda each: each.extra) if passing else None
    found = Fix(Limit(metric, limit, 0.95, WindowProtocol()), 1000, budget, groups, tried, chosen, None, (148, 152))
    if proof is not None:
        found = replace(found, proof=judged(proof, limit))
    return FixReport(found, "int4 against float on rows: the gate", "float", "a: <b>\n" if proof else "")


REPORTS = {
    "pass": report_of((0, 0.05), (20, 0.004), (30, 0.005), (90, 0.001), limit=0.006, proof=0.005),
    "inconclusive": report_of((0, 0.05), (20, 0.004), limit=0.006, proof=0.00599),
    "fail": report_of((0, 0.05), (20, 0.004), limit=0.006, proof=0.02),
    "no set within the budget": report_of((0, 0.05), (50, 0.03), (90, 0.001), limit=0.006, budget=0.07),
    "passes already": report_of((0, 0.001), limit=0.006),
    "a limit of 0": report_of((0, 0.05), (20, 0.0), limit=0.0, proof=0.0),
    "passes by far": report_of((0, 0.02), limit=10.0),
    "equal bytes, and no KL at all": report_of((0, 0.05), (0, 0.02), (0, 0.0), limit=0.006, proof=0.0),
    "fewer bytes": report_of((0, 0.05), (-90, 0.001), limit=0.006, proof=0.001),
    "many": report_of((0, 9.0), *((3 * at, 9 * 0.8**at) for at in range(1, 40)), limit=0.02, proof=0.019),
    "perplexity": report_of((0, 2.6), (30, 2.5), limit=2.55, proof=2.51, metric="ppl"),
    "perplexities far apart": report_of((0, 40.0), (30, 2.5), limit=2.55, proof=2.51, metric="ppl"),
    "no finite perplexity": report_of((0, 1e9), (30, 2.5), limit=2.55, proof=2.51, metric="ppl"),
    "ratio": report_of((0, 0.5), (30, -0.01), limit=0.01, proof=0.005, metric="ppl ratio"),
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_the_page_has_each_word_and_row_of_the_terminal(report: FixReport) -> None:
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    page = re.sub(r"\s", "", "".join(parser.parse(report.html()).itertext()))
    assert parser.errors == []
    for line in report.lines():
        assert re.sub(r"[\s█<]", "", line) in page


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_makes_no_element(text: str) -> None:
    def elements(title: str) -> list[str]:
        report = replace(REPORTS["pass"], title=title, kept_as=title, recipe=title)
        html = report.html().encode("utf-8", "backslashreplace")
        return [element.tag for element in html5lib.parse(html, namespaceHTMLElements=False).iter()]

    assert elements(text or " ") == elements("plain")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_a_browser_shows_it_as_wide_as_a_phone_without_a_complaint(tmp_path: Path) -> None:
    with chromium(tmp_path / "profile") as page:
        for report in (REPORTS["many"], REPORTS["no set within the budget"]):
            (tmp_path / "fix.html").write_text(report.html(), encoding="utf-8")
            page.open(tmp_path / "fix.html", width=380)
            assert page.run("document.documentElement.scrollWidth") <= 380
            texts = "[...document.querySelectorAll('figure svg svg ~ text')].map(e => e.getBoundingClientRect())"
            labels = page.run(f"{texts}.map(b => [b.left, b.right])")
            assert len(labels) >= 2
            assert all(one[1] <= other[0] for one, other in pairwise(labels)), labels
        assert page.console == []
        assert [url for url in page.requests if not url.startswith("file:")] == []


def test_a_proof_that_is_open_says_how_many_rows_would_settle_it_or_that_none_would() -> None:
    report = REPORTS["inconclusive"]
    assert report.found.proof is not None
    assert "About 274 rows for the proof would settle it" in report.proof[1]
    at_the_limit = replace(report.found, proof=replace(report.found.proof, needed=None))
    assert "No number of rows like these" in replace(report, found=at_the_limit).proof[1]
    unbounded = replace(report.found, proof=replace(report.found.proof, upper=math.inf))
    (verdict,) = replace(report, found=unbounded).proof
    assert "with too few rows for a bound" in verdict
