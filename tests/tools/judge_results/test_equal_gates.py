"""The verdict on what the harness writes is that of our own gates on the same model and rows, to the last digit."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from tests.end_to_end.projects import Project, environment
from tests.models.tiny import made_once
from tests.tools.judge_results.judging import judge
from tests.tools.tasks.comparing import run_module
from tests.warm import warm_python

TASKS = ("arc_easy", "mmlu_anatomy")
NUMBERS = ("decision", "candidate", "reference", "change", "degradation", "lower", "upper", "p_pass", "p_fail",
           "detectable", "needed", "n", "clusters", "bounds")  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of two runs of the harness, on a model and a damaged copy, with the models and the tasks."""

    def run(folder: Path) -> None:
        python = warm_python(environment(), "torch")
        run_module("tests.tools.judge_results.write_lm_eval", folder, "16", python=python)
        for file in (folder / "tasks").rglob("*.yaml"):  # the folder is renamed when it is whole
            file.write_text(file.read_text().replace(str(folder), str(folder).removesuffix(".partial")))

    return made_once(tmp_path_factory.getbasetemp(), "judged", run)


@pytest.fixture(scope="module")
def gates(ran: Path) -> dict[str, Any]:
    """The verdicts of a pytest session, by dataset and marker, whose gates ``lmgate import`` took from the tasks."""
    project = ran / "project"
    if not project.exists():
        project.mkdir()
        entry = {"dtype": "float32", "device": "cpu"}
        models = {name: {"path": str(ran / "models" / name), **entry} for name in ("old", "new")}
        (project / "lmgate.yaml").write_text(yaml.safe_dump({"models": models}))
        for task in TASKS:
            words = ["import", task, "--include-path", str(ran / "tasks" / task), "--shots", "1", "--json"]
            with contextlib.chdir(project):
                assert CliRunner().invoke(app, words).exit_code == 0
        written = yaml.safe_load((project / "lmgate.yaml").read_text())
        both = {"model": "new", "against": "old", "tolerance": "5%"}
        written["gates"] = [
            gate
            for task in TASKS
            for gate in (
                {"no_regression": {"metric": "accuracy", "dataset": task, **both}},
                {"accuracy_min": {"model": "new", "dataset": task, "limit": 0.5}},
            )
        ]
        (project / "lmgate.yaml").write_text(yaml.safe_dump(written))
    Project(project).run("--lmgate-report", "json:report.json")
    report = json.loads((project / "report.json").read_text())
    return {f"{gate['dataset']} {gate['marker']}": gate for gate in report["gates"]}


@pytest.mark.parametrize("task", TASKS)
def test_the_verdict_is_that_of_no_regression_and_the_interval_of_accuracy_min(ran: Path, gates: Any, task: str):
    ours = gates[f"{task} no_regression"]
    theirs = judge(ran / "old", ran / "new", f"--task={task}", "--metric=acc").gates[f"{task}: acc"]
    assert theirs["verdict"] in ("pass", "fail", "inconclusive")
    assert theirs["verdict"] == ours["verdict"]
    assert theirs["blocking"] == ours["blocking"]
    for name in NUMBERS:
        assert theirs["comparison"].get(name) == ours["comparison"].get(name), name
    for name in ("value", "stderr", "interval", "n"):
        assert theirs[name] == gates[f"{task} accuracy_min"][name], name


def test_two_filters_and_a_group_of_a_fresh_run_are_judged(ran: Path):
    found = judge(ran / "old", ran / "new", "--group=size", "--metric=acc", "--metric=exact_match,flexible-extract")
    assert found.gates.keys() == {"arc_easy: acc", "gsm8k: exact_match,flexible-extract", "sciences: acc"}
    assert found.code in (0, 1)
    told = json.loads(next((ran / "new").rglob("results_*.json")).read_text())["results"]
    assert found.gates["sciences: acc"]["value"] == pytest.approx(told["sciences"]["acc,none"], abs=1e-12)
