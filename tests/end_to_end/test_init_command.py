"""``lmgate init`` in a folder with a model and a text: what it writes is green, and red once the model is damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.end_to_end.commands import lmgate, lmgate_json
from tests.end_to_end.projects import Project

Start = Callable[..., Project]


@pytest.fixture
def start(tmp_path: Path, models: Path) -> Start:
    """Make a folder with copies of models, and a text."""

    def made(*names: str) -> Project:
        project = Project(tmp_path / "start")
        project.folder.mkdir()
        for name in names:
            shutil.copytree(models / name, project.folder / "models" / name)
        (project.folder / "data").mkdir()
        shutil.copy(models / "words.txt", project.folder / "data" / "words.txt")
        return project

    return made


def damage(project: Project, name: str, models: Path) -> None:
    """Put another model's weights into a model."""
    shutil.copy(models / "sure" / "model.safetensors", project.folder / "models" / name / "model.safetensors")


def test_from_a_model_and_a_text_to_gates_that_pass_and_fail(start: Start, models: Path) -> None:
    project = start("die")
    done = lmgate(project.folder, "init", "--yes")
    done.says(
        "die on words: ppl 60",
        "  limit 63: 5 % above the 60 that were measured on 399 tokens",
        "  noise: the 95 % interval is [60, 60]",
        "  tolerance 1%: ",
        "written: lmgate.yaml, lmgate-baseline.json, pytest.ini",
    )
    written = yaml.safe_load((project.folder / "lmgate.yaml").read_text())
    assert written["models"] == {"die": {"path": "models/die"}}
    assert written["datasets"] == {"words": {"path": "data/words.txt"}}
    green = project.run().expect(0, passed=2)
    green.says("cached", "2 gates: 2 pass")  # init measured into the cache of pytest
    damage(project, "die", models)
    red = project.run().expect(1, failed=2)
    red.says("is above the limit 63", "no_regression", "worse than 60 of the baseline of ")


def test_with_tests_the_gates_stand_in_a_test_file_and_with_ci_there_is_a_workflow(start: Start, models: Path) -> None:
    project = start("die", "sure")
    (project.folder / "tests").mkdir()
    (project.folder / ".git").mkdir()
    arguments = ("--model=models/die", "--model", "models/sure", "--dataset=data/words.txt", "--tests", "--ci=github")
    found = lmgate_json(project.folder, "init", *arguments)
    workflow = ".github/workflows/model-quality.yml"
    assert found["files"] == ["lmgate.yaml", "lmgate-baseline.json", "pytest.ini", "tests/test_models.py", workflow]
    assert "gates" not in yaml.safe_load((project.folder / "lmgate.yaml").read_text())
    job = yaml.safe_load((project.folder / workflow).read_text())["jobs"]["gates"]
    run = [step["run"] for step in job["steps"] if "run" in step]
    assert run[0] == "python -m pip install pytest-lmgate"
    assert [step["with"]["path"] for step in job["steps"] if step.get("uses", "").startswith("actions/cache@")] == [
        ".lmgate_cache"
    ]
    # The workflow's own command, as a shell would run it.
    assert run[1].startswith("pytest --lmgate-require-all --lmgate-report github ")
    done = project.run(
        "--lmgate-require-all",
        "--lmgate-report=github",
        "--lmgate-report=markdown-append:$GITHUB_STEP_SUMMARY",
        env={"GITHUB_STEP_SUMMARY": "summary.md"},
    )
    done.expect(0, passed=2).says("4 gates: 4 pass")
    damage(project, "die", models)
    project.run().expect(1, passed=1, failed=1)


def test_with_two_models_the_tolerance_is_no_smaller_than_what_their_pair_shows(start: Start) -> None:
    project = start("die", "sure")
    found = lmgate_json(project.folder, "init", "--model=models/die", "--model=models/sure", "--yes")
    tolerances = [each["arguments"]["tolerance"] for each in found["gates"] if each["marker"] == "no_regression"]
    assert all(float(each.rstrip("%")) > 1 for each in tolerances)
    assert "the smallest change that this text shows is " in found["gates"][0]["reasons"][2]
    project.run().expect(0, passed=4)


def test_it_asks_and_takes_a_number_or_a_path(start: Start) -> None:
    project = start("die", "sure")
    done = lmgate(project.folder, "init", "--margin=10", typed="2\ndata/words.txt\n")
    done.says("1  models/die", "2  models/sure", "Which model?", "sure on words")
    assert list(yaml.safe_load((project.folder / "lmgate.yaml").read_text())["models"]) == ["sure"]
    project.run().expect(0, passed=2)


def test_without_an_answer_it_writes_nothing_and_names_the_flags(start: Start) -> None:
    project = start("die")
    lmgate(project.folder, "init", code=2).says("give --model PATH, or --yes")
    assert sorted(each.name for each in project.folder.iterdir()) == ["data", "models"]


def test_a_column_of_json_lines_is_found_and_the_rows_are_read(start: Start) -> None:
    project = start("die")
    rows = [{"id": str(row), "article": "w1 w2 w3 w4 w5 w6 w7 w8"} for row in range(30)]
    (project.folder / "news.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    lmgate(project.folder, "init", "--yes", "--dataset=news.jsonl").says("die on news: ppl 60")
    written = yaml.safe_load((project.folder / "lmgate.yaml").read_text())
    assert written["datasets"] == {"news": {"path": "news.jsonl", "text": "article"}}
    project.run().expect(0, passed=2)


@pytest.mark.parametrize("name", ["lmgate.yaml", "lmgate-baseline.json", "test_models.py"])
def test_nothing_that_is_there_is_overwritten(start: Start, name: str) -> None:
    project = start("die")
    (project.folder / name).write_text("mine")
    done = lmgate(project.folder, "init", "--yes", "--tests", code=3)
    done.says(f"{name} is there already; lmgate init overwrites nothing")
    assert (project.folder / name).read_text() == "mine"
    assert sorted(each.name for each in project.folder.iterdir()) == sorted(["data", "models", name])


def test_what_cannot_be_gated_says_why(start: Start, tmp_path: Path) -> None:
    project = start("nan")
    lmgate(project.folder, "init", "--yes", code=3).is_silent_on("Traceback")
    assert not (project.folder / "lmgate.yaml").exists()
    shutil.rmtree(project.folder / "models")
    lmgate(project.folder, "init", "--yes", code=3).says("no model was found", "name it: --model PATH")
    lmgate(project.folder, "init", "--model", "none", code=2).says("none does not exist")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    lmgate(project.folder, "init", "--yes", code=3).says(f"pytest's rootdir, which is {tmp_path}")
