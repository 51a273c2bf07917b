"""Results as models of lmgate.yaml: real sessions on files that the tools wrote, without torch."""

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.settings.file import load_project
from tests.end_to_end.projects import Outcome, Project
from tests.tools.judge_results.judging import DATA, copied, edit_json, judge, table

GSM8K = {"metric": "exact_match", "variant": "flexible-extract", "dataset": "gsm8k"}
ARC = {"metric": "acc", "dataset": "arc_easy"}
CORRECT = {"metric": "correct", "dataset": "table"}
# The old and the new side of each format, a folder or a file.
FORMATS = {
    name: (DATA / name / f"old{suffix}", DATA / name / f"new{suffix}")
    for name, suffix in {"lm_eval": "", "inspect": ".eval", "lighteval": "", "every_eval_ever": ""}.items()
}
LM_EVAL = {"int8": str(FORMATS["lm_eval"][1]), "fp16": str(FORMATS["lm_eval"][0])}
SCIENCES = ("anatomy", "astronomy")
NAMES = {"id", "test", "marker", "model", "file", "line", "reproduce", "arguments", "cache", "cached", "seconds"}
"""What a verdict says of the gate rather than of the rows."""


def gated(folder: Path, *gates: Any, **models: Any) -> Project:
    """A project with results as models, and gates as pairs of a marker and its arguments."""
    written: dict[str, Any] = {"models": {name: {"results": given} for name, given in models.items()}}
    if gates:
        written["gates"] = [{marker: arguments} for marker, arguments in gates]
    (folder / "lmgate.yaml").write_text(yaml.safe_dump(written))
    return Project(folder, "pytest")


