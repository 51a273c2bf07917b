"""A run's result is the same after its journey through JSON, and every reader of JSON takes it."""

import json
import math
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import RecordError
from pytest_lmgate.judge.result import Bounded, PreviousBaseline, Results, Verdict, WorstRow, read_results, to_json
from pytest_lmgate.report.formats import FORMATS
from tests.judge.records import compared as comparison_of
from tests.judge.records import record, results_of
from tests.report.hostile import HOSTILE

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/reference/report.schema.json").read_text(encoding="utf-8"))
_FINITE, _TEXTS = st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20)
_BLANK = {name: st.just(()) for name in ("history", "arguments")}
_BLANK |= {name: st.none() for name in ("comparison", "where", "spread", "previous")}
_VERDICTS = st.builds(
    Verdict,
    id=_TEXTS,
    verdict=st.sampled_from(["pass", "fail", "inconclusive", "error"]),
    value=st.none() | _FINITE,
    limit=st.none() | _FINITE,
    stderr=st.none() | _FINITE,
    interval=st.none() | st.tuples(_FINITE | st.just(-math.inf), _FINITE | st.just(math.inf)),
    seconds=_FINITE,
    details=st.dictionaries(_TEXTS, _TEXTS | st.integers(0, 9) | st.none(), max_size=2),
    worst=st.lists(st.builds(WorstRow, row=st.integers(0, 9), score=_FINITE), max_size=2).map(tuple),
    bounded=st.none() | st.just(Bounded(0.95, -math.inf, 2.0, "hall", 40)) | st.just(Bounded(0.95)),
    **_BLANK,
)


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")


