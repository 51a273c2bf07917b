"""Files of lm-evaluation-harness, written by it: read, paired and judged; damaged ones are errors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.data.results.rows import read
from pytest_lmgate.errors import ConfigError, DataError
from tests.tools.judge_results.judging import DATA, copied, edit_json, judge

OLD, NEW = DATA / "lm_eval" / "old", DATA / "lm_eval" / "new"
GSM8K = "gsm8k: exact_match,flexible-extract"
Change = Callable[[Path], object]


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[Change], Path]:
    """Copies the new run and changes the copy."""

    def change(by: Change) -> Path:
        by(next(copied(NEW, tmp_path / "new").iterdir()))
        return tmp_path / "new"

    return change


def samples(task: str, change: Callable[[list[Any]], Any]) -> Change:
    """Change a task's rows, and take the results file with its hash away."""

    def by(folder: Path) -> None:
        next(folder.glob("results_*.json")).unlink()
        edit_json(next(folder.glob(f"samples_{task}_*.jsonl")), change)

    return by


def results(change: Callable[[dict[str, Any]], Any]) -> Change:
    return lambda folder: edit_json(next(folder.glob("results_*.json")), change)


def each(**values: Any) -> Callable[[list[Any]], None]:
    def change(rows: list[Any]) -> None:
        for row in rows:
            row.update(values)

    return change


def first(**values: Any) -> Callable[[list[Any]], None]:
    return lambda rows: rows[0].update(values)


def test_every_metric_of_every_task_is_the_harness_s_own_value():
    for folder in (OLD, NEW):
        told = json.loads(next(folder.rglob("results_*.json")).read_text())["results"]
        run = read(folder)
        assert len(run.series) == 6
        assert {name: of.tasks for name, of in run.groups.items()} == {"sciences": ("mmlu_anatomy", "mmlu_astronomy")}
        for series in run.series:
            mean = sum(row.score for row in series.rows) / len(series.rows)
            assert mean == pytest.approx(told[series.task][f"{series.metric},{series.filter or 'none'}"], abs=1e-12)
            assert series.direction == "higher"


def test_two_runs_have_a_verdict_for_each_metric_with_the_rows_that_got_wrong():
    found = judge(OLD, NEW, "--metric=exact_match,flexible-extract", "--metric=acc_norm")
    assert found.gates.keys() == {GSM8K, "arc_easy: acc_norm"}
    gate = found.gates[GSM8K]
    assert (found.code, gate["verdict"], gate["blocking"], gate["n"]) == (1, "inconclusive", True, 6)
    assert (gate["value"], gate["comparison"]["reference"]) == (0.5, 5 / 6)
    assert "2 rows were right and now wrong, 0 the other way round" in gate["comparison"]["notes"][0]
    lost = gate["worst"][0]
    assert (lost["score"], lost["before"]) == (0, 1)
    assert lost["prompt"].endswith("Answer:")
    assert lost["reference"].startswith("So it is.")
    assert lost["output"].strip("-.0123456789") == ""


def test_the_tasks_of_a_group_are_one_by_size_or_by_task():
    by_size = judge(OLD, NEW, "--task=sciences", "--group=size").gates["sciences: acc"]
    by_task = judge(OLD, NEW, "--task=sciences", "--group=task").gates["sciences: acc"]
    told = json.loads(next(NEW.rglob("results_*.json")).read_text())["results"]
    assert by_size["n"] == 14
    assert by_size["value"] == pytest.approx(told["sciences"]["acc,none"], abs=1e-12)
    both = [told[name]["acc,none"] for name in ("mmlu_anatomy", "mmlu_astronomy")]
    assert by_task["value"] == pytest.approx(sum(both) / 2, abs=1e-12)
    assert {tag["value"] for tag in by_size["where"]["tags"]} == {"mmlu_anatomy", "mmlu_astronomy"}


def test_a_group_in_a_group_is_judged_by_either_name(tmp_path: Path):
    inside = {"sciences": ["mmlu_anatomy", "mmlu_astronomy"], "all": ["sciences", "arc_easy"]}
    old, new = (copied(side, tmp_path / side.name) for side in (OLD, NEW))
    for side in (old, new):
        edit_json(next(side.rglob("results_*.json")), lambda told: told.update(group_subtasks=inside))
    assert judge(old, new, "--metric=acc", "--group=size").gates.keys() == {"all: acc"}
    assert judge(old, new, "--task=sciences", "--group=size").gates.keys() == {"sciences: acc"}
    found = judge(old, new, "--task=mmlu_anatomy", "--group=size")
    assert (found.code, found.gates) == (3, {})
    assert "--group: expected a group of tasks that both have in --task; they have all, sciences" in found.text


