"""Files that inspect_ai, lighteval and Every Eval Ever wrote, and tables of one's own; see the scripts ``write_*``."""

import importlib.metadata
import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from pytest_lmgate.data.results import inspect_logs, rows
from pytest_lmgate.data.results.rows import Columns, ResultRow, ResultRun, Series, read
from tests.tools.judge_results.judging import DATA, copied, edit_json, judge, table

INSPECT = [DATA / "inspect" / f"{side}.eval" for side in ("old", "new")]
EVERY = [DATA / "every_eval_ever" / side for side in ("old", "new")]
COLUMNS = ("--id=id", "--score=score")


def logs(folder: Path, change: Callable[[dict[str, Any]], object] = lambda log: None) -> list[Path]:
    """Write both logs of inspect_ai as JSON, the new one changed."""
    files = []
    for archive in INSPECT:
        header, samples = inspect_logs._log(archive)
        log = {**header, "samples": [sample for _, sample in samples]}
        if archive.stem == "new":
            change(log)
        files.append(folder / f"{archive.stem}.json")
        files[-1].write_text(json.dumps(log))
    return files


def lighteval(folder: Path) -> list[Path]:
    return [copied(DATA / "lighteval" / side, folder / side) for side in ("old", "new")]


@pytest.mark.parametrize("place", ["lm_eval/new", "lighteval/new", "inspect/new.eval"])
def test_a_copy_of_the_same_run_is_no_new_run(place: str, tmp_path: Path):
    old, new = (copied(DATA / place, tmp_path / f"{side}{Path(place).suffix}") for side in ("old", "new"))
    found = judge(old, new)
    assert (found.code, {gate["verdict"] for gate in found.gates.values()}) == (3, {"error"})
    assert "OLD and NEW are the same run (" in found.text


def test_epochs_of_a_sample_of_inspect_are_one_cluster():
    found = judge(*INSPECT)
    assert found.gates.keys() == {"capitals: match", "capitals: f1"}
    gate = found.gates["capitals: match"]
    assert (gate["n"], gate["comparison"]["clusters"], gate["comparison"]["bounds"]) == (12, 6, "tango")
    assert (gate["comparison"]["reference"], gate["value"]) == (11 / 12, 8 / 12)
    assert gate["comparison"]["notes"] == ["3 rows were right and now wrong, 0 the other way round"]
    assert gate["worst"][0]["prompt"] == "Which city is the capital of Italy?"
    assert gate["worst"][0]["output"] == "an answer"
    assert {tag["value"] for tag in gate["where"]["tags"]} == {"Europe", "elsewhere"}


def test_a_log_of_inspect_as_json_has_the_verdict_of_the_archive(tmp_path: Path):
    one, other = judge(*INSPECT), judge(*logs(tmp_path))
    for name, gate in one.gates.items():
        one_side, other_side = gate["comparison"], other.gates[name]["comparison"]
        assert {**one_side, "against": ""} == {**other_side, "against": ""}


def set_in(*path: Any, to: Any) -> Callable[[dict[str, Any]], object]:
    def change(log: Any) -> None:
        for key in path[:-1]:
            log = log[key]
        log[path[-1]] = to

    return change


LOGS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "an error": (set_in("status", to="error"), "status success, got 'error'"),
    "an invalidated run": (set_in("invalidated", to=True), "'invalidated'"),
    "half of the samples": (lambda log: log["samples"].pop(), "expected 12 samples, got 11"),
    "incomplete samples": (set_in("results", "completed_samples", to=11), "of which 11 are complete"),
    "a sample that failed": (set_in("samples", 3, "error", to={"message": "timeout"}), "the sample failed"),
    "a sample without a score": (set_in("samples", 3, "scores", to={}), "has no score"),
    "a score as text": (set_in("samples", 3, "scores", "match", "value", to="0.7"), "got '0.7'"),
    "several values": (set_in("samples", 3, "scores", "match", "value", to={"a": 1}), "metric of the whole corpus"),
    "double rows": (set_in("samples", 8, "epoch", to=1), "is there twice"),
    "another epoch": (set_in("samples", 3, "epoch", to=7), "the rows differ: 1 only in OLD"),
    "more epochs": (set_in("eval", "config", "epochs", to=4), "repeats (2 in OLD, 4 in NEW)"),
    "another version": (set_in("eval", "task_version", to=2), "task version (1 in OLD, 2 in NEW)"),
    "another temperature": (set_in("plan", "config", "temperature", to=1.0), "generation settings"),
    "another solver": (set_in("plan", "steps", to=[{"solver": "mine"}]), "filter or solver"),
    "another question": (set_in("samples", 0, "input", to="Which?"), "have another document"),
    "another prompt": (set_in("samples", 0, "messages", 0, "content", to="Which?"), "the prompts or targets of 1"),
    "another task": (set_in("eval", "task", to="towns"), "lacks capitals"),
    "no log": (set_in("eval", to=3), "without eval.task"),
    "scores as a list": (set_in("samples", 0, "scores", to=[1]), "not as inspect logs have it"),
    "a score that is NaN": (set_in("samples", 0, "scores", "match", "value", to=float("nan")), "a finite number"),
    "samples as a number": (set_in("samples", to=3), "not as inspect logs have it"),
    "other arguments of the task": (set_in("eval", "task_args", to={"subject": "law"}), "filter or solver"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "says"), LOGS.values(), ids=LOGS)
