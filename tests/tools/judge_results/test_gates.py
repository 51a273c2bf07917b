"""Results as models of lmgate.yaml: real sessions on files that the tools wrote, without torch."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from tests.end_to_end.projects import Outcome, Project, environment
from tests.tools.judge_results.judging import DATA, copied, edit_json, judge

GSM8K = {"metric": "exact_match", "variant": "flexible-extract", "dataset": "gsm8k"}
ARC = {"metric": "acc", "dataset": "arc_easy"}
AGAINST = {"model": "int8", "against": "fp16"}
# The old and the new side of each format, a folder or a file.
FORMATS = {
    name: (DATA / name / f"old{suffix}", DATA / name / f"new{suffix}")
    for name, suffix in {"lm_eval": "", "inspect": ".eval", "lighteval": "", "every_eval_ever": ""}.items()
}
SCIENCES = ("anatomy", "astronomy")
NAMES = {"id", "test", "marker", "model", "file", "line", "reproduce", "arguments", "cache", "cached", "seconds"}
"""What a verdict says of the gate rather than of the rows."""


def gated(folder: Path, *gates: Any, **models: Any) -> Project:
    """A project with results as models, and gates as pairs of a marker and its arguments."""
    entries = {name: {"results": given} for name, given in models.items()}
    listed = [{marker: arguments} for marker, arguments in gates]
    (folder / "lmgate.yaml").write_text(yaml.safe_dump({"models": entries, "gates": listed}))
    return Project(folder, "pytest")


def no_regression(tolerance: Any = "5%", **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "no_regression", {"model": "int8", "tolerance": tolerance, **arguments}


def session(project: Project, *arguments: str) -> tuple[Outcome, dict[str, Any]]:
    """Run a session, and return its verdicts by id."""
    report = project.folder / "report.json"
    report.unlink(missing_ok=True)
    outcome = project.run("--lmgate-report", "json:report.json", *arguments, torch_free=True)
    gates = json.loads(report.read_text())["gates"] if report.exists() else []
    return outcome, {gate["id"].partition("::")[2]: gate for gate in gates}


def lmgate(project: Project, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_lmgate.cli", *arguments],
        cwd=project.folder, capture_output=True, text=True, check=False, env=environment(),
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def grown(side: str, to: Path, times: int, wrong: int = 0) -> Path:
    """Copy a run of the harness with its rows so many times, of which the first `wrong` become wrong."""
    folder = next(copied(DATA / "lm_eval" / side, to).iterdir())
    results = next(folder.glob("results_*.json"))
    for file in folder.glob("samples_*.jsonl"):
        rows: list[Any] = [json.loads(line) for line in file.read_text().splitlines()]
        size = len({row["doc_id"] for row in rows})
        rows = [
            {**row, "doc_id": row["doc_id"] + copy * size, "doc_hash": f"{copy}{row['doc_hash'][1:]}{copy}"}
            for copy in range(times)
            for row in rows
        ]
        for row in rows:
            for metric in row["metrics"]:
                row[metric] = 0.0 if row["doc_id"] < wrong else row[metric]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        edit_json(results, lambda told, file=file, rows=rows: told_of(told, file.name.split("_2026")[0][8:], rows))
    return to


def told_of(told: dict[str, Any], task: str, rows: list[Any]) -> None:
    """Write what the harness tells of rows: their number, their hash and their averages."""
    told["n-samples"][task] = dict.fromkeys(("original", "effective"), len({row["doc_id"] for row in rows}))
    hashed = "".join(row["doc_hash"] + row["prompt_hash"] + row["target_hash"] for row in rows)
    told["task_hashes"][task] = hashlib.sha256(hashed.encode()).hexdigest()
    for row in rows:
        for metric in row["metrics"]:
            of_filter = [each[metric] for each in rows if each["filter"] == row["filter"]]
            told["results"][task][f"{metric},{row['filter']}"] = sum(of_filter) / len(of_filter)


def results_of(folder: Path) -> Path:
    return next(folder.rglob("results_*.json"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_gate_has_the_verdict_of_lmgate_judge_to_the_last_digit(name: str, tmp_path: Path):
    old, new = (copied(path, tmp_path / path.name) for path in FORMATS[name])
    theirs = judge(old, new).gates
    assert any(gate["verdict"] != "error" for gate in theirs.values())
    gates = []
    for identity in theirs:
        task, _, label = identity.rpartition(": ")
        gates.append(no_regression(metric=label if "," in label else f"{label},none", dataset=task, against="fp16"))
    _, ours = session(gated(tmp_path, *gates, int8=new.name, fp16=old.name))
    assert len(ours) == len(theirs)
    for gate, expected in zip(gates, theirs.values(), strict=True):
        arguments = gate[1]
        (found,) = [
            each
            for each in ours.values()
            if (each["metric"], each["dataset"]) == (arguments["metric"], arguments["dataset"])
        ]
        require_same(found, expected)


def require_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare all of two verdicts but the names and the address; of an error only that it is one."""
    if expected["verdict"] == "error":
        assert found["verdict"] == "error"
        return
    for name in expected.keys() - NAMES - {"metric", "fingerprint", "message"}:
        ours, theirs = found[name], expected[name]
        if name == "comparison" and theirs is not None:
            ours, theirs = ({**each, "against": ""} for each in (ours, theirs))
        assert ours == theirs, name


