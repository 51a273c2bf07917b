"""A JSON report read back makes the reports that the run itself made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import DataError
from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.formats.json_file import json_report
from pytest_lmgate.report.formats.json_reader import read_report
from pytest_lmgate.report.formats.table import FORMATS
from pytest_lmgate.report.results import Results
from tests.report.hostile import HOSTILE


def read_back(results: Results, folder: Path) -> Results:
    path = folder / "report.json"
    path.write_text(json_report(results), encoding="utf-8")
    return read_report(path)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "json"])
def test_each_format_is_the_same_from_json_as_from_the_run(name: str, results: Results, tmp_path: Path) -> None:
    text = FORMATS[name].render(results)
    assert FORMATS[name].render(read_back(results, tmp_path)) == text
    assert len(text) > 1000


def test_json_made_of_json_is_the_same(results: Results, tmp_path: Path) -> None:
    first, second = (json.loads(json_report(each)) for each in (results, read_back(results, tmp_path)))
    assert first == second


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_come_through(text: str, failed: Verdict, tmp_path: Path) -> None:
    gate = replace(failed, id=text, test=text, model=text, message=text, worst=((0, 0.5, text, text, text),))
    results = Results([gate], problems=(text,), folder=Path.cwd())
    if text != text.encode("utf-8", "backslashreplace").decode():  # JSON has an escape in the place of half a pair
        assert read_back(results, tmp_path).verdicts[0].model == text.encode("utf-8", "backslashreplace").decode()
        return
    assert FORMATS["html"].render(read_back(results, tmp_path)) == FORMATS["html"].render(results)


def test_reports_without_the_newer_keys_are_read(passed: Verdict, compared: Verdict, tmp_path: Path) -> None:
    report = json.loads(
        json_report(Results([passed, replace(compared, id=f"{compared.test}::no_regression:ppl[a-b]")]))
    )
    for gate in report["gates"]:
        for key in ("marker", "blocking", "file", "line"):
            del gate[key]
    del report["run"]
    (tmp_path / "old.json").write_text(json.dumps(report))
    assert [each.marker for each in read_report(tmp_path / "old.json").verdicts] == ["ppl_max", "no_regression"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[]", "expected a report of schema 1"),
        ('{"schema": 2}', "got schema 2"),
        ('{"schema": 1}', "not a whole report"),
        ('{"schema": 1, "problems": [], "measurements": [], "gates": [{"id": "a"}]}', "not a whole report"),
    ],
)
def test_what_is_no_report_is_an_error_that_says_so(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError, match=says):
        read_report(tmp_path / "x.json")


def test_the_command_writes_what_it_is_asked_for(results: Results, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json_report(results), encoding="utf-8")
    done = CliRunner().invoke(app, ["report", "report.json", "--html", "out/page.html", "--openmetrics", "m.txt"])
    assert done.exit_code == 0
    assert done.stdout.startswith("html: out/page.html\nopenmetrics: m.txt\n12 gates: ")
    assert (tmp_path / "out/page.html").read_text(encoding="utf-8") == FORMATS["html"].render(results)
    printed = CliRunner().invoke(app, ["report", "report.json", "--github"])
    assert printed.stdout == FORMATS["github"].render(results)
    assert "expected a report to make" in CliRunner().invoke(app, ["report", "report.json"]).stderr
    assert isinstance(CliRunner().invoke(app, ["report", "x.json", "--github"]).exception, DataError)


def test_the_command_says_which_report_it_cannot_write(results: Results, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json_report(results), encoding="utf-8")
    (tmp_path / "file").write_text("")
    failed = CliRunner().invoke(app, ["report", "report.json", "--html", "file/page.html", "--openmetrics", "m.txt"])
    assert isinstance(failed.exception, DataError)
    assert str(failed.exception).startswith("html:file/page.html: cannot be written: ")
    assert (tmp_path / "m.txt").exists()