def test_a_group_whose_own_value_is_no_mean_of_its_tasks_is_an_error(changed):
    folder = changed(results(lambda told: told["results"]["sciences"].update({"acc,none": 0.1})))
    with pytest.raises(DataError, match=r"the tool's value is 0.1, but the mean .* by size and .* by task"):
        read(folder).find("sciences", "acc")
    with pytest.raises(ConfigError, match="has no metric 'acc_norm'"):
        read(folder).find("sciences", "acc_norm")


def test_one_file_of_samples_is_judged_by_any_metric_and_what_it_does_not_tell_is_named(tmp_path: Path):
    files = [Path(shutil.copy(next(side.rglob("samples_arc_easy_*.jsonl")), tmp_path)) for side in (OLD, NEW)]
    found = judge(*files)
    assert found.gates.keys() == {"arc_easy: acc", "arc_easy: acc_norm"}
    assert "not checked, because the files do not tell: task version, metric definition" in found.text
    assert "whether the runs are complete" in found.text
    for file in files:
        edit_json(file, lambda rows: [{**row, "metrics": ["pass@1"], "pass@1": row["acc"]} for row in rows])
    found = judge(*files).gates["arc_easy: pass@1"]
    assert found["value"] == judge(OLD, NEW, "--task=arc_easy").gates["arc_easy: acc"]["value"]


def test_rows_of_one_side_are_left_out_where_that_is_asked_for_and_counted(changed):
    folder = changed(samples("arc_easy", lambda rows: rows[1:]))
    found = judge(OLD, folder, "--task=arc_easy", "--metric=acc", "--missing=drop")
    assert found.gates["arc_easy: acc"]["n"] == 5
    assert found.gates["arc_easy: acc"]["comparison"]["notes"][0] == "1 row that only one side has: left out"


def with_arc_of(day: str) -> Change:
    name = f"samples_arc_easy_{day}T00-00-00.000000.jsonl"
    return lambda folder: shutil.copy(next(folder.glob("samples_arc*")), folder / name)


def test_the_newest_of_several_runs_of_a_model_is_judged_and_it_must_hold_the_same_tasks(changed):
    found = judge(OLD, folder := changed(with_arc_of("2026-01-01")), "--task=arc_easy", "--metric=acc")
    assert found.code == 0
    assert "2 runs of one model; the newest is judged" in found.text
    with_arc_of("2099-01-01")(next(folder.iterdir()))
    found = judge(OLD, folder)
    assert (found.code, found.gates) == (3, {})
    assert "2099-01-01T00-00-00.000000 (1 tasks)" in found.text


@pytest.mark.parametrize("side", [NEW, DATA / "lighteval" / "new"], ids=["lm_eval", "lighteval"])
def test_rows_of_an_old_run_are_not_judged_for_a_newer_run_that_kept_none(side: Path, tmp_path: Path):
    old, folder = (copied(each, tmp_path / each.name) for each in (side.with_name("old"), side))
    averages = next(folder.rglob("results_*.json"))
    shutil.copy(averages, averages.with_name("results_2000-01-01T00-00-00.000000.json"))
    assert judge(old, folder).gates
    shutil.copy(averages, averages.with_name("results_2099-01-01T00-00-00.000000.json"))
    found = judge(old, folder)
    assert (found.code, found.gates) == (3, {})
    assert "results_2099-01-01T00-00-00.000000.json: a run without rows, newer than all runs with rows" in found.text