def no_regression(tolerance: Any = "5%", **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "no_regression", {"model": "int8", "tolerance": tolerance, **arguments}


def scored(file: str, column: str = "correct", **more: str) -> dict[str, str]:
    """The entry of a table as a model."""
    return {"path": file, "id": "id", "score": column, **more}


def session(project: Project, *arguments: str) -> tuple[Outcome, dict[str, Any]]:
    """Run a session, and return its verdicts by id."""
    report = project.folder / "report.json"
    report.unlink(missing_ok=True)
    outcome = project.run("--lmgate-report", "json:report.json", *arguments, torch_free=True)
    gates = json.loads(report.read_text())["gates"] if report.exists() else []
    return outcome, {gate["id"].partition("::")[2]: gate for gate in gates}


def lmgate(project: Project, *arguments: str) -> tuple[int, str]:
    with contextlib.chdir(project.folder):
        done = CliRunner().invoke(app, arguments)
    return done.exit_code, f"{done.output}{done.exception}"


def outcomes(wrong: int = 0) -> list[int]:
    """Return scores of 240 rows, of which five of six are right, but for the first `wrong`."""
    return [int(at % 6 > 0 and at >= wrong) for at in range(240)]


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
    by_name = {(each["metric"], each["dataset"]): each for each in ours.values()}
    assert len(by_name) == len(ours) == len(theirs)
    for (_, arguments), expected in zip(gates, theirs.values(), strict=True):
        require_same(by_name[arguments["metric"], arguments["dataset"]], expected)


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
    session(project, "--lmgate-update", "-k", "not fp16")[0].expect(0)
    shutil.rmtree(tmp_path / "out")
    new.rename(tmp_path / "out")
    _, gates = session(project)
    by_model, by_baseline, by_limit = gates.values()
    require_same(by_model, theirs)
    assert theirs["comparison"]["notes"] == by_model["comparison"]["notes"]
    for name in theirs["comparison"].keys() - {"against", "notes"}:
        assert by_baseline["comparison"][name] == theirs["comparison"][name], name
    assert (by_limit["value"], by_limit["interval"]) == (theirs["value"], theirs["interval"])
    assert f"weights:{weights}" in by_limit["signature"]


def test_a_table_of_numbers_has_the_verdict_of_lmgate_judge(tmp_path: Path):
    topics = [at // 3 for at in range(700)]
    sides = [
        table(tmp_path / f"{name}.csv", [(at * 37 % 101) / 50 + step for at in range(700)], "loss", topic=topics)
        for name, step in (("old", 0.0), ("new", 0.05))
    ]
    models = {name: scored(f"{side}.csv", "loss", cluster="topic") for name, side in (("int8", "new"), ("fp16", "old"))}
    _, ours = session(gated(tmp_path, no_regression(metric="loss", dataset="table", against="fp16"), **models))
    theirs = judge(*sides, "--id=id", "--score=loss", "--cluster=topic").gates["table: loss"]
    assert (theirs["verdict"], theirs["comparison"]["clusters"]) == ("inconclusive", 234)
    require_same(next(iter(ours.values())), theirs)


def test_gates_pass_fail_and_are_inconclusive_by_their_rows(tmp_path: Path):
    for name, wrong in (("old", 0), ("equal", 0), ("new", 12)):
        table(tmp_path / f"{name}.csv", outcomes(wrong), "correct", prompt=[f"{at}?" for at in range(240)])
    models = {"fp16": "old", "equal": "equal", "int8": "new"}
    project = gated(
        tmp_path,
        no_regression("2%", **CORRECT, against="fp16"),
        no_regression("2%", **CORRECT, against="fp16", model="equal"),
        no_regression("6%", **CORRECT, against="fp16"),
        ("metric_min", {**CORRECT, "model": "int8", "limit": 0.7, "confidence": 0.95}),
        ("metric_min", {**CORRECT, "model": "int8", "limit": 0.9}),
        **{name: scored(f"{side}.csv") for name, side in models.items()},
    )
    outcome, gates = session(project)
    verdicts = [gate["verdict"] for gate in gates.values()]
    assert verdicts == ["fail", "inconclusive", "pass", "fail", "pass"], outcome.text
    label = "no_regression:correct[int8-table-vs-fp16]"
    assert gates[label]["comparison"]["notes"][0].startswith("10 rows were right and now wrong, 0 the other way round")
    assert gates[label]["worst"][0]["prompt"].endswith("?")
    outcome.expect(1).says("correct 0.791667", "degraded", label)


def test_the_baseline_takes_results_and_judges_what_comes_later(tmp_path: Path):
    rows = table(tmp_path / "rows.jsonl", outcomes(), "correct")
    project = gated(tmp_path, no_regression("2%", **CORRECT), int8=scored("rows.jsonl"))
    session(project)[0].expect(1).says("no baseline")
    session(project, "--lmgate-update")[0].expect(0).says("1 new")
    entry = next(iter(json.loads((tmp_path / "lmgate-baseline.json").read_text())["gates"].values()))
    assert (entry["n"], len(entry["clusters"]), len(entry["outcomes"])) == (240, 240, 60)
    shutil.copy(tmp_path / "report.json", tmp_path / "old.json")
    outcome, gates = session(project)
    outcome.expect(0, passed=1).is_silent_on("elsewhere")
    assert next(iter(gates.values()))["comparison"]["reason"] == "both are the same measurement"

    edit_json(table(rows, outcomes(12), "correct"), lambda rows: rows[::-1])  # rows are matched by their ids
    outcome, gates = session(project, "--lmgate-report=markdown:a.md", "--lmgate-report=html:a.html")
    outcome.expect(1, failed=1).says("baseline of", "accept", "--lmgate-update")
    ((label, gate),) = gates.items()
    assert (gate["verdict"], gate["value"]) == ("fail", 190 / 240)
    assert gate["comparison"]["degradation"] == pytest.approx(10 / 200)
    assert gate["worst"][0]["before"] == 1.0
    assert label in (tmp_path / "a.md").read_text()
    code, text = lmgate(project, "compare", "old.json", "report.json")
    assert (code, "1 fails now" in text) == (1, True), text
    session(project, "--lmgate-update", "--lmgate-history=runs")[0].expect(0).says("WORSE", "1 changed")
    session(project, "--lmgate-history=runs")[0].expect(0)
    code, text = lmgate(project, "history", "runs")
    assert (code, label in text) == (0, True), text


@pytest.mark.parametrize(("column", "before", "after"), [("correct", 1, 60), ("wer", 100, 1.1)])
def test_percent_beside_a_baseline_of_shares_or_the_reverse_is_an_error(
    column: str, before: Any, after: Any, tmp_path: Path
):
    project = gated(tmp_path, no_regression("2%", metric=column, dataset="table"), int8=scored("rows.csv", column))
    for factor, code in ((before, 0), (after, 1)):
        table(tmp_path / "rows.csv", [factor * right for right in outcomes()], column)
        outcome, _ = session(project, *["--lmgate-update"] * (code == 0))
        outcome.expect(code)
    outcome.says("written as percent", "update the baseline with --lmgate-update")


ANOTHER_RUN: dict[str, tuple[Callable[[dict[str, Any]], Any], str, str]] = {
    "version": (lambda told: told["versions"].update(gsm8k=4.0), "task version (", "task_version:3.0"),
    "shots": (lambda told: told["n-shot"].update(gsm8k=2), "number of shots (", "shots:1"),
    "seed": (lambda told: told["config"].update(fewshot_seed=5), "fewshot seed (", "fewshot seed differs ("),
    "metric": (lambda told: told["configs"]["gsm8k"].update(output_type="other"), "metric definition (",
               "metric definition differs ("),
    "filter": (lambda told: told["configs"]["gsm8k"]["filter_list"][1].update(filter=[]), "filter or solver (",
               "filter or solver differs ("),
    "repeats": (lambda told: told["configs"]["gsm8k"].update(repeats=4), "repeats (", "repeats differs ("),
}  # fmt: skip
OTHER_DATA = "the two sides used different data"
OTHER_ROWS: dict[str, tuple[Callable[[list[Any]], Any], str, str]] = {
    "prompt": (lambda rows: rows[-1].update(prompt_hash="0" * 64), "the prompts or targets of 1 of 6 rows", OTHER_DATA),
    "settings": (
        lambda rows: [row["arguments"]["gen_args_0"]["arg_1"].update(temperature=1.0) for row in rows] and None,
        "generation settings (", "generation settings differs (",
    ),
    "missing": (lambda rows: rows[:-1], "the rows differ: 1 only in 'bare'", OTHER_DATA),
    "nan": (lambda rows: rows[-1].update(exact_match=float("nan")), "got NaN or Infinity", "got NaN or Infinity"),
    "none": (lambda rows: rows[-1].update(exact_match=None), "expected a finite number", "expected a finite number"),
    "twice": (lambda rows: [*rows, rows[-1]], "is there twice", OTHER_DATA),
}  # fmt: skip


@pytest.fixture(scope="module")
def after_changes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, dict[str, Any]]:
    """The verdicts on a run for each change, against another run and the baseline that was written before it."""
    folder = tmp_path_factory.mktemp("changed")
    runs = {
        "fp16": copied(FORMATS["lm_eval"][0], folder / "fp16"),
        "bare": copied(FORMATS["lm_eval"][0], folder / "bare"),
    }
    runs |= {name: copied(FORMATS["lm_eval"][1], folder / name) for name in (*ANOTHER_RUN, *OTHER_ROWS, "untold")}
    for name in ("bare", *OTHER_ROWS):  # without the hash, by which any change of the rows is found
        results_of(runs[name]).unlink()
    gates = [no_regression(**GSM8K, model=name) for name in runs]
    gates += [no_regression(**GSM8K, model=name, against="fp16") for name in ANOTHER_RUN]
    gates += [no_regression(**GSM8K, model=name, against="bare") for name in OTHER_ROWS]
    project = gated(folder, *gates, **{name: run.name for name, run in runs.items()})
    session(project, "--lmgate-update")[0].says("not checked, as the files do not tell: task version")
    for name, (edit, *_) in ANOTHER_RUN.items():
        edit_json(results_of(runs[name]), edit)
    for name, (change, *_) in OTHER_ROWS.items():
        edit_json(next(runs[name].rglob("samples_gsm8k_*.jsonl")), change)
    results_of(runs["untold"]).unlink()
    return session(project)


@pytest.mark.parametrize("change", [*ANOTHER_RUN, *OTHER_ROWS])
def test_another_measurement_or_other_rows_are_an_error_against_a_model_or_the_baseline(
    change: str, after_changes: Any
):
    outcome, gates = after_changes
    outcome.expect(1)
    _, by_model, by_baseline = {**ANOTHER_RUN, **OTHER_ROWS}[change]
    against = "fp16" if change in ANOTHER_RUN else "bare"
    for side, said in ((f"-vs-{against}", by_model), ("", by_baseline)):
        gate = gates[f"no_regression:exact_match[{change}-gsm8k{side}-variant:flexible-extract]"]
        assert gate["verdict"] == "error"
        assert said in gate["message"]


def test_results_that_lost_what_they_told_are_no_match_for_their_baseline(after_changes: Any):
    gate = after_changes[1]["no_regression:exact_match[untold-gsm8k-variant:flexible-extract]"]
    assert gate["verdict"] == "error"
    assert "flexible-extract here, exact_match|filter:flexible-extract|task_version:3.0" in gate["message"]
    assert "--lmgate-update" in gate["message"]


WRONG: dict[str, tuple[Any, dict[str, str], str]] = {
    "no_file": ("out/absent", GSM8K, "out/absent: expected the results of lm-eval"),
    "no_task": ("new", {**GSM8K, "dataset": "gsm8"}, "'gsm8' (did you mean 'gsm8k'?); it has arc_easy, gsm8k"),
    "no_metric": ("new", {**GSM8K, "metric": "exact_mtch"}, "no metric 'exact_mtch' (did you mean 'exact_match'?)"),
    "filters": ("new", {"metric": "exact_match", "dataset": "gsm8k"},
                "several filters: expected one of strict-match, flexible-extract"),
    "no_filter": ("new", {**GSM8K, "variant": "strict"}, "no filter 'strict' (did you mean 'strict-match'?); it has"),
    "columns": ({"path": "rows.csv", "id": "id"}, ARC, "id: and score: under results:"),
    "no_columns": ("rows.csv", ARC, "id: and score: under results:"),
    "direction": (scored("rows.csv", "beauty"), {"metric": "beauty", "dataset": "table"},
                  "neither the files nor its name tell which scores of 'beauty' are better"),
    "text": (scored("rows.csv", "word"), ARC, "expected a finite number"),
}  # fmt: skip


def test_a_wrong_input_is_an_error_that_says_what_is_there(tmp_path: Path):
    copied(FORMATS["lm_eval"][1], tmp_path / "new")
    (tmp_path / "rows.csv").write_text("id,beauty,word\n1,0.5,a\n2,0.25,b\n")
    gates = [no_regression(**arguments, model=name) for name, (_, arguments, _) in WRONG.items()]
    project = gated(tmp_path, *gates, **{name: results for name, (results, *_) in WRONG.items()})
    outcome, found = session(project, "--lmgate-update")
    outcome.expect(1)
    assert not (tmp_path / "lmgate-baseline.json").exists()
    code, text = lmgate(project, "check")
    assert (code, "lmgate.yaml:" in text) == (1, True), text
    by_model = {gate["model"]: gate for gate in found.values()}
    for name, (_, _, message) in WRONG.items():
        assert by_model[name]["verdict"] == "error"
        assert message in by_model[name]["message"]
        assert message in text or name == "direction"  # only a limit, or better:, says it
    text = lmgate(project, "doctor")[1]
    assert "models.no_file.results, or add" in text
    assert text.count(".results, or add") == 1


REFUSED = (
    (("ppl_max", {"model": "int8", "dataset": "gsm8k", "limit": 5}), "ppl runs a model, but 'int8' is results"),
    (("kl_max", {"model": "int8", "reference": "fp16", "dataset": "gsm8k", "limit": 5}),
     "kl runs a model, but 'int8' is results"),
    (no_regression(metric="exact", dataset="gsm8k"), "is written with its filter, as in 'exact,none'"),
    (no_regression(**GSM8K, max_new_tokens=5), "max_new_tokens: 'int8' is results, which are only read"),
    (no_regression(**GSM8K, against="real"), "only 'int8' is results"),
    (no_regression(**GSM8K, against="again"), "against: it reads the same results"),
    (no_regression(metric="exact", model="real", dataset="asked", against="int8"),
     "against: expected results on both sides or on none"),
    (no_regression(metric="m", variant="v", model="real", dataset="asked"), "variant: only results have filters"),
    (no_regression(metric="acc", variant=3, dataset="gsm8k"), "expected a name of their files, got int"),
)  # fmt: skip


def test_what_needs_an_engine_is_refused_at_collection(tmp_path: Path):
    gated(tmp_path, *(gate for gate, _ in REFUSED), **LM_EVAL, again=LM_EVAL["int8"])
    written = yaml.safe_load((tmp_path / "lmgate.yaml").read_text())
    written["models"]["real"] = {"path": "checkpoint"}
    written["datasets"] = {"asked": {"path": "rows.jsonl", "source": "a", "references": "b"}}
    (tmp_path / "lmgate.yaml").write_text(yaml.safe_dump(written))
    outcome, gates = session(Project(tmp_path, "pytest"))
    assert not gates
    said = outcome.expect(4).text.splitlines()
    for at, (_, message) in enumerate(REFUSED):
        assert any(f"gates[{at}]." in line and "lmgate.yaml:" in line and message in line for line in said), message


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"results": "out", "dtype": "float16"}, "dtype: results: are only read"),
        ({"results": "out", "path": "models/int8"}, "path: results: are only read"),
        ({"results": {"path": "out", "ids": "a"}}, "models.int8.results.ids: unknown key (did you mean 'id'?)"),
        ({"results": {"id": "a"}}, "models.int8.results: path: it is required"),
        ({"results": {"path": "out", "better": "up"}}, "models.int8.results.better: expected one of lower, higher"),
        ({"results": 3}, "results: expected a text"),
    ],
)
def test_a_wrong_entry_of_results_is_an_error(entry: Any, message: str, tmp_path: Path):
    (tmp_path / "lmgate.yaml").write_text(yaml.safe_dump({"models": {"int8": entry}}))
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_project(tmp_path)


