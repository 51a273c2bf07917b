"""``lmgate history`` on folders of records."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
from typer.testing import CliRunner, Result

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import RecordError
from pytest_lmgate.judge.result import Run, Verdict, to_json
from tests.judge.records import compared, record, results_of
from tests.report.hostile import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"
PASSED = record(15.7, comparison=compared(0.001))
COMMITS = ("1c0ffee1c0ff", "2badcafe2bad", "3deadbeef3de", "4feed4feed4f", "5ca1ab1e5ca1")


def keep(folder: Path, day: int, gates: Sequence[Verdict], problems: Sequence[str] = (), **others: Any) -> None:
    facts = {"id": f"{day:032x}", "date": f"2026-03-{day:02}T18:00:00Z", "commit": COMMITS[day - 1], "branch": "main"}
    run = Run(**facts | others)
    folder.mkdir(exist_ok=True)
    (folder / f"202603{day:02}T180000Z-{run.commit}-{day}.json").write_text(
        to_json(results_of(gates, run=run, problems=tuple(problems)))
    )


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five runs, of which the fourth is worse, beyond its limit."""
    monkeypatch.setenv("COLUMNS", "110")
    folder = tmp_path / "runs"
    name = "tests/test_quality.py::test_int8::ppl_max[int8-wikitext2]"
    for day, value in enumerate((16.02, 16.02, 16.11, 17.63, 17.58), 1):
        facts = {"id": name, "model": "int8", "dataset": "wikitext2", "verdict": "pass" if value < 17 else "fail"}
        keep(folder, day, [record(value, 0.21, limit=17.0, **facts)])
    return folder


def lmgate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["history", *map(str, arguments)])


def failing(*arguments: object) -> str:
    """Return the error that the command ends with."""
    failed = lmgate(*arguments).exception
    assert isinstance(failed, RecordError)
    return str(failed)


def test_a_history_in_memory_is_read_as_a_folder_and_an_error_names_it(runs: Path, monkeypatch: pytest.MonkeyPatch):
    files = fsspec.filesystem("memory")
    files.store.clear()
    for path in runs.iterdir():
        files.pipe_file(f"/shared/runs/{path.name}", path.read_bytes())
    assert lmgate("memory://shared/runs").stdout == lmgate(runs).stdout
    files.pipe_file("/shared/runs/20260307.json", b"{")
    assert "memory://shared/runs/20260307.json: " in failing("memory://shared/runs")
    assert "found none" in failing("memory://shared/others")

    def refused(*_: object, **__: object) -> None:
        raise ConnectionError("refused")

    monkeypatch.setattr(type(files), "cat_file", refused)
    assert re.search("^memory://shared/runs: .*refused", failing("memory://shared/runs")), "a store that is down"


def test_a_history_names_the_first_run_where_a_gate_changed_beyond_noise(runs: Path):
    done = lmgate(runs)
    assert done.exit_code == 0
    assert "first change beyond noise: 2026-03-04 18:00 4feed4feed4f: worse, 16.065 -> 17.63 (+9.74%)" in done.stdout
    assert done.stdout.count("change") == 1
    assert [line.split()[2] for line in done.stdout.splitlines() if line.startswith("2026")] == list(COMMITS)
    (gate,) = json.loads(lmgate(runs, "--json").stdout)["gates"]
    assert [run["finding"]["kind"] for run in gate["runs"]] == ["first", "same", "same", "worse", "same"]
    assert gate["first_change"] == gate["runs"][3]


def test_the_picture_has_a_point_for_each_run_and_marks_the_change(runs: Path, tmp_path: Path):
    picture = tmp_path / "out" / "history.svg"
    assert lmgate(runs, "--svg", picture).exit_code == 0
    root = ElementTree.parse(picture).getroot()
    circles = root.findall(f".//{SVG}circle")
    assert [circle.get("class") for circle in circles] == ["pass"] * 3 + ["fail"] * 2
    heights = [float(circle.get("cy", "")) for circle in circles]
    assert heights[0] == heights[1] > heights[2] > heights[4] > heights[3]
    (mark,) = (line for line in root.findall(f".//{SVG}line") if line.get("class") == "worse")
    assert mark.get("x1") == circles[3].get("cx")
    assert str(picture / "x.svg") in failing(runs, "--svg", picture / "x.svg")