def by_task(told: dict[str, Any]) -> None:
    """Write the average of the group that the harness has with ``weight_by_size: false``."""
    told["results"]["sciences"]["acc,none"] = sum(told["results"][f"mmlu_{each}"]["acc,none"] for each in SCIENCES) / 2


@pytest.mark.parametrize("weights", ["size", "task"])
def test_a_group_of_tasks_is_one_gate_weighed_as_the_harness_does(weights: str, tmp_path: Path):
    old, new = (copied(path, tmp_path / path.name) for path in FORMATS["lm_eval"])
    if weights == "task":
        for folder in (old, new):
            edit_json(results_of(folder), by_task)
    theirs = judge(old, new, "--task=sciences", f"--group={weights}").gates["sciences: acc"]
    group = {"metric": "acc", "dataset": "sciences"}
    project = gated(
        tmp_path,
        no_regression(**group, against="fp16"),
        no_regression(**group),
        ("metric_min", {**group, "model": "int8", "limit": 0.1}),
        int8="out",
        fp16="old",
    )
    shutil.copytree(old, tmp_path / "out")
    session(project, "--lmgate-update")[0].expect(0)
    shutil.rmtree(tmp_path / "out")
    new.rename(tmp_path / "out")
    _, gates = session(project)
    by_model, by_baseline, by_limit = gates.values()
    require_same(by_model, theirs)
    assert theirs["comparison"]["notes"] == by_model["comparison"]["notes"]
    compared = theirs["comparison"].keys() - {"against", "notes"}
    assert {name: by_baseline["comparison"][name] for name in compared} == {
        name: theirs["comparison"][name] for name in compared
    }
    assert (by_limit["value"], by_limit["interval"]) == (theirs["value"], theirs["interval"])
    assert f"weights:{weights}" in by_limit["signature"]


