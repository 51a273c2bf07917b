"""The Markdown report, read by a reader of Markdown."""

import itertools
import math
import re
import shlex

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.report.explanation import explain
from pytest_lmgate.report.page import html_report
from pytest_lmgate.report.services import github_annotations, markdown_report, openmetrics_report
from tests.judge.records import results_of
from tests.report.hostile import HOSTILE, hostile_results


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


def test_the_counts_of_a_run_that_fails_beside_its_gates_say_so(passed: Verdict) -> None:
    results = results_of([passed], problems=("no shard has a verdict of a", "no shard has a verdict of b"))
    assert markdown_report(results).startswith("**1 gate: 1 pass; 2 problems**\n")
    assert '<h1 id="counts" class="bad">1 gate: 1 pass; 2 problems</h1>' in html_report(results)


def test_counts_come_first_then_a_table_with_failures_first_then_explanations(
    passed: Verdict, failed: Verdict, unmeasured: Verdict, compared: Verdict
) -> None:
    other = replace(passed, id="t.py::test_b::ppl_max[int8-x]", test="t.py::test_b", dataset="x")
    better = replace(compared, id="t.py::test_c::no_regression[int8-x]", test="t.py::test_c")
    text = markdown_report(results_of([other, failed, unmeasured, better]))
    assert text.partition("\n\n<details>")[0] == FOUR
    assert _fenced(_read(text)) == [f"{explain(verdict)}\n" for verdict in (failed, unmeasured, better)]


FOUR = """\
**4 gates: 1 pass, 2 fail, 1 error**

| verdict | gate | value | limit or reference | change | scored | seconds |
|---|---|---:|---:|---:|---:|---:|
| ❌ FAIL | `ppl_max[int8-wikitext2]` | 18.15 [17.25, 19.0625] | 16.5 |  | 283,287 tokens | 12.3 |
| ❌ ERROR | `bpb_max[gone-wikitext2]` |  | 16.5 |  |  | 0.0 |
| ❌ FAIL | `no_regression[int8-x]` | 18.15 [17.25, 19.0625] | 16.5 `model 'fp16'` | +10.0% [+9.0, +11.0], \
tolerance 1% | 283,287 tokens | 12.3 |
| ✅ PASS | `ppl_max[int8-x]` | 16 [15.5, 16.5] | 16.5 |  | 283,287 tokens | cached |"""


def test_what_does_not_fail_the_build_stands_between_failures_and_passes_and_is_explained(
    passed: Verdict, failed: Verdict, compared: Verdict
) -> None:
    open_, known = replace(compared, verdict="inconclusive", id="t.py::c"), replace(failed, id="t.py::k", xfail=True)
    text = markdown_report(results_of([replace(passed, id="t.py::p", test="t.py"), known, open_, failed]))
    shown = [row[0].content for row in _cells(_read(text))]
    assert (shown[0], set(shown[1:3]), shown[3]) == ("❌ FAIL", {"⚠️ INCONCLUSIVE", "⚠️ FAIL (xfail)"}, "✅ PASS")
    assert {f"{explain(failed)}\n", f"{explain(open_)}\n"} <= set(_fenced(_read(text)))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_are_shown_and_take_no_effect(failed: Verdict, compared: Verdict, text: str) -> None:
    report = markdown_report(hostile_results(failed, compared, text))
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
    assert not set(report) & {"\x1b", "\u202e"}
    assert not [line for line in report.splitlines() if line.startswith(("::", "##["))]
    assert len(report) < 100_000


def test_the_report_is_never_larger_than_a_step_summary_may_be(passed: Verdict, failed: Verdict) -> None:
    many = [replace(failed, id=f"t.py::test_{i}", test=f"t.py::test_{i}", signature="s" * 1900) for i in range(400)]
    many += [replace(passed, id=f"t.py::p{i}{'n' * 280}", test="t.py") for i in range(1200)]
    report = markdown_report(results_of(many))
    assert len(report.encode()) < 2**20
    rows, explained = len(_cells(_read(report))), report.count("<details>")
    assert f"\n\n{1600 - rows:,} more rows omitted to limit the size" in report
    assert f"\n\n{400 - explained:,} more explanations omitted to limit the size" in report
    assert rows > 1000
    assert explained > 100