def test_runs_that_were_not_judged_are_named_where_they_are_shown_and_are_not_in_the_picture(tmp_path: Path):
    for day in range(1, 6):
        gate = record(None if day % 2 else 9.0 + day / 100, 0.1, id="g", verdict="pass", limit=None)
        keep(tmp_path, day, [gate], stopped=day % 2 == 1)
    assert lmgate(tmp_path, "--svg", tmp_path / "x.svg").exit_code == 0
    assert len(ElementTree.parse(tmp_path / "x.svg").findall(f".//{SVG}circle")) == 2
    for last, named in ((0, 3), (2, 1)):
        text = lmgate(tmp_path, "--last", last).stdout
        assert (text.count("not judged: "), text.count("not whole: ")) == (named, named)
        assert "the others were not judged" in text


def test_a_damaged_record_and_a_folder_without_records_are_errors_that_name_it(runs: Path):
    for text in (b"{", b"{}", b"\xff"):
        (runs / "x.json").write_bytes(text)
        assert f"{runs / 'x.json'}: " in failing(runs)
    (runs / "none").mkdir()
    (runs / "none" / "README.md").write_text("runs of our CI")
    assert "found none" in failing(runs / "none")
    assert "No such file" in failing(runs / "gone")


def test_hostile_names_break_neither_the_text_nor_the_picture(tmp_path: Path):
    names = [name for name in HOSTILE.values() if name.strip()]
    plain = [name.encode("utf-8", "backslashreplace").decode()[:2000] for name in names]
    for day in (1, 2):
        gates = [record(10.0 + 90 * (day == 2), id=name, model=name, dataset=name) for name in dict.fromkeys(plain)]
        keep(tmp_path / "runs", day, gates)
    done = lmgate(tmp_path / "runs", "--svg", tmp_path / "h.svg")
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    ElementTree.parse(tmp_path / "h.svg")
    assert len(json.loads(lmgate(tmp_path / "runs", "--json").stdout)["gates"]) == len(set(plain))


def unsure(by: float, **more: Any) -> Verdict:
    return record(15.8, verdict="inconclusive", comparison=compared(by), **more)


@pytest.mark.parametrize(
    ("gates", "says"),
    [
        ([record(15.7, interval=None), record(36.7, interval=None)], "nothing was judged"),
        ([record(15.7), record(36.7, identity={"data": "b" * 64})], "nothing was judged"),
        ([record(15.7), record(15.8), record(None)], "no change beyond noise in 2 of 3 runs"),
        ([record(15.7), record(15.8)], "no change beyond noise"),
        ([PASSED, PASSED], "the verdict has not changed"),
        ([PASSED, unsure(0.0095)], "no change between PASS and failing: 1 PASS, 1 INCONCLUSIVE"),
        ([PASSED, unsure(0.012, blocking=True)],
         "first change of the verdict: 2026-03-02 18:00 2badcafe2bad: worse, INCONCLUSIVE! at +1.20%"),
    ],
)  # fmt: skip
def test_a_history_claims_no_more_than_its_runs_show(gates: Sequence[Verdict], says: str, tmp_path: Path):
    for day, gate in enumerate(gates, 1):
        keep(tmp_path / "runs", day, [gate])
    last = lmgate(tmp_path / "runs").stdout.splitlines()[-1]
    assert last.startswith(says), last


def test_the_last_runs_one_gate_and_one_branch_can_be_chosen_and_all_runs_are_judged(runs: Path):
    said = lmgate(runs, "--last", 1).stdout
    assert "4 earlier runs not shown" in said
    assert "first change beyond noise: 2026-03-04" in said
    assert said.count("\n2026") == 1
    keep(runs, 5, [record(9.0, id="other")], branch="topic")
    assert "other" not in lmgate(runs, "int8-wikitext2").stdout
    assert "int8" not in lmgate(runs, "--branch", "topic").stdout
    assert "'otter'" in failing(runs, "otter")
    assert "'main'" in failing(runs, "--branch", "mian")