def test_a_table_of_numbers_has_the_verdict_of_lmgate_judge(tmp_path: Path):
    for name, step in (("old", 0.0), ("new", 0.05)):
        lines = [f"{at},{at // 3},{(at * 37 % 101) / 50 + step:.3f}" for at in range(700)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,topic,loss", *lines]))
    columns = {"id": "id", "score": "loss", "cluster": "topic"}
    models = {name: {"path": f"{side}.csv", **columns} for name, side in (("int8", "new"), ("fp16", "old"))}
    gate = no_regression(metric="loss", dataset="table", against="fp16")
    _, ours = session(gated(tmp_path, gate, **models))
    sides = [tmp_path / "old.csv", tmp_path / "new.csv"]
    theirs = judge(*sides, "--id=id", "--score=loss", "--cluster=topic").gates["table: loss"]
    assert theirs["verdict"] == "inconclusive"
    assert theirs["comparison"]["clusters"] == 234
    require_same(next(iter(ours.values())), theirs)


def test_gates_pass_fail_and_are_inconclusive_by_their_rows(tmp_path: Path):
    models = {"fp16": grown("old", tmp_path / "old", 40), "int8": grown("old", tmp_path / "new", 40, wrong=12)}
    models["equal"] = grown("old", tmp_path / "equal", 40)
    project = gated(
        tmp_path,
        no_regression("2%", **GSM8K, **AGAINST),
        no_regression("2%", **GSM8K, model="equal", against="fp16"),
        no_regression("6%", **GSM8K, **AGAINST),
        ("metric_min", {**GSM8K, "model": "int8", "limit": 0.7, "confidence": 0.95}),
        ("metric_min", {**GSM8K, "model": "int8", "limit": 0.9}),
        **{name: folder.name for name, folder in models.items()},
    )
    outcome, gates = session(project)
    assert [gate["verdict"] for gate in gates.values()] == ["fail", "inconclusive", "pass", "fail", "pass"], (
        outcome.text
    )
    label = "no_regression:exact_match[int8-gsm8k-vs-fp16-variant:flexible-extract]"
    assert gates[label]["comparison"]["notes"][0].startswith("10 rows were right and now wrong, 0 the other way round")
    assert gates[label]["worst"][0]["prompt"].endswith("Answer:")
    outcome.expect(1).says("exact_match 0.791667", "degraded", label)


def test_the_baseline_takes_results_and_judges_what_comes_later(tmp_path: Path):
    grown("old", tmp_path / "out", 40)
    project = gated(tmp_path, no_regression("2%", **GSM8K), int8="out")
    session(project)[0].expect(1).says("no baseline")
    session(project, "--lmgate-update")[0].expect(0).says("1 new")
    entry = next(iter(json.loads((tmp_path / "lmgate-baseline.json").read_text())["gates"].values()))
    assert (entry["n"], len(entry["clusters"]), len(entry["outcomes"])) == (240, 240, 60)
    shutil.copy(tmp_path / "report.json", tmp_path / "old.json")
    outcome, gates = session(project)
    outcome.expect(0, passed=1).is_silent_on("elsewhere")
    assert next(iter(gates.values()))["comparison"]["reason"] == "both are the same measurement"

    shutil.rmtree(tmp_path / "out")
    grown("old", tmp_path / "out", 40, wrong=12)
    outcome, gates = session(project, "--lmgate-report=markdown:a.md", "--lmgate-report=html:a.html")
    outcome.expect(1, failed=1).says("baseline of", "accept", "--lmgate-update")
    gate = next(iter(gates.values()))
    assert (gate["verdict"], gate["value"]) == ("fail", 190 / 240)
    assert gate["comparison"]["degradation"] == pytest.approx(10 / 200)
    assert gate["worst"][0]["before"] == 1.0
    assert "no_regression:exact_match[int8-gsm8k-variant:flexible-extract]" in (tmp_path / "a.md").read_text()
    code, text = lmgate(project, "compare", "old.json", "report.json")
    assert (code, "1 fails now" in text) == (1, True), text
    session(project, "--lmgate-update", "--lmgate-history=runs")[0].expect(0).says("WORSE", "1 changed")
    session(project, "--lmgate-history=runs")[0].expect(0)
    code, text = lmgate(project, "history", "runs")
    assert (code, "no_regression:exact_match[int8-gsm8k" in text) == (0, True), text


TASKS_CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "task version": (lambda told: told["versions"].update(gsm8k=4.0), "task version"),
    "shots": (lambda told: told["n-shot"].update(gsm8k=2), "number of shots"),
    "seed": (lambda told: told["config"].update(fewshot_seed=5), "fewshot seed"),
    "metric": (lambda told: told["configs"]["gsm8k"].update(output_type="other"), "metric definition"),
    "filter": (lambda told: told["configs"]["gsm8k"]["filter_list"][1].update(filter=[]), "filter or solver"),
    "repeats": (lambda told: told["configs"]["gsm8k"].update(repeats=4), "repeats"),
}