SHARE = "is a share of rows, from 0 to 1"
LIMITS = (
    ("metric_min", "wer", 0.1, "lower values of 'wer' are better: use metric_max"),
    ("metric_max", "wer", 0.6, ""),
    ("metric_max", "beauty", 0.6, ""),
    ("metric_min", "rated", 0.6, "lower values of 'beauty' are better: use metric_max"),
    ("metric_min", "acc", 0, SHARE),
    ("metric_min", "acc", 55, SHARE),
    ("metric_max", "wer", 1, SHARE),
)


def test_a_limit_needs_the_metric_s_direction_and_one_that_every_share_passes_or_none_is_an_error(tmp_path: Path):
    half = [at % 2 for at in range(40)]
    table(tmp_path / "rows.csv", half, "wer", beauty=half, acc=half)
    models = {name: scored("rows.csv", name) for name in ("wer", "beauty", "acc")}
    models["rated"] = scored("rows.csv", "beauty", better="lower")
    gates = [
        (marker, {"metric": models[model]["score"], "model": model, "dataset": "table", "limit": limit})
        for marker, model, limit, _ in LIMITS
    ]
    outcome, found = session(gated(tmp_path, *gates, **models))
    outcome.expect(1)
    in_order = sorted(found.values(), key=lambda gate: int(gate["line"]))
    for gate, (*_, said) in zip(in_order, LIMITS, strict=True):
        assert gate["verdict"] == ("error" if said else "pass")
        assert said in gate.get("message", "")


