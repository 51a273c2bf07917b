"""The page: its text as any parser reads it, and what it does in a real browser."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import html5lib
import pytest
from msgspec.structs import replace

from pytest_lmgate.judge.result import Bounded, Results, Verdict, WorstRow
from pytest_lmgate.report.page import html_report, plot_of
from tests.judge.records import results_of
from tests.report.browser import CHROMIUM, Page, chromium
from tests.report.conftest import DISTANCES, PAST, RUN, SPREAD
from tests.report.hostile import HOSTILE, hostile_results

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
KL = {"reference": "fp16", "Median KLD": 0.004, "99.0% KLD": 0.25, "Maximum KLD": 5.4}
WORST = WorstRow(7, 0.25, "what was asked", "what was expected", "what came")


@pytest.fixture
def results(passed: Verdict, failed: Verdict, unmeasured: Verdict, compared: Verdict) -> Results:
    def named(verdict: Verdict, name: str) -> Verdict:
        return replace(verdict, id=f"t.py::test_{name}::{name}", test=f"t.py::test_{name}")

    open_ = replace(failed, verdict="inconclusive", bounded=Bounded(0.95, 16.0, 19.0, "hall", 40))
    return results_of(
        [
            named(passed, "gate_10"),
            named(replace(passed, value=3.0, history=tuple(PAST[:2])), "gate_9"),
            named(open_, "open"),
            named(replace(failed, worst=(WORST,)), "failed"),
            named(replace(compared, spread=SPREAD, history=tuple(PAST)), "compared"),
            named(unmeasured, "unmeasured"),
            named(replace(failed, details=KL, marker="kl_max", metric="kl", spread=DISTANCES), "divergent"),
        ],
        run=RUN,
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def _write(folder: Path, results: Results) -> Path:
    file = folder / "report.html"
    file.write_text(html_report(results), encoding="utf-8", errors="backslashreplace")
    return file


def _names(page: Page) -> list[str]:
    names: list[str] = page.run(
        "[...document.querySelectorAll('.gate')].filter(e => !e.hidden).map(e => e.querySelector('.name').textContent)"
    )
    return names


@pytest.mark.parametrize("value", [16.5, 1e308, -1e308, float("inf")])
def test_a_plot_is_drawn_within_its_width_or_not_at_all(failed: Verdict, value: float) -> None:
    plot = plot_of(replace(failed, value=value, interval=(float("-inf"), float("inf"))))
    assert plot is None or all(0 <= at <= 100 for at in (plot.value.at, plot.low, plot.high, plot.limit.at))


def test_a_row_has_three_digits_the_tolerance_and_a_picture(
    passed: Verdict, failed: Verdict, compared: Verdict
) -> None:
    assert compared.comparison is not None
    close = replace(passed, value=16.50004, limit=16.5, verdict="fail", id="a")
    far = replace(passed, value=283287.4, limit=16.5, marker="bleu_min", id="b")
    page = html_report(results_of([failed, close, far, replace(compared, id="c")]))
    rows = [re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", row)) for row in re.findall("(?s)<summary>.*?</summary>", page)]
    assert " 18.1 ≤ 16.5 12.3 " in rows[0]
    assert " 16.50004 ≤ 16.5 cached " in rows[1]
    assert " 283,000 ≥ 16.5 cached " in rows[3]
    assert " 18.1 +10.0% 1% " in rows[2]
    assert page.count('<svg class="mini"') == 4


def test_a_strict_parser_finds_no_fault(results: Results, failed: Verdict, compared: Verdict) -> None:
    texts = [text for text in HOSTILE.values() if len(text) < 1_000]  # the parser takes seconds for a long one
    for each in (results, results_of([]), *(hostile_results(failed, compared, text) for text in texts)):
        parser = html5lib.HTMLParser()
        parser.parse(html_report(each).encode(errors="backslashreplace"), transport_encoding="utf-8")
        assert parser.errors == []


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_makes_no_element(failed: Verdict, compared: Verdict, text: str) -> None:
    def tags(report: str) -> list[str]:
        found: list[str] = []
        parser = HTMLParser()
        parser.handle_starttag = lambda tag, attrs: found.append(tag)  # type: ignore[method-assign]
        parser.feed(report)
        return [tag for tag in found if tag != "span"]  # each line of an explanation is one

    report = html_report(hostile_results(failed, compared, text))
    assert tags(report) == tags(html_report(hostile_results(failed, compared, "plain")))
    assert not set(report) & {"\x1b", "\u202e", "\u2066", "\x00"}
    assert len(report) < 150_000


@in_a_browser
def test_hostile_texts_run_nothing_and_fetch_nothing(
    page: Page, failed: Verdict, compared: Verdict, tmp_path: Path
) -> None:
    for text in HOSTILE.values():
        page.requests.clear()
        file = _write(tmp_path, hostile_results(failed, compared, text))
        page.open(file)
        assert page.run("document.title").startswith("lmgate: 2 gates")
        assert page.run("document.querySelectorAll('.gate').length") == 2
        assert page.requests == [file.as_uri()]
    assert page.console == []


@in_a_browser
def test_the_browser_refuses_what_the_template_would_let_through(page: Page, results: Results, tmp_path: Path) -> None:
    file = _write(tmp_path, results)
    text = file.read_text(encoding="utf-8")
    broken = "<script>document.title='obeyed'</script><img src='http://127.0.0.1:9/x.png' onerror='document.title=1'>"
    file.write_text(text.replace("<body>", f"<body>{broken}"), encoding="utf-8")
    page.open(file)
    assert page.run("document.title").startswith("lmgate: 7 gates")
    assert len([said for said in page.console if "Content Security Policy" in said]) >= 2
    page.console.clear()


@in_a_browser
def test_gates_open_sort_and_filter(page: Page, results: Results, tmp_path: Path) -> None:
    file = _write(tmp_path, results)
    page.requests.clear()
    page.open(file)
    assert _names(page) == ["failed", "compared", "unmeasured", "divergent", "open", "gate_10", "gate_9"]
    assert page.run("document.querySelectorAll('.gate[open]').length") == 1
    page.click("#all")
    assert page.run("document.querySelectorAll('.gate[open]').length") == 7
    page.click("#all")
    assert page.run("document.querySelectorAll('.gate[open]').length") == 0

    page.click(".gate summary")
    opened = page.run("document.querySelector('.gate[open]').innerText")
    assert "is above the limit 16.5" in opened
    assert "what was asked" in opened
    assert page.run("document.querySelector('.gate[open] figure .beyond').getBoundingClientRect().width") > 800
    page.click("details:nth-child(2) summary")
    assert page.run("document.querySelector('details:nth-child(2) .spread .worse').getBoundingClientRect().width") > 100
    assert "190 worse, 100 better" in page.run("document.querySelector('.gate[open] .spread').innerText")
    last = "document.querySelector('.gate[open] .past .fail').getBBox()"
    assert page.run(f"({last}).x + ({last}).width") == 30
    assert "16 -> 17.6 (+10.00%)" in page.run("document.querySelector('.gate[open] .past').innerText")
    page.click("details:nth-child(4) summary")
    assert page.run("document.querySelectorAll('.gate[open] .bars th').length") == 3

    page.click("[data-key=name]")
    assert _names(page) == ["compared", "divergent", "failed", "gate_9", "gate_10", "open", "unmeasured"]
    page.click("[data-key=value]")
    assert (_names(page)[0], _names(page)[-1]) == ("gate_9", "unmeasured")
    page.click("[data-key=value]")
    assert _names(page)[-2:] == ["gate_9", "unmeasured"]

    page.click(".chip.pass")
    assert not [name for name in _names(page) if name.startswith("gate_")]
    page.click("#filter")
    page.write("T.PY wikitext2 comp")
    assert _names(page) == ["compared"]
    assert page.run("document.getElementById('shown').textContent") == "1 of 7 shown"
    assert (page.console, page.requests) == ([], [file.as_uri()])

    page.open(file)
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("document.querySelectorAll('.gate[open]').length") == 5, "what failed is printed whole"
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run("document.querySelectorAll('.gate[open]').length") == 1


@in_a_browser
@pytest.mark.parametrize(("width", "dark"), [(375, True), (1280, False)])
def test_nothing_is_wider_than_a_phone_and_every_text_can_be_read(
    page: Page, results: Results, tmp_path: Path, width: int, dark: bool
) -> None:
    page.open(_write(tmp_path, results), width=width, dark=dark)
    page.run("document.querySelectorAll('.gate').forEach(e => e.open = true)")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    texts = "[...document.querySelectorAll('svg text')]"
    assert page.run(f"{texts}.every(e => e.getBoundingClientRect().right <= innerWidth)")
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    selectors = "body, .fail .verdict, .pass .verdict, .inconclusive .verdict, .seconds, #run dt, figcaption"
    for selector in selectors.split(", "):
        colour = page.run(f"getComputedStyle(document.querySelector('{selector}')).color")
        assert _contrast(colour, ground) >= 4.5, selector


def _contrast(one: str, other: str) -> float:
    """By WCAG 2.2, from 1 to 21."""

    def luminance(colour: str) -> float:
        shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