@pytest.mark.parametrize("change", TASKS_CHANGES)
def test_another_measurement_is_an_error_against_a_model_and_the_baseline(change: str, tmp_path: Path):
    edit, words = TASKS_CHANGES[change]
    copied(FORMATS["lm_eval"][0], tmp_path / "old")
    copied(FORMATS["lm_eval"][1], tmp_path / "new")
    both = (no_regression(**GSM8K), no_regression(**GSM8K, against="fp16"))
    project = gated(tmp_path, *both, int8="new", fp16="old")
    session(project, "--lmgate-update")
    edit_json(results_of(tmp_path / "new"), edit)
    outcome, gates = session(project)
    outcome.expect(1)
    by_baseline, by_model = gates.values()
    assert {by_baseline["verdict"], by_model["verdict"]} == {"error"}
    assert f"{words} (" in by_model["message"]
    assert "'fp16'" in by_model["message"]
    shown = {"task version": "task_version:3.0", "number of shots": "shots:1"}.get(words, f"{words} differs (")
    assert shown in by_baseline["message"]
    assert "--lmgate-update" in by_baseline["message"]


ROW_CHANGES: dict[str, tuple[Callable[[list[Any]], Any], str, str]] = {
    "prompt": (lambda rows: rows[-1].update(prompt_hash="0" * 64), "the prompts or targets of 1 of 6 rows differ", ""),
    "settings": (
        lambda rows: [row["arguments"]["gen_args_0"]["arg_1"].update(temperature=1.0) for row in rows] and None,
        "generation settings (",
        "generation settings differs (",
    ),
    "missing": (lambda rows: rows[:-1], "the rows differ: 1 only in 'fp16'", ""),
    "nan": (lambda rows: rows[-1].update(exact_match=float("nan")), "not JSON", "not JSON"),
    "none": (lambda rows: rows[-1].update(exact_match=None), "expected a finite number", "expected a finite number"),
    "twice": (lambda rows: [*rows, rows[-1]], "is there twice", ""),
}


@pytest.mark.parametrize("change", ROW_CHANGES)
def test_other_rows_are_an_error_against_a_model_and_the_baseline(change: str, tmp_path: Path):
    edit, by_model, by_baseline = ROW_CHANGES[change]
    copied(FORMATS["lm_eval"][0], tmp_path / "old")
    copied(FORMATS["lm_eval"][1], tmp_path / "new")
    for side in ("old", "new"):  # without the hash, by which any change of the rows is found
        results_of(tmp_path / side).unlink()
    project = gated(tmp_path, no_regression(**GSM8K), no_regression(**GSM8K, against="fp16"), int8="new", fp16="old")
    outcome, _ = session(project, "--lmgate-update")
    outcome.says("not checked, as the files do not tell: task version")
    edit_json(next((tmp_path / "new").rglob("samples_gsm8k_*.jsonl")), edit)
    outcome, gates = session(project)
    outcome.expect(1)
    assert [gate["verdict"] for gate in gates.values()] == ["error", "error"]
    messages = [gate["message"] for gate in gates.values()]
    assert by_model in messages[1]
    assert (by_baseline or "the two sides used different data") in messages[0]


def test_results_that_lost_what_they_told_are_no_match_for_their_baseline(tmp_path: Path):
    copied(FORMATS["lm_eval"][1], tmp_path / "new")
    project = gated(tmp_path, no_regression(**GSM8K), int8="new")
    session(project, "--lmgate-update")[0].expect(0)
    results_of(tmp_path / "new").unlink()
    outcome, _ = session(project)
    outcome.expect(1).says("flexible-extract here, exact_match|filter:flexible-extract|task_version:3.0")


def test_changed_or_cut_rows_of_a_run_are_an_error(tmp_path: Path):
    file = next(copied(FORMATS["lm_eval"][1], tmp_path / "new").rglob("samples_gsm8k_*.jsonl"))
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    outcome, _ = session(gated(tmp_path, ("metric_min", {**GSM8K, "model": "int8", "limit": 0.1}), int8="new"))
    outcome.expect(1).says("rows were changed")
    file.write_text(file.read_text()[:-200])
    assert "was the file cut?" in session(Project(tmp_path, "pytest"))[0].text