def _commands(report: str) -> list[tuple[str, dict[str, str], str]]:
    """As the runner does: a command a line; ``%3A`` and ``%2C`` are escapes in properties only, ``%25`` comes last."""
    commands = []
    assert report == "" or report.endswith("\n")
    for line in re.split(r"\r\n|\r|\n", report)[:-1]:
        match = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
        assert match, line
        properties = {}
        for pair in match[2].split(","):
            key, _, value = pair.partition("=")
            for escape, meant in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
                value = value.replace(escape, meant)
            properties[key] = value
        commands.append((match[1], properties, match[3].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")))
    return commands


def test_failures_are_errors_and_what_lets_the_build_go_on_a_warning(
    passed: Verdict, failed: Verdict, unmeasured: Verdict, compared: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    open_ = replace(compared, verdict="inconclusive")
    blocking = replace(open_, blocking=True, file="/repo/lmgate.yaml", line=7)
    known = replace(failed, xfail=True)
    found = _commands(github_annotations(results_of([passed, known, open_, failed, unmeasured, blocking])))
    levels = zip(("error", "error", "error", "warning"), (failed, unmeasured, blocking, open_), strict=True)
    assert [(level, message) for level, _, message in found] == [(level, explain(each)) for level, each in levels]
    lost = github_annotations(results_of([passed], problems=("100 % lost\n::error::x",)))
    assert lost == "::error title=lmgate::100 %25 lost%0A\\::error::x\n"
    assert found[0][1] == {"title": "FAIL ppl_max[int8-wikitext2]"}
    assert found[2][1] == {"file": "/repo/lmgate.yaml", "line": "7", "title": "INCONCLUSIVE ppl_max[int8-wikitext2]"}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_are_part_of_one_command(failed: Verdict, compared: Verdict, text: str) -> None:
    report = github_annotations(hostile_results(failed, compared, text))
    report.encode("utf-8")
    found = _commands(report)
    assert [level for level, _, _ in found] == ["error"] * 3
    assert [sorted(properties) for _, properties, _ in found[1:]] == [["file", "line", "title"], ["title"]]
    assert report.replace("\n", "").isprintable()


Series = dict[tuple[tuple[str, str], ...], float]


def _series(report: str) -> dict[str, Series]:
    """Families with their series; the parser refuses wrong types, escapes and states, and a missing EOF."""
    families: dict[str, Series] = {}
    for family in text_string_to_metric_families(report):
        assert family.documentation
        series: Series = {}
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in series
            series[labels] = sample.value
        families[family.name] = series
    return families


def _as_gitlab(report: str) -> dict[str, str]:
    """As lib/gitlab/ci/parsers/metrics/generic.rb: a comment begins at any ``#``, and a shell splits the words."""
    found = {}
    for line in report.splitlines():
        if words := shlex.split(re.sub(r"#.*$", "", line)):
            name, value = words
            assert name not in found
            found[name] = value
    return found


def _values(families: dict[str, Series], name: str) -> list[float]:
    return list(families[name].values())


def test_every_number_of_a_gate_is_a_series_in_all_its_digits(failed: Verdict, compared: Verdict) -> None:
    one = replace(failed, value=0.1 + 0.2, limit=1 / 3, id="t.py::test_a::x", test="t.py::test_a")
    found = _series(openmetrics_report(results_of([one, compared])))
    gate = {"gate": "t.py::test_a::x", "metric": "ppl", "model": "int8", "dataset": "wikitext2"}
    numbers = {"value": 0.1 + 0.2, "limit": 1 / 3, "stderr": 0.4567, "lower": 17.25, "upper": 19.0625, "scored": 283287}
    assert {name: found[f"lmgate_{name}"][tuple(sorted(gate.items()))] for name in numbers} == numbers
    of_compared = {"reference": [16.5], "degradation": [0.1], "degradation_lower": [0.09], "tolerance": [0.01]}
    assert {name: _values(found, f"lmgate_{name}") for name in of_compared} == of_compared


def test_a_verdict_is_one_of_seven_states(passed: Verdict, unmeasured: Verdict, failed: Verdict) -> None:
    advisory = replace(failed, id="other", advisory=True)
    found = _series(openmetrics_report(results_of([passed, unmeasured, advisory], problems=("x",))))
    assert [at for at, state in enumerate(_values(found, "lmgate_verdict")) if state] == [0, 7 + 3, 14 + 5]
    assert len(found["lmgate_value"]) == 2
    assert _values(found, "lmgate_problems") == [1]
    assert _values(_series(openmetrics_report(results_of([]))), "lmgate_problems") == [0]


def test_numbers_that_are_not_finite_are_openmetrics_own(failed: Verdict) -> None:
    endless = replace(failed, interval=(-math.inf, math.inf), stderr=math.nan, value=1e300)
    found = _series(openmetrics_report(results_of([endless])))
    shown = [str(_values(found, f"lmgate_{name}")[0]) for name in ("lower", "upper", "stderr", "value")]
    assert shown == ["-inf", "inf", "nan", "1e+300"]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_are_labels_and_no_two_series_are_the_same(failed: Verdict, text: str) -> None:
    gates = [
        replace(failed, id=f"t::{name}", test="t", model=name, dataset=name)
        for name in (text, text.encode("unicode_escape").decode())
    ]
    report = openmetrics_report(results_of([*gates, replace(failed, id="a#2")]))
    report.encode("utf-8")
    of_gitlab = {name: value for name, value in _as_gitlab(report).items() if name.startswith("lmgate_value")}
    assert of_gitlab[r"lmgate_value{gate=a\x232,metric=ppl,model=int8,dataset=wikitext2}"] == "18.15"
    assert len(_series(report)["lmgate_value"]) == len(of_gitlab) == 3
    assert report.replace("\n", "").isprintable()
    assert len(report) < 100_000