def test_markers_and_the_fixture_in_python_read_results_too(tmp_path: Path):
    project = gated(tmp_path, **LM_EVAL).write(
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


def test_a_session_and_its_plan_import_neither_torch_nor_transformers_and_check_finds_nothing_wrong(tmp_path: Path):
    project = gated(tmp_path, no_regression(**ARC), no_regression("50%", **ARC, against="fp16"), **LM_EVAL)
    project.write(
        conftest="""
            import sys

            def pytest_unconfigure(config):
                heavy = sorted({"torch", "transformers", "datasets", "pyarrow"} & set(sys.modules))
                print(f"imported: {heavy}")
        """
    )
    project.run("-s", "--lmgate-update", fresh=True).expect(0).says("imported: []")
    outcome = project.run("-s", "--lmgate-plan", torch_free=True).expect(0).says("imported: []")
    outcome.says("read  acc: int8 on arc_easy", "2 read from results, 0 begun, 0 to be made")
    assert lmgate(project, "check")[0] == 0
    code, text = lmgate(project, "calibrate", "no_regression:acc[int8-arc_easy-vs-fp16]")
    assert (code != 0, "it needs a model to run again" in text) == (True, True)
    schema = json.loads(CliRunner().invoke(app, ["schema"]).stdout)
    assert {"required": ["results"]} in schema["$defs"]["ModelSpec"]["anyOf"]


def test_workers_of_xdist_have_the_verdicts_of_one_process(tmp_path: Path):
    gates = [no_regression("50%", **each, against="fp16") for each in (ARC, GSM8K)]
    project = gated(tmp_path, *gates, ("metric_min", {**ARC, "model": "int8", "limit": 0.9}), **LM_EVAL)
    sessions = [session(project, *arguments) for arguments in ((), ("-n2",))]
    verdicts = [{name: (gate["verdict"], gate["fingerprint"]) for name, gate in gates.items()} for _, gates in sessions]
    assert verdicts[0] == verdicts[1]
    assert [outcome.code for outcome, _ in sessions] == [1, 1]


def test_scores_between_right_and_wrong_and_those_without_have_one_baseline(tmp_path: Path):
    project = gated(tmp_path, no_regression("20%", metric="f1", dataset="table"), int8=scored("rows.csv", "f1"))
    for first, second in ((0.9, 1.0), (1.0, 0.9)):
        table(tmp_path / "rows.csv", [first] * 40, "f1")
        session(project, "--lmgate-update")[0].expect(0)
        table(tmp_path / "rows.csv", [second] * 40, "f1")
        (gate,) = session(project)[1].values()
        assert gate["comparison"]["change"] == pytest.approx(second - first, abs=0.02)