WRONG = {
    "no file": ({"int8": "out/absent"}, {**GSM8K}, "out/absent: expected the results of lm-eval"),
    "no task": (
        {},
        {**GSM8K, "dataset": "gsm8"},
        "'gsm8' (did you mean 'gsm8k'?); it has arc_easy, gsm8k, mmlu_anatomy",
    ),
    "no metric": (
        {},
        {**GSM8K, "metric": "exact_mtch"},
        "has no metric 'exact_mtch' (did you mean 'exact_match'?); it has",
    ),
    "filters": (
        {},
        {"metric": "exact_match", "dataset": "gsm8k"},
        "several filters: expected one of strict-match, flexible-extract",
    ),
    "no filter": ({}, {**GSM8K, "variant": "strict"}, "has no filter 'strict' (did you mean 'strict-match'?); it has"),
    "columns": ({"int8": {"path": "rows.csv", "id": "id"}}, {**ARC}, "id: and score: under results:"),
    "no columns": ({"int8": "rows.csv"}, {**ARC}, "id: and score: under results:"),
    "direction": (
        {"int8": {"path": "rows.csv", "id": "id", "score": "beauty"}},
        {"metric": "beauty", "dataset": "table"},
        "neither the files nor its name tell which scores of 'beauty' are better",
    ),
    "text": ({"int8": {"path": "rows.csv", "id": "id", "score": "word"}}, {**ARC}, "expected a finite number"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_input_is_an_error_that_says_what_is_there(wrong: str, tmp_path: Path):
    models, arguments, message = WRONG[wrong]
    copied(FORMATS["lm_eval"][1], tmp_path / "new")
    (tmp_path / "rows.csv").write_text("id,beauty,word\n1,0.5,a\n2,0.25,b\n")
    project = gated(tmp_path, no_regression(**arguments), **{"int8": "new", **models})
    outcome, gates = session(project, "--lmgate-update")
    outcome.expect(1).says(message)
    assert [gate["verdict"] for gate in gates.values()] == ["error"]
    assert (wrong == "no file") == ("models.int8.results, or add" in lmgate(project, "doctor")[1])
    assert not (tmp_path / "lmgate-baseline.json").exists()
    code, text = lmgate(project, "check")
    if wrong != "direction":  # only a limit, or better:, says it
        assert (code, message in text) == (1, True), text
        assert "lmgate.yaml:" in text


REFUSED = {
    "ppl": (("ppl_max", {"model": "int8", "dataset": "gsm8k", "limit": 5}), "ppl runs a model, but 'int8' is results"),
    "kl": (
        ("kl_max", {"model": "int8", "reference": "fp16", "dataset": "gsm8k", "limit": 5}),
        "kl runs a model, but 'int8' is results",
    ),
    "exact": (no_regression(metric="exact", dataset="gsm8k"), "is written with its filter, as in 'exact,none'"),
    "settings": (no_regression(**GSM8K, max_new_tokens=5), "max_new_tokens: 'int8' is results, which are only read"),
    "against": (no_regression(**GSM8K, against="real"), "only 'int8' is results"),
    "itself": (no_regression(**GSM8K, against="again"), "against: it reads the same results"),
    "real": (
        no_regression(metric="exact", model="real", dataset="asked", against="int8"),
        "against: expected results on both sides or on none",
    ),
    "filter": (
        no_regression(metric="m", variant="v", model="real", dataset="asked"),
        "variant: only results have filters",
    ),
    "variant": (no_regression(metric="acc", variant=3, dataset="gsm8k"), "expected a name of their files, got int"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_needs_an_engine_is_refused_at_collection(wrong: str, tmp_path: Path):
    gate, message = REFUSED[wrong]
    project = gated(tmp_path, gate, int8=str(FORMATS["lm_eval"][1]), fp16=str(FORMATS["lm_eval"][0]))
    written = yaml.safe_load((tmp_path / "lmgate.yaml").read_text())
    written["models"] |= {"real": {"path": "checkpoint"}, "again": written["models"]["int8"]}
    written["datasets"] = {"asked": {"path": "rows.jsonl", "source": "a", "references": "b"}}
    (tmp_path / "lmgate.yaml").write_text(yaml.safe_dump(written))
    outcome, gates = session(project)
    outcome.expect(4).says(message, "lmgate.yaml:")
    assert not gates


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"results": "out", "dtype": "float16"}, "dtype: results: are only read"),
        ({"results": "out", "path": "models/int8"}, "path: results: are only read"),
        ({"results": {"path": "out", "ids": "a"}}, "models.int8.results.ids: unknown key (did you mean 'id'?)"),
        ({"results": {"id": "a"}}, "models.int8.results: path: it is required"),
        ({"results": {"path": "out", "better": "up"}}, "expected one of lower, higher"),
        ({"results": 3}, "results: expected a text"),
    ],
)
def test_a_wrong_entry_of_results_is_an_error(entry: Any, message: str, tmp_path: Path):
    (tmp_path / "lmgate.yaml").write_text(
        yaml.safe_dump({"models": {"int8": entry}, "gates": [dict([no_regression(**ARC)])]})
    )
    session(Project(tmp_path, "pytest"))[0].expect(4).says(message)