def test_a_damaged_log_of_inspect_is_an_error_and_no_verdict(change: Any, says: str, tmp_path: Path):
    found = judge(*logs(tmp_path, change), "--metric=match")
    assert found.code == 3
    assert says in found.text
    assert {gate["verdict"] for gate in found.gates.values()} <= {"error"}


def test_a_text_that_cannot_be_shown_leaves_the_verdict_as_it_is(tmp_path: Path):
    def without_messages(log: dict[str, Any]) -> None:
        for sample in log["samples"]:
            sample["input"] = ["no message"]

    old, new = logs(tmp_path, without_messages)
    edit_json(old, without_messages)
    found = judge(old, new, "--metric=match").gates["capitals: match"]
    assert found["value"] == judge(*INSPECT, "--metric=match").gates["capitals: match"]["value"]
    assert found["worst"][0]["output"] == ""


def test_an_archive_that_is_large_when_unpacked_cut_or_wrong_or_there_twice_is_an_error(tmp_path: Path):
    large, lies, cut, wrong = (tmp_path / f"{name}.eval" for name in ("large", "lies", "cut", "wrong"))
    with zipfile.ZipFile(large, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", "{}")
        for at in range(10):  # it says that each member has a gigabyte, which is 10 GB unpacked
            archive.writestr(f"samples/{at}.json", "{}")
            archive.infolist()[-1].file_size = 10**9
    with zipfile.ZipFile(lies, "w", zipfile.ZIP_DEFLATED) as archive:  # its member is larger than it says
        archive.writestr("header.json", json.dumps({"status": "success", "more": " " * 10**6}))
        archive.infolist()[0].file_size = 20
    cut.write_bytes(INSPECT[0].read_bytes()[:-4000])
    data = bytearray(INSPECT[0].read_bytes())
    data[2000] ^= 0xFF
    wrong.write_bytes(data)
    for file, says in (
        (INSPECT[0].parent, "two logs of the task 'capitals', new.eval and old.eval"),
        (large, "bytes when unpacked"),
        (lies, ""),
        (cut, "not an archive"),
        (wrong, "not an archive"),
    ):
        found = judge(INSPECT[0], file)
        assert (found.code, found.gates) == (3, {})
        assert says in found.text


def test_details_of_lighteval_are_read_with_their_settings(tmp_path: Path):
    old, new = lighteval(tmp_path)
    told = json.loads(next(new.rglob("results_*.json")).read_text())["results"]
    for series in read(new).series:
        mean = sum(row.score for row in series.rows) / len(series.rows)
        assert mean == pytest.approx(told[series.task][series.metric], abs=1e-12)
        assert series.facts.number_of_shots == series.task.partition("|")[2]
    found = judge(old, new, "--task=tiny_choice|1")
    gate = found.gates["tiny_choice|1: acc"]
    assert (gate["n"], gate["value"], gate["comparison"]["reference"]) == (8, 0.25, 0.375)
    assert {tag["value"] for tag in gate["where"]["tags"]} == {"pets", "farms"}
    assert gate["worst"][0]["prompt"].startswith("Question: ")
    assert "whether the runs are complete" in found.text


def test_damaged_details_of_lighteval_are_errors(tmp_path: Path):
    old, new = lighteval(tmp_path)
    results, details = next(new.rglob("results_*.json")), next(new.rglob("details_tiny_choice*"))
    whole, table = results.read_text(), pyarrow.parquet.read_table(details)

    def expect(says: str) -> None:
        found = judge(old, new, "--task=tiny_choice|1")
        assert found.code == 3
        assert says in found.text
        results.write_text(whole)
        pyarrow.parquet.write_table(table, details)

    edit_json(results, lambda each: each["config_tasks"]["tiny_choice|1"].update(version=2))
    expect("task version (1 in OLD, 2 in NEW)")
    edit_json(results, lambda each: each.update(config_tasks=["tiny_choice|1"]))
    expect("not as lighteval details have it")
    edit_json(results, lambda each: each["results"]["tiny_choice|1"].update(acc=0.5))
    expect("rows are missing or there twice, or it is not a mean")
    for kept in (table.slice(0, 4), pyarrow.concat_tables([table, table.slice(0, 1)])):
        pyarrow.parquet.write_table(kept, details)
        expect("rows are missing or there twice, or it is not a mean")
    pyarrow.parquet.write_table(table.drop_columns(["doc"]), details)
    expect("expected the columns doc, metric and model_response")
    details.write_bytes(details.read_bytes()[:-100])
    expect("not a parquet file")
    next(new.rglob("details_tiny_text*")).unlink()
    expect("no details of tiny_text|0")


def test_rows_of_every_eval_ever_have_the_verdict_of_the_harness_they_come_from():
    ours = judge(DATA / "lm_eval" / "old", DATA / "lm_eval" / "new", "--task=arc_easy", "--task=gsm8k")
    theirs = judge(*EVERY)
    for name, of_harness in (
        ("arc_easy: acc", "arc_easy: acc"),
        ("arc_easy: acc_norm", "arc_easy: acc_norm"),
        ("gsm8k/flexible-extract: exact_match,flexible-extract", "gsm8k: exact_match,flexible-extract"),
    ):
        one, other = (each["comparison"] for each in (theirs.gates[name], ours.gates[of_harness]))
        numbers = ("decision", "candidate", "reference", "lower", "upper", "p_pass", "p_fail", "n", "clusters")
        assert [one[key] for key in numbers] == [other[key] for key in numbers]


def test_damaged_rows_of_every_eval_ever_are_errors(tmp_path: Path):
    def expect(says: str, change: Callable[[list[Any]], Any], *, alone: bool = True) -> None:
        new = copied(EVERY[1], tmp_path / says.replace("/", ""))
        file = next((new / "arc_easy").glob("*_samples.jsonl"))
        edit_json(file, change)
        if alone:
            file.with_name(file.name.replace("_samples.jsonl", ".json")).unlink()
        found = judge(EVERY[0], new, "--task=arc_easy", "--metric=acc")
        assert found.code == 3
        assert says in found.text
        assert {gate["verdict"] for gate in found.gates.values()} <= {"error"}

    expect("rows were changed or cut", lambda rows: rows[:-1], alone=False)
    expect("the rows differ: 1 only in OLD", lambda rows: rows[:-1] if rows[-1].get("evaluation_result_id") == "acc"
           else [row for row in rows if row["sample_id"] != "5"])  # fmt: skip
    expect("the sample failed", lambda rows: rows[0].update(error="timeout"))
    expect("expected a finite number as score, got '1'", lambda rows: rows[0]["evaluation"].update(score="1"))
    expect("without sample_id", lambda rows: rows[1].pop("sample_id") and None)
    expect("the rows of one model", lambda rows: rows[0].update(model_id="other"))
    expect("the prompts or targets of 1 of 6", lambda rows: rows[0]["input"].update(formatted="Another template"))
    # Another run in the same folder is no repeat of the first.
    expect("expected one run, got", lambda rows: [*rows, *({**row, "evaluation_id": "another"} for row in rows)])

    def with_shots(told: dict[str, Any], shots: int) -> None:
        for each in told["evaluation_results"]:
            each["generation_config"] = {"additional_details": {"num_fewshot": shots}}

    sides = [copied(side, tmp_path / side.name) for side in EVERY]
    for shots, side in enumerate(sides):
        edit_json(next((side / "arc_easy").glob("*.json")), partial(with_shots, shots=shots))
    assert "number of shots (0 in OLD, 1 in NEW)" in judge(*sides, "--task=arc_easy").text


RIGHT, WORSE = [1, 0] * 30, [1, 0] * 20 + [0, 0] * 10


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_table_needs_a_column_for_the_id_and_one_for_the_score(suffix: str, tmp_path: Path):
    old, new = table(tmp_path / f"old{suffix}", RIGHT), table(tmp_path / f"new{suffix}", WORSE)
    found = judge(old, new, *COLUMNS)
    gate = found.gates["table: score"]
    assert (found.code, gate["verdict"], gate["value"], gate["comparison"]["reference"]) == (1, "fail", 1 / 3, 0.5)
    assert "content of the rows, which are matched by their ids alone" in found.text


def test_a_cluster_column_widens_the_bounds_and_must_be_the_same(tmp_path: Path):
    cluster = [at // 6 for at in range(60)]
    old = table(tmp_path / "old.jsonl", RIGHT, story=cluster)
    new = table(tmp_path / "new.jsonl", WORSE, story=cluster)
    alone = judge(old, new, *COLUMNS).gates["table: score"]["comparison"]
    together = judge(old, new, *COLUMNS, "--cluster=story").gates["table: score"]["comparison"]
    assert (alone["clusters"], together["clusters"]) == (60, 10)
    assert together["lower"] < alone["lower"] < alone["upper"] < together["upper"]
    other = table(tmp_path / "other.jsonl", WORSE, story=cluster[::-1])
    assert "the clusters of the rows differ" in judge(old, other, *COLUMNS, "--cluster=story").text


def test_scores_that_no_name_explains_need_a_direction(tmp_path: Path):
    old, new = (table(tmp_path / f"{name}.jsonl", [0.5 * at for at in range(40)], metric=["beauty"] * 40)
                for name in ("old", "new"))  # fmt: skip
    found = judge(old, new, *COLUMNS)
    assert found.code == 3
    assert "add --better higher or --better lower" in found.text
    assert judge(old, new, *COLUMNS, "--better=lower").code == 0


def test_lower_scores_of_which_one_side_is_percent_are_an_error_and_no_gain(tmp_path: Path):
    errors = [0.1 + at / 100 for at in range(60)]
    for name, (before, after), code in (
        ("rates", (100, 1.5), 3),
        ("outliers", (100, 2), 3),  # the rate of wrong words may be above 1
        ("gain", (1, 0.01), 0),
        ("loss", (8, 1), 0),
        ("none wrong", (100, 0), 0),
    ):
        files = [
            table(tmp_path / f"{name}-{side}.csv", [factor * each for each in errors], "wer")
            for side, factor in (("old", before), ("new", after))
        ]
        found = judge(*files, "--id=id", "--score=wer")
        assert found.code == code, name
        assert ("written as percent" in found.text) == (code == 3), name


TABLES = {
    "double rows": ({"id": ["r1"] * 60}, "the row 'r1' is there twice"),
    "NaN": ({"score": ["nan", *RIGHT[1:]]}, "expected a finite number as score"),
    "the largest float": ({"score": ["1.7976931348623157e308", *RIGHT[1:]]}, "expected a finite number as score"),
    "nothing": ({"score": ["", *RIGHT[1:]]}, "got ''"),
    "a comma": ({"score": ["0,5", *RIGHT[1:]]}, "got '0,5'"),
    "other prompts": ({"prompt": ["q?"] * 59 + ["other?"]}, "the prompts or targets of 1 of 60 rows differ"),
    "other ids": ({"id": [f"r{at + 1}" for at in range(60)]}, "1 only in OLD (r0)"),
    "percent": ({"score": [100 * each for each in RIGHT]}, "up to 1, the candidate's up to 100: was one of the two"),
    "no id": ({"id": ["", *[f"r{at}" for at in range(1, 60)]]}, "expected a text or a whole number"),
}


@pytest.mark.parametrize(("columns", "says"), TABLES.values(), ids=TABLES)
def test_a_table_with_bad_rows_is_an_error(columns: dict[str, list[Any]], says: str, tmp_path: Path):
    common = {"prompt": ["q?"] * 60}
    old = table(tmp_path / "old.csv", RIGHT, **common)
    found = judge(old, table(tmp_path / "new.csv", RIGHT, **{**common, **columns}), *COLUMNS)
    assert found.code == 3
    assert says in found.text
    assert {gate["verdict"] for gate in found.gates.values()} <= {"error"}


def test_a_missing_column_is_named_and_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old, new = (table(tmp_path / f"{name}.csv", RIGHT) for name in ("old", "new"))
    assert "no column 'scor' (did you mean 'score'?)" in judge(old, new, "--id=id", "--score=scor").text
    assert "expected the columns of ids and of scores (--id and --score, or" in judge(old, new, "--id=id").text
    assert "whose columns are named: --id and --score, or" in judge(old, new).text
    monkeypatch.setattr(rows, "MOST_BYTES", 100)
    assert "expected at most 100 bytes" in judge(old, new, *COLUMNS).text


def test_a_package_adds_a_format_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "old.mine").write_text("1 1 0 1")
    (tmp_path / "new.mine").write_text("0 0 0 1")

    def mine(path: Path, columns: Columns) -> ResultRun | None:
        if path.suffix != ".mine":
            return None
        made = tuple(ResultRow(id=str(at), score=float(each)) for at, each in enumerate(path.read_text().split()))
        series = Series(task="t", metric="acc", rows=made, direction="higher")
        return ResultRun(path=path, tool="mine", series=(series,))

    def found(*, group: str) -> list[Any]:
        point = SimpleNamespace(name="mine", load=lambda: mine)
        return [point] if group == "pytest_lmgate.results" else [*importlib.metadata.entry_points(group=group)]

    monkeypatch.setattr(rows, "entry_points", found)
    assert judge(tmp_path / "old.mine", tmp_path / "new.mine").gates["t: acc"]["n"] == 4