WITH_ERROR = {"gsm8k": GSM8K, "arc_easy": "arc_easy: acc"}
DAMAGED: dict[str, tuple[Change, str]] = {
    "another version": (results(lambda r: r["versions"].update(arc_easy=2.0)), "task version (1.0 in OLD, 2.0 in NEW)"),
    "no examples": (results(lambda r: r["n-shot"].update(arc_easy=0)), "fewshot seed (1234 in OLD, none in NEW)"),
    "another metric": (results(lambda r: r["configs"]["arc_easy"].update(process_results="def score(): ...")),
        "metric definition"),
    "another direction": (results(lambda r: r["higher_is_better"]["arc_easy"].update(acc=False)),
        "OLD says that higher is better, NEW lower"),
    "another value in the results": (results(lambda r: r["results"]["arc_easy"].update({"acc,none": 0.9})),
        "it is not a mean over rows"),
    "half of the tasks": (lambda folder: next(folder.glob("samples_gsm8k*")).unlink(), "no samples of gsm8k"),
    "half of the rows": (lambda folder: edit_json(next(folder.glob("samples_arc*")), lambda rows: rows[:3]),
        "rows were changed, moved or cut"),
    "fewer documents": (results(lambda r: r["n-samples"]["arc_easy"].update(effective=9)), "expected 9 documents"),
    "another target": (samples("arc_easy", first(target_hash="0" * 64)), "the prompts or targets of 1 of 6 rows"),
    "another document": (samples("arc_easy", first(doc_hash="0" * 64)), "1 rows of the same id have another document"),
    "rows cut": (samples("arc_easy", lambda rows: rows[:4]), "2 only in OLD (4, 5)"),
    "more rows": (samples("arc_easy", lambda rows: [*rows, {**rows[0], "doc_id": 99, "doc_hash": "x"}]),
        "1 only in NEW (99)"),
    "a score as text": (samples("arc_easy", first(acc="1.0")), "expected a finite number as score, got '1.0'"),
    "no score": (samples("arc_easy", first(acc=None)), "a failed request is not a wrong answer"),
    "a failed request": (samples("gsm8k", first(filtered_resps=[None])), "the model gave no response"),
    "a likelihood that is NaN": (samples("arc_easy", first(filtered_resps=[["nan", "False"]])), "likelihood is NaN"),
    "a corpus metric": (samples("arc_easy", each(acc=["a", "b"])), "a metric of the whole corpus"),
    "another filter": (samples("gsm8k", each(filter="mine")), "lacks gsm8k: exact_match,"),
    "a metric of another name": (samples("arc_easy", each(metrics=["mine"], mine=1.0)), "lacks arc_easy: acc"),
    "another tool's rows": (samples("arc_easy", lambda rows: [{"sample_id": 1}]), "missing required field `doc_id`"),
    "half a line": (lambda folder: [file.write_bytes(file.read_bytes()[:-99]) for file in folder.glob("samples_arc*")],
        "was the file cut?"),
    "deep JSON": (lambda folder: next(folder.glob("samples_arc*")).write_text('{"doc":' + "[" * 100_000),
        "nested too deeply"),
    "no text": (lambda folder: next(folder.glob("samples_arc*")).write_bytes(b"\xff\xfe\x00"), "not JSON"),
    "empty": (samples("arc_easy", lambda rows: []), "lacks arc_easy: acc"),
    "results of another tool": (results(lambda r: r.pop("configs") and None), "a file without configs"),
    "versions that are none": (results(lambda r: r.update(versions=None)), "not as lm eval logs have it"),
    "a value that is NaN": (results(lambda r: r["results"]["arc_easy"].update({"acc,none": float("nan")})),
        "the tool's value is nan"),
    "a list of results": (results(lambda r: [r]), "expected a JSON object, got list"),
    "a number that is too large": (samples("arc_easy", first(acc=10**400)),
        "expected a finite number as score, got 1000"),
    "requests of another version": (samples("arc_easy", each(arguments=[["Question", " yes"]])),
        "Expected `object`, got `array` - at `$.arguments`; was it edited, or written by another version of the tool?"),
    "no likelihood": (samples("arc_easy", first(filtered_resps=[[None, "False"]])), "is NaN or missing"),
    "a folder in place of the rows": (
        lambda folder: [(file.unlink(), file.mkdir()) for file in folder.glob("samples_arc*")],
        "cannot be read: Is a directory"),
    "two tools": (lambda folder: (folder / "details_gsm8k_0.parquet").touch(), "several tools, lm-eval and lighteval"),
    "only averages": (lambda folder: [file.unlink() for file in folder.glob("samples*")], "with --log_samples"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "says"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_run_is_an_error_and_no_verdict(changed, change: Change, says: str):
    found = judge(OLD, changed(change))
    assert found.code == 3
    assert says in found.text
    if found.gates:  # the other tasks are judged
        task = next(task for task in ("gsm8k", "arc_easy") if says in found.gates[WITH_ERROR[task]].get("message", ""))
        of_task = [gate for name, gate in found.gates.items() if name.startswith(task)]
        assert "error" in {gate["verdict"] for gate in of_task}


def test_a_byte_order_mark_of_windows_is_no_part_of_the_json(changed):
    def mark(folder: Path) -> None:
        for file in folder.rglob("*.json*"):
            file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())

    found, plain = judge(OLD, changed(mark)), judge(OLD, NEW)
    values = [
        {name: (gate["verdict"], gate.get("value")) for name, gate in each.gates.items()} for each in (found, plain)
    ]
    assert values[0] == values[1] != {}


def test_a_run_is_not_compared_with_itself_and_a_model_that_is_never_right_is_no_reference():
    found = judge(OLD, OLD)
    assert (found.code, found.gates) == (3, {})
    assert "expected the results of two runs" in found.text
    found = judge(OLD, NEW, "--metric=exact_match,strict-match", "--tolerance=0.05")
    assert found.code == 3
    assert "has the value 0: no candidate can be worse than that" in found.text