def test_the_gate_s_direction_must_be_the_metric_s(tmp_path: Path):
    (tmp_path / "rows.csv").write_text("id,wer,beauty\n" + "".join(f"{at},{at % 2},{at % 2}\n" for at in range(40)))
    tables = {name: {"path": "rows.csv", "id": "id", "score": name} for name in ("wer", "beauty")}
    gates = [
        ("metric_min", {"metric": "wer", "model": "wer", "dataset": "table", "limit": 0.1}),
        ("metric_max", {"metric": "wer", "model": "wer", "dataset": "table", "limit": 0.6}),
        ("metric_max", {"metric": "beauty", "model": "beauty", "dataset": "table", "limit": 0.6}),
        ("metric_min", {"metric": "beauty", "model": "rated", "dataset": "table", "limit": 0.6}),
    ]
    rated = {**tables["beauty"], "better": "lower"}
    outcome, found = session(gated(tmp_path, *gates, **tables, rated=rated))
    by_label = {name: (gate["verdict"], gate.get("message")) for name, gate in found.items()}
    assert by_label["metric_max:wer[wer-table]"][0] == "pass"
    assert by_label["metric_max:beauty[beauty-table]"][0] == "pass"
    assert "lower values of 'wer' are better: use metric_max" in by_label["metric_min:wer[wer-table]"][1]
    assert "lower values of 'beauty' are better: use metric_max" in by_label["metric_min:beauty[rated-table]"][1]
    outcome.expect(1)


@pytest.mark.parametrize(("marker", "limit"), [("metric_min", 0), ("metric_min", 55), ("metric_max", 1)])
def test_a_limit_that_every_share_passes_or_none_is_an_error(marker: str, limit: float, tmp_path: Path):
    metric = "acc" if marker == "metric_min" else "wer"
    (tmp_path / "rows.csv").write_text(f"id,{metric}\n" + "".join(f"{at},{at % 2}\n" for at in range(40)))
    table = {"path": "rows.csv", "id": "id", "score": metric}
    gate = (marker, {"metric": metric, "model": "int8", "dataset": "table", "limit": limit})
    session(gated(tmp_path, gate, int8=table))[0].expect(1).says(f"limit: {metric} is a share of rows, from 0 to 1")


def test_markers_and_the_fixture_in_python_read_results_too(tmp_path: Path):
    project = gated(tmp_path, int8=str(FORMATS["lm_eval"][1]), fp16=str(FORMATS["lm_eval"][0]))
    settings = (tmp_path / "lmgate.yaml").read_text().replace("gates: []\n", "")
    (tmp_path / "lmgate.yaml").write_text(settings)
    project.write(
        test_quality="""
            import pytest

            @pytest.mark.no_regression("exact_match", "int8", "gsm8k", "50%", variant="flexible-extract",
                                        against="fp16")
            @pytest.mark.metric_min("acc", model="int8", dataset="arc_easy", limit=0.5)
            def test_int8(metric_of):
                score = metric_of("exact_match", "int8", "gsm8k", variant="flexible-extract")
                assert (score, score.n, score.unit) == (0.5, 6, "row")
                assert "filter:flexible-extract" in score.signature

            def test_bleu(bleu_of):
                with pytest.raises(Exception, match="bleu runs a model, but 'int8' is results"):
                    bleu_of("int8", "gsm8k")
        """
    )
    outcome, gates = session(project)
    outcome.expect(0, passed=2)
    assert set(gates) == {
        "test_int8::no_regression:exact_match[int8-gsm8k-vs-fp16-variant:flexible-extract]",
        "test_int8::metric_min:acc[int8-arc_easy]",
    }


