"""``lmgate init`` in a folder with a model and a text: what it writes is green, and red once the model is damaged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import yaml

from tests.end_to_end.commands import lmgate, lmgate_json
from tests.end_to_end.projects import Project, environment
from tests.end_to_end.writers import MASKED_WORDS, writing_project

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
        "  limit 63: 5% above the 60 that were measured on 399 tokens",
        "  noise: the 95% interval is [60, 60]",
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
    # What GitHub's own action saves is lost after a red run; a second attempt needs a name of its own.
    steps = {step["uses"].partition("@")[0].removeprefix("actions/"): step for step in job["steps"] if "uses" in step}
    assert steps["cache/save"]["with"]["path"] == steps["cache/restore"]["with"]["path"] == ".lmgate_cache"
    assert steps["cache/save"]["with"]["key"] == steps["cache/restore"]["with"]["key"]
    assert steps["cache/save"]["with"]["key"].endswith("${{ github.run_id }}-${{ github.run_attempt }}")
    assert steps["cache/save"]["if"] == steps["upload-artifact"]["if"] == "always()"
    # The workflow's own command, as a shell would run it.
    assert run[1].startswith("pytest --lmgate-require-all --lmgate-report github --lmgate-report json:report.json ")
    assert steps["upload-artifact"]["with"]["path"] == "report.json"
    done = project.run(
        "--lmgate-require-all",
        "--lmgate-report=github",
        "--lmgate-report=json:report.json",
        "--lmgate-report=markdown-append:$GITHUB_STEP_SUMMARY",
        env={"GITHUB_STEP_SUMMARY": "summary.md"},
    )
    done.expect(0, passed=2).says("4 gates: 4 pass")
    assert project.report()["gates"]
    damage(project, "die", models)
    project.run().expect(1, passed=1, failed=1)


def rounded(project: Project, name: str, wanted: str) -> None:
    """Make a copy of a model with weights in half precision."""
    folder = project.folder / "models"
    shutil.copytree(folder / name, folder / wanted)
    weights = safetensors.numpy.load_file(folder / name / "model.safetensors")
    halves = {key: value.astype(np.float16) for key, value in weights.items()}
    safetensors.numpy.save_file(halves, folder / wanted / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / wanted / "config.json").read_text())
    (folder / wanted / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))


@pytest.mark.parametrize(("chosen", "options"), [("die", ()), ("half", ("--tests",))])
def test_a_rounded_model_beside_the_other_is_gated_against_it(
    start: Start, models: Path, chosen: str, options: tuple[str, ...]
) -> None:
    project = start("die")
    rounded(project, "die", "half")
    found = lmgate_json(project.folder, "init", f"--model=models/{chosen}", "--yes", *options)
    (gate,) = (each for each in found["gates"] if "against" in each["arguments"])
    assert gate["arguments"] == {
        "metric": "ppl", "model": "half", "dataset": "words", "tolerance": "1%", "against": "die",
    }  # fmt: skip
    assert "tolerance 1%: half is " in gate["reasons"][-1]
    assert " than die today, at most " in gate["reasons"][-1]
    assert len(found["gates"]) == 3
    project.run("--lmgate-require-all", "--lmgate-report=json:report.json").expect(0)
    gates = {each["id"].rpartition("::")[2]: each for each in project.report()["gates"]}
    assert gates.keys() >= {f"ppl_max[{chosen}-words]", "no_regression:ppl[half-words-vs-die]"}
    assert all(each["cached"] and each["verdict"] == "pass" for each in gates.values())
    damage(project, "half", models)
    project.run().expect(1).says("worse than 60 of the model 'die'")


def test_a_model_beside_that_cannot_be_gated_is_left_out_and_one_that_is_named_is_an_error(start: Start) -> None:
    project = start("die", "sure")
    rounded(project, "sure", "half")
    shutil.rmtree(project.folder / "models" / "sure")
    done = lmgate(project.folder, "init", "--model=models/half", "--against=models/die", "--yes", code=3)
    done.says("half is ", "% worse than die today: beyond 10% it is no longer the same model")
    lmgate(project.folder, "init", "--model=models/die", "--against=models/die", "--yes", code=2).says("another model")
    done = lmgate(project.folder, "init", "--model=models/die", "--yes")
    done.says("no gate of half against die: half is ", "no longer the same model")
    assert list(yaml.safe_load((project.folder / "lmgate.yaml").read_text())["models"]) == ["die"]
    project.run().expect(0, passed=2)


def test_with_none_no_model_beside_is_looked_for(start: Start) -> None:
    project = start("die")
    rounded(project, "die", "half")
    found = lmgate_json(project.folder, "init", "--model=models/die", "--against=none", "--yes")
    assert len(found["gates"]) == 2
    assert list(yaml.safe_load((project.folder / "lmgate.yaml").read_text())["models"]) == ["die"]


@pytest.mark.parametrize("inner", [False, True])
def test_a_pipeline_of_gitlab_runs_as_it_is_written(start: Start, tmp_path: Path, inner: bool) -> None:
    project = start("die")
    repository = tmp_path if inner else project.folder
    (repository / ".git").mkdir()
    lmgate(project.folder, "init", "--yes", "--ci=gitlab").says(f"{'../' * inner}.gitlab-ci.yml")
    job = yaml.safe_load((repository / ".gitlab-ci.yml").read_text())["model-quality"]
    assert job["cache"]["paths"] == ["start/.lmgate_cache" if inner else ".lmgate_cache"]
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "pytest").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pytest "$@"\n')
    (programs / "python").write_text('#!/bin/sh\necho "$@" > "$(dirname "$0")/installed"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    env = {**environment(), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    # As a runner of GitLab does it: one shell for all lines, in the repository.
    done = subprocess.run(["sh", "-ec", "\n".join(job["script"])], cwd=repository, env=env, check=False)
    assert done.returncode == 0
    assert (programs / "installed").read_text() == "-m pip install pytest-lmgate\n"
    artifacts = job["artifacts"]
    for name in (*artifacts["paths"], *artifacts["reports"].values()):
        assert (repository / name).stat().st_size > 0, name


def test_a_service_that_is_not_known_is_refused(start: Start) -> None:
    done = lmgate(start("die").folder, "init", "--yes", "--ci=jenkins", code=2)
    done.says("--ci: expected github or gitlab, got 'jenkins'")


def test_with_two_models_the_tolerance_is_no_smaller_than_what_their_pair_shows(start: Start) -> None:
    project = start("die", "sure")
    found = lmgate_json(project.folder, "init", "--model=models/die", "--model=models/sure", "--yes")
    tolerances = [each["arguments"]["tolerance"] for each in found["gates"] if each["marker"] == "no_regression"]
    assert all(float(each.rstrip("%")) > 1 for each in tolerances)
    assert "the smallest change that this text shows is " in found["gates"][0]["reasons"][2]
    project.run().expect(0, passed=4)


def test_two_models_of_one_name_are_told_apart_by_numbers(start: Start, models: Path) -> None:
    project = start("die")
    shutil.copytree(models / "sure", project.folder / "models" / "other" / "die")
    lmgate(project.folder, "init", "--model=models/die", "--model=models/other/die", "--yes", "--tests")
    written = yaml.safe_load((project.folder / "lmgate.yaml").read_text())
    assert written["models"] == {"die": {"path": "models/die"}, "die-2": {"path": "models/other/die"}}
    project.run().expect(0, passed=2).says("4 gates: 4 pass")


def test_it_asks_and_takes_a_number_or_a_path(start: Start) -> None:
    project = start("die", "sure")
    done = lmgate(project.folder, "init", "--margin=10", typed="2\ndata/words.txt\n")
    done.says("1  models/die", "2  models/sure", "Which model?", "sure on words")
    assert list(yaml.safe_load((project.folder / "lmgate.yaml").read_text())["models"]) == ["sure"]
    project.run().expect(0, passed=2)


def test_several_models_are_chosen_at_once_and_the_rounded_one_is_gated_against_its_original(start: Start) -> None:
    project = start("die", "sure")
    rounded(project, "die", "half")
    words = (project.folder / "data" / "words.txt").read_text()
    (project.folder / "data" / "long.txt").write_text((words.rstrip() + " ") * 60)
    (project.folder / "data" / "larger.txt").write_text((words.rstrip() + " ") * 80)
    done = lmgate(project.folder, "init", typed="1,2\n1\n")
    done.says(
        "1  models/die", "2  models/half", "3  models/sure", "Which model? Number or path (several: 1,2)",
        "1  data/long.txt  ", "3  data/words.txt  ", ", about 24,", " tokens, about ", " s", "tolerance 1%: half is ",
    )  # fmt: skip
    written = yaml.safe_load((project.folder / "lmgate.yaml").read_text())
    assert list(written["models"]) == ["die", "half"]
    assert [gate["no_regression"]["against"] for gate in written["gates"] if "against" in str(gate)] == ["die"]
    assert "[pytest]\n# " in (project.folder / "pytest.ini").read_text()
    project.run().expect(0, passed=5).says("5 gates: 5 pass")
    with (project.folder / "lmgate.yaml").open("a") as file:
        file.write("  - ppl_max: {model: half, dataset: long, limit: 99}\n")
    (project.folder / "test_other.py").write_text("def test_other(): pass\n")
    project.run("test_other.py").expect(4).says("6 gates of lmgate.yaml were not collected")
    project.run("test_other.py", "-o", "lmgate_require_all=false").expect(0, passed=1)


def test_rows_of_json_lines_are_taken_and_a_limit_lies_beyond_the_interval(start: Start) -> None:
    project = start("sure")
    lines = [{"text": "w1 w2 w3 w4 w5 w6 w7 w8" if row % 9 else "w9 w3 w7 w1 w2 w9 w4 w4"} for row in range(90)]
    (project.folder / "news.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    lmgate(project.folder, "init", "--dataset=data/words.txt", "--rows=20", "--yes", code=2).says(
        "--rows counts rows of"
    )
    found = lmgate_json(project.folder, "init", "--yes", "--rows=20", "--margin=0.1")
    written = yaml.safe_load((project.folder / "lmgate.yaml").read_text())
    assert written["datasets"] == {"news": {"path": "news.jsonl", "limit": 20}}
    gate = found["gates"][0]
    assert f"limit {gate['arguments']['limit']:g}: beyond the interval" in gate["reasons"][0]
    assert gate["arguments"]["limit"] > 1.001 * gate["value"]
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


def test_what_cannot_be_gated_says_why(start: Start) -> None:
    project = start("nan")
    lmgate(project.folder, "init", "--yes", code=3).is_silent_on("Traceback")
    assert not (project.folder / "lmgate.yaml").exists()
    shutil.rmtree(project.folder / "models")
    lmgate(project.folder, "init", "--yes", code=3).says("no model was found", "name it: --model PATH")
    lmgate(project.folder, "init", "--model", "none", code=2).says("none does not exist")


def test_a_project_within_a_repository_gets_a_file_and_a_baseline_of_its_own(
    start: Start, models: Path, tmp_path: Path
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / ".git").mkdir()
    project = start("die")
    done = lmgate(project.folder, "init", "--yes", "--ci=github")
    done.says("written: lmgate.yaml, lmgate-baseline.json, ../.github/workflows/model-quality.yml")
    steps = yaml.safe_load((tmp_path / ".github/workflows/model-quality.yml").read_text())["jobs"]["gates"]["steps"]
    assert [step["with"]["path"] for step in steps if "path" in step.get("with", {})] == [
        ".lmgate_cache", ".lmgate_cache", "report.json",
    ]  # fmt: skip
    for folder in (tmp_path, project.folder):
        project.run(cwd=folder).expect(0, passed=2).says("cached")
        lmgate(folder, "baseline", "show", *(["--baseline=start/lmgate-baseline.json"] * (folder == tmp_path))).says(
            "lmgate.yaml::no_regression:ppl[die-words]", "1 entry"
        )
    lmgate(project.folder, "doctor").says("nothing is wrong", "1 model, 1 dataset, 2 gates")
    damage(project, "die", models)
    project.run(cwd=tmp_path).expect(1, failed=2)


def test_a_baseline_that_pytest_s_settings_name_is_the_one_that_is_written(start: Start, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nlmgate_baseline = accepted.json\n")
    project = start("die")
    lmgate(project.folder, "init", "--yes").says("written: lmgate.yaml, ../accepted.json")
    assert "start/lmgate.yaml::no_regression:ppl[die-words]" in (tmp_path / "accepted.json").read_text()
    project.run(cwd=tmp_path).expect(0, passed=2)


def test_where_pytest_s_settings_name_another_file_it_refuses(start: Start) -> None:
    project = start("die").write(pytest_ini="[pytest]\nlmgate_config = other.yaml\n")
    lmgate(project.folder, "init", "--yes", code=3).says("so a new lmgate.yaml is not read")


def test_a_text_of_one_cluster_has_no_known_noise_and_still_gates(start: Start, models: Path) -> None:
    project = start("die")
    (project.folder / "one.jsonl").write_text('{"text": "w1 w2 w3 w4"}\n')
    lmgate(project.folder, "init", "--yes", "--dataset=one.jsonl").says(
        "noise: not known; it needs at least two rows, or 8 windows of a text without rows"
    )
    project.run().expect(0, passed=2)
    damage(project, "die", models)
    project.run().expect(1, failed=2)


def test_a_masked_model_is_gated_by_its_pseudo_perplexity_and_an_encoder_decoder_is_refused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = writing_project(tmp_path, tmp_path_factory.getbasetemp())
    paths = {
        name: entry["path"]
        for name, entry in yaml.safe_load((made.folder / "lmgate.yaml").read_text())["models"].items()
    }
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "words.txt").write_text("w1 w2 w3 w4 w5 w6 w7")
    lmgate(folder, "init", f"--model={paths['translator']}", "--yes", code=3).says("got an encoder-decoder one")
    lmgate(folder, "init", f"--model={paths['masked']}", "--yes").says(f"masked on words: pppl {MASKED_WORDS}")
    Project(folder).run().expect(0, passed=2).says("pppl_max[masked-words]", "no_regression:pppl[masked-words]")