def strict(schema: Any) -> Any:
    """The schema with every key that it does not name refused: none is written that is not described."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **inner} if inner.get("type") == "object" else inner


def check(report: str) -> Any:
    """Return a report that fits the schema."""
    found = json.loads(report, parse_constant=_refuse)
    jsonschema.Draft202012Validator(strict(SCHEMA)).validate(found)
    return found


def read_back(results: Results) -> Results:
    return read_results(to_json(results).encode(), "report.json")


@settings(max_examples=20)
@given(_VERDICTS)
def test_a_verdict_is_the_same_after_its_journey(verdict: Verdict) -> None:
    assert read_back(results_of([verdict])).verdicts == (verdict,)


def test_results_are_the_same_after_their_journey_and_fit_the_schema(results: Results, compared: Verdict) -> None:
    anew = replace(compared, id="anew", previous=PreviousBaseline(16.5, compared.comparison))
    whole = replace(results, verdicts=(*results.verdicts, anew))
    assert read_back(whole) == whole
    found = check(to_json(whole))
    assert found["gates"][4]["spread"]["bins"] == [40, 60, 90, 60, 40]
    assert [run["interval"] for run in found["gates"][4]["history"][:2]] == [[1.0, None], [15.6, 16.4]]
    worst = {"row": 3, "score": 0.5, "prompt": "say it", "reference": "a | b", "output": "c"}
    assert found["gates"][1]["worst"] == [worst]


@pytest.mark.parametrize("name", [name for name, kind in FORMATS.items() if name != "json" and not kind.is_folder])
def test_each_format_is_the_same_from_json_as_from_the_run(name: str, results: Results) -> None:
    text = FORMATS[name].render(results)
    assert FORMATS[name].render(read_back(results)) == text
    assert len(text) > 1000


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_come_through_and_have_a_form_in_utf_8(text: str, failed: Verdict) -> None:
    row = WorstRow(0, 0.5, text, text, text)
    gate = replace(failed, id=text, test=text, model=text, message=text, worst=(row,))
    results = results_of([gate], problems=(text,))
    check(to_json(results).encode("utf-8").decode())
    shown = text.encode("utf-8", "backslashreplace").decode()  # an escape in the place of half a surrogate pair
    assert read_back(results).verdicts[0].worst[0].output == shown


def test_a_gate_has_the_keys_that_others_read(failed: Verdict, compared: Verdict) -> None:
    gate, other = check(to_json(results_of([failed, compared])))["gates"]
    assert gate == {
        "id": "tests/test_quality.py::test_quality::ppl_max[int8-wikitext2]", "marker": "ppl_max", "verdict": "fail",
        "test": "tests/test_quality.py::test_quality", "metric": "ppl", "model": "int8", "dataset": "wikitext2",
        "value": 18.15, "limit": 16.5, "stderr": 0.4567, "interval": [17.25, 19.0625], "n": 283287, "unit": "token",
        "signature": "protocol:sliding|max_length:1024|stride:512|average:token|unit:token|version:0.1.0",
        "fingerprint": "0123456789abcdef" * 4, "cached": False, "seconds": 12.34, "direction": "", "device": "",
        "identity": {}, "blocking": False,
    }  # fmt: skip
    assert other["comparison"]["tolerance"] == {"size": 0.01, "relative": True, "two_sided": False}
    assert (other["comparison"]["lower"], other["comparison"]["upper"]) == (0.09, 0.11)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_null(failed: Verdict, number: float) -> None:
    gate = replace(failed, value=number, stderr=number, interval=(17.25, number), details={"df": number})
    (found,) = check(to_json(results_of([gate])))["gates"]
    assert (found["value"], found["stderr"], found["interval"]) == (None, None, [17.25, None])
    assert found["details"] == {"df": None}


def test_infinite_bounds_are_infinite_again_and_what_is_no_number_stays_so(results: Results, compared: Verdict) -> None:
    endless = replace(comparison_of(0.1), change=math.inf, degradation=math.inf, lower=-math.inf, upper=math.inf)
    bounded = Bounded(0.95, lower=-math.inf, upper=math.inf, bounds="hall")
    found = results_of([replace(compared, comparison=endless, bounded=bounded)])
    assert check(to_json(found))["gates"][0]["bounded"]["lower"] is None
    assert read_back(found) == found
    verdict = replace(compared, worst=(WorstRow(0, math.nan, "", "", ""),))
    back = read_back(results_of([verdict], measured=(replace(results.measured[0], value=math.nan),)))
    assert math.isnan(back.measured[0].value)
    assert math.isnan(back.verdicts[0].worst[0].score)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"schema": 2}', '{"schema": 1}', '{"schema": 1, "run": {}, "gates": [{"id": "a"}]}', "[" * 100_000],
)
def test_what_is_no_report_is_an_error_that_names_the_file(text: str) -> None:
    with pytest.raises(RecordError, match=r"^r\.json: "):
        read_results(text.encode(), "r.json")


def test_the_history_keeps_no_text_of_a_dataset_or_a_model(results: Results) -> None:
    kept = results.without_texts()
    for each, before in zip(kept.verdicts, results.verdicts, strict=True):
        assert (each.value, each.comparison, each.identity) == (before.value, before.comparison, before.identity)
    assert "say it" not in to_json(kept)
    assert kept.run.command == ""


@pytest.mark.parametrize(
    ("outcome", "failed"), [("pass", False), ("inconclusive", False), ("fail", True), ("error", True)]
)
def test_a_failure_or_an_error_fails_the_build_unless_its_test_is_marked_xfail(outcome: Any, failed: bool) -> None:
    assert record(1.0, verdict=outcome).fails is failed
    assert record(1.0, verdict=outcome, blocking=True).fails
    known = record(1.0, verdict=outcome, xfail=True)
    assert not known.fails
    assert known.outcome == ("xfail" if failed else outcome)


def test_the_command_writes_the_reports_that_it_is_told_to(results: Results) -> None:
    def report(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["report", *arguments])

    Path("report.json").write_text(to_json(results), encoding="utf-8")
    done = report("report.json", "--html", "out/page.html", "--openmetrics", "m.txt")
    assert done.exit_code == 0
    assert done.stdout.startswith("html: out/page.html\nopenmetrics: m.txt\n14 gates: ")
    assert Path("out/page.html").read_text(encoding="utf-8") == FORMATS["html"].render(results)
    as_json = json.loads(report("report.json", "--openmetrics", "m.txt", "--json").stdout)
    assert as_json == {"report": "report.json", "written": {"openmetrics": "m.txt"}}
    assert report("report.json", "--github").stdout == FORMATS["github"].render(results)
    assert report("report.json").exit_code == 2
    assert report("report.json", "--html", "x", "--markdown", "./x").exit_code == 2
    assert not Path("x").exists()
    assert isinstance(report("x.json", "--github").exception, RecordError)
    Path("file").write_text("")
    failed = report("report.json", "--html", "file/page.html", "--openmetrics", "n.txt").exception
    assert isinstance(failed, RecordError)
    assert str(failed).startswith("html:file/page.html: ")
    assert Path("n.txt").exists()