def test_the_address_is_the_content_of_the_files(tmp_path: Path):
    folder = copied(FORMATS["lm_eval"][1], tmp_path / "new")
    project = gated(tmp_path, ("metric_min", {**ARC, "model": "int8", "limit": 0.1}), int8="new")

    def address() -> str:
        outcome, gates = session(project)
        outcome.expect(0)
        return str(next(iter(gates.values()))["fingerprint"])

    first = address()
    assert address() == first
    folder.rename(tmp_path / "moved")
    project.change("new", "moved")
    assert address() == first
    file = next((tmp_path / "moved").rglob("samples_arc_easy_*.jsonl"))
    edit_json(file, lambda rows: rows[0].update(resps=[["another", "False"]]))
    assert address() not in (first, "")


def test_a_session_imports_neither_torch_nor_transformers(tmp_path: Path):
    models = {"int8": str(FORMATS["lm_eval"][1]), "fp16": str(FORMATS["lm_eval"][0])}
    project = gated(tmp_path, no_regression(**ARC), no_regression("50%", **ARC, against="fp16"), **models)
    project.write(
        conftest="""
            import sys

            def pytest_unconfigure(config):
                heavy = sorted({"torch", "transformers", "datasets", "pyarrow"} & set(sys.modules))
                print(f"imported: {heavy}")
        """
    )
    for arguments in (("--lmgate-update",), ("-s",), ("--lmgate-plan",)):
        project.run("-s", *arguments, fresh=True).expect(0).says("imported: []")


def test_the_plan_reads_results_and_lmgate_check_finds_nothing_wrong(tmp_path: Path):
    models = {"int8": str(FORMATS["lm_eval"][1]), "fp16": str(FORMATS["lm_eval"][0])}
    project = gated(tmp_path, no_regression(**ARC, against="fp16"), **models)
    outcome = project.run("--lmgate-plan", torch_free=True).expect(0)
    outcome.says("read  acc: int8 on arc_easy", "2 read from results, 0 begun, 0 to be made")
    assert lmgate(project, "check")[0] == 0
    code, text = lmgate(project, "calibrate", "no_regression:acc[int8-arc_easy-vs-fp16]")
    assert (code != 0, "it needs a model to run again" in text) == (True, True)
    schema = json.loads(CliRunner().invoke(app, ["schema"]).stdout)
    assert {"required": ["results"]} in schema["$defs"]["ModelSpec"]["anyOf"]


def test_workers_of_xdist_have_the_verdicts_of_one_process(tmp_path: Path):
    models = {"int8": str(FORMATS["lm_eval"][1]), "fp16": str(FORMATS["lm_eval"][0])}
    gates = [no_regression("50%", **each, against="fp16") for each in (ARC, GSM8K)]
    project = gated(tmp_path, *gates, ("metric_min", {**ARC, "model": "int8", "limit": 0.9}), **models)
    outcomes = [session(project, *arguments) for arguments in ((), ("-n2",))]
    verdicts = [{name: (gate["verdict"], gate["fingerprint"]) for name, gate in gates.items()} for _, gates in outcomes]
    assert verdicts[0] == verdicts[1]
    assert [outcome.code for outcome, _ in outcomes] == [1, 1]


def test_rows_in_another_order_are_the_same_measurement(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    rows = [{"id": f"q{at}", "correct": at % 3 > 0} for at in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = {"path": "rows.jsonl", "id": "id", "score": "correct"}
    project = gated(tmp_path, no_regression("20%", metric="correct", dataset="table"), int8=table)
    session(project, "--lmgate-update")[0].expect(0)
    file.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    session(project)[0].expect(0)


def test_scores_between_right_and_wrong_and_those_without_have_one_baseline(tmp_path: Path):
    file, table = tmp_path / "rows.csv", {"path": "rows.csv", "id": "id", "score": "f1"}
    project = gated(tmp_path, no_regression("20%", metric="f1", dataset="table"), int8=table)
    for first, second in (("0.9", "1.0"), ("1.0", "0.9")):
        file.write_text("id,f1\n" + "".join(f"{at},{first}\n" for at in range(40)))
        session(project, "--lmgate-update")[0].expect(0)
        file.write_text("id,f1\n" + "".join(f"{at},{second}\n" for at in range(40)))
        _, gates = session(project)
        assert next(iter(gates.values()))["comparison"]["change"] == pytest.approx(
            float(second) - float(first), abs=0.02
        )
