"""``lmgate init``: gates that are green, and red once the model is damaged; and a file for each CI system."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import yaml

from pytest_lmgate.tools.init.ci import REPOSITORY
from pytest_lmgate.version import __version__
from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import Project, environment, lmgate, lmgate_json
from tests.end_to_end.workflows import GitHub
from tests.end_to_end.writers import MASKED_WORDS
from tests.warm import warm_python

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
    done.says("die on words: ppl 60", "limit 63", "tolerance 1%", "lmgate.yaml, lmgate-baseline.json, pytest.ini")
    written = yaml.safe_load((project.folder / "lmgate.yaml").read_text())
    assert written["models"] == {"die": {"path": "models/die"}}
    assert written["datasets"] == {"words": {"path": "data/words.txt"}}
    project.run().expect(0, passed=2).says("cached", "2 gates: 2 pass")  # init measured into the cache of pytest
    damage(project, "die", models)
    project.run().expect(1, failed=2).says("above the limit 63", "worse than 60 of the baseline")


def rounded(project: Project, name: str, wanted: str) -> None:
    """Make a copy of a model with weights in half precision."""
    folder = project.folder / "models"
    shutil.copytree(folder / name, folder / wanted)
    weights = safetensors.numpy.load_file(folder / name / "model.safetensors")
    halves = {key: value.astype(np.float16) for key, value in weights.items()}
    safetensors.numpy.save_file(halves, folder / wanted / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / wanted / "config.json").read_text())
    (folder / wanted / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))


def test_a_rounded_model_is_gated_against_its_original_in_the_same_folder(start: Start, models: Path) -> None:
    project = start("die")
    rounded(project, "die", "half")
    shutil.copytree(project.folder / "models" / "die", project.folder / "copy")
    command = ("init", "--model=models/die", "--against=copy", "--yes")
    lmgate(project.folder, *command, code=3).says("die and copy have the same weights")
    shutil.rmtree(project.folder / "copy")
    found = lmgate_json(project.folder, "init", "--model=models/half", "--yes")
    (gate,) = (each for each in found["gates"] if "against" in each["arguments"])
    named = {"metric": "ppl", "model": "half", "dataset": "words"}
    assert gate["arguments"] == {**named, "tolerance": "1%", "against": "die"}
    assert "tolerance 1%: half is " in gate["reasons"][-1]
    project.run("--lmgate-require-all", "--lmgate-report=json:report.json").expect(0, passed=len(found["gates"]))
    assert all(each["cached"] and each["verdict"] == "pass" for each in project.report()["gates"])
    damage(project, "half", models)
    project.run().expect(1).says("worse than 60 of the model 'die'")


def test_a_model_far_from_its_original_gets_no_gate_against_it_and_a_table_its_column(
    start: Start, models: Path
) -> None:
    project = start("sure")
    rounded(project, "sure", "half")
    shutil.copy(models / "die" / "model.safetensors", project.folder / "models" / "sure")
    (project.folder / "models" / "rows.jsonl").write_text('{"question": "w1 w2 w3 w4"}\n' * 9)
    command = ("init", "--model=models/half", "--rows=8", "--yes")
    lmgate(project.folder, *command, "--against=models/sure", code=3).says("it is no longer the same model")
    lmgate(project.folder, *command).says("no gate of half against sure: half is ")
    written = yaml.safe_load((project.folder / "lmgate.yaml").read_text())
    assert list(written["models"]) == ["half"]
    assert written["datasets"] == {"rows": {"path": "models/rows.jsonl", "text": "question", "limit": 8}}
    project.run().expect(0, passed=2).says("cached")


def test_the_first_of_several_models_is_taken_and_a_file_that_is_there_is_an_error(start: Start) -> None:
    project = start("die", "sure")
    (project.folder / "lmgate-baseline.json").write_text("mine")
    done = lmgate(project.folder, "init", "--yes", code=3)
    done.says("model: models/sure, against models/die; --model names another", "lmgate-baseline.json exists")
    assert sorted(each.name for each in project.folder.iterdir()) == ["data", "lmgate-baseline.json", "models"]
    project.write(pytest_ini="[pytest]\nlmgate_baseline = /proc/none/baseline.json\n")
    lmgate(project.folder, "init", "--yes", code=3).says("a file cannot be written", "/proc/none")
    assert not (project.folder / "lmgate.yaml").exists()  # or the next `lmgate init` would refuse it


def test_a_text_on_which_guessing_would_be_better_is_remarked(start: Start) -> None:
    project = start("sure")
    (project.folder / "data" / "words.txt").write_text(" ".join(f"w{n * n % 57}" for n in range(2000)))
    lmgate(project.folder, "init", "--yes").says("sure on words: ppl", "is worse than guessing among its")


def test_projects_with_one_baseline_add_to_it(start: Start) -> None:
    project = start("die")
    project.write(pytest_ini="[pytest]\nlmgate_baseline = all.json\n")
    for name in ("one", "two"):
        (project.folder / name).mkdir()
        lmgate(project.folder / name, "init", "--yes", "--model=../models/die", "--dataset=../data/words.txt")
    assert len(json.loads((project.folder / "all.json").read_text())["gates"]) == 2
    project.run().expect(0, passed=4)


def test_a_masked_model_is_gated_by_its_pseudo_perplexity_and_an_encoder_decoder_is_refused(
    tmp_path: Path, writers: Path
) -> None:
    (tmp_path / "words.jsonl").write_text('{"text": "w1 w2 w3 w4 w5 w6 w7"}\n' * 2)
    lmgate(tmp_path, "init", f"--model={writers}/translator", "--yes", code=3).says("ppl of the encoder-decoder model")
    lmgate(tmp_path, "init", f"--model={writers}/masked", "--yes").says(f"masked on words: pppl {MASKED_WORDS}")
    Project(tmp_path).run().expect(0, passed=2).says("pppl_max[masked-words]", "no_regression:pppl[masked-words]")


def test_it_asks_and_refuses_a_text_on_which_no_gate_could_decide_before_anything_is_measured(start: Start) -> None:
    project = start("die", "sure")
    config = project.folder / "models" / "die" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 4096}))
    (project.folder / "data" / "words.txt").write_text(" ".join(f"w{n * n % 57}" for n in range(1000)))
    done = lmgate(project.folder, "init", "--margin=10", typed="2\ndata/words.txt\n", code=3)
    done.says("1  models/sure, against models/die", "2  models/die", "Which model?")
    done.says("gates on it could never decide: 3 blocks of windows", "about 3 times as much text")
    assert not (project.folder / "lmgate.yaml").exists()


FILES = {
    "github": ".github/workflows/lmgate.yml",
    "gitlab": ".gitlab-ci.yml",
    "azure": "azure-pipelines.yml",
    "buildkite": ".buildkite/pipeline.yml",
}


@pytest.fixture
def gated(tmp_path: Path) -> DiceProject:
    """A project in a folder of a repository."""
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    folder = tmp_path / "repository" / "the model's folder"
    folder.mkdir()
    (folder / "requirements.txt").write_text("pytest-lmgate\n")
    return DiceProject.at(folder).models(red={}).gates([("red", "one")])


def written(project: DiceProject, service: str) -> tuple[Path, Any]:
    """Write the file of a service; return the repository and what the file says."""
    top = project.folder.parent
    assert lmgate_json(project.folder, "init", "--ci", service) == {"files": [FILES[service]]}
    text = (top / FILES[service]).read_text()
    assert len(text.splitlines()) <= 13
    return top, yaml.safe_load(text)


def run(scripts: list[str], top: Path) -> int:
    """Run a script in a repository as a CI system does, where ``pytest`` is that of this environment."""
    programs = top.parent / "programs"
    programs.mkdir(exist_ok=True)
    python = f'exec "{warm_python(environment(), "pytest")}" -m pytest "$@"'
    for name, command in {"pytest": python, "python": f'echo "$@" >> "{top}/installs.txt"'}.items():
        (programs / name).write_text(f"#!/bin/sh\n{command}\n")
        (programs / name).chmod(0o755)
    env = environment() | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "CI": "true"}
    return subprocess.run(["bash", "-e", "-c", "\n".join(scripts)], cwd=top, env=env, check=False).returncode


def gitlab(document: Any) -> tuple[list[str], list[str], str]:
    """Return the scripts, the files that the system is told of, and the folder of the cache."""
    job = document["lmgate"]
    assert job["cache"]["when"] == job["artifacts"]["when"] == "always"
    (cache,) = job["cache"]["paths"]
    return job["script"], [*job["artifacts"]["paths"], *job["artifacts"]["reports"].values()], cache


def azure(document: Any) -> tuple[list[str], list[str], str]:
    inputs = {step["task"]: step["inputs"] for step in document["steps"] if "task" in step}
    (report,) = (step["publish"] for step in document["steps"] if "publish" in step)
    assert [step["condition"] for step in document["steps"][-2:]] == ["always()"] * 2
    assert inputs["Cache@2"]["key"].startswith(f"{inputs['Cache@2']['restoreKeys']} | ")
    scripts = [step["script"] for step in document["steps"] if "script" in step]
    return scripts, [inputs["PublishTestResults@2"]["testResultsFiles"], report], inputs["Cache@2"]["path"]


def buildkite(document: Any) -> tuple[list[str], list[str], str]:
    (step,) = document["steps"]
    ((plugin, cache),) = (each for named in step["plugins"] for each in named.items())
    assert plugin.startswith("cache#v")
    assert cache["force"] is True, "or the first cache of a pipeline stays the only one"
    return step["commands"], step["artifact_paths"], cache["path"]


@pytest.mark.parametrize("read", [gitlab, azure, buildkite])
def test_a_job_is_green_then_red_with_a_worse_model(gated: DiceProject, read: Callable[[Any], Any]) -> None:
    top, document = written(gated, read.__name__)
    scripts, files, cache = read(document)
    assert run(scripts, top) == 0
    assert "-m pip install" in (top / "installs.txt").read_text()
    assert list((top / cache).glob("token-nll/*/*.lmgate"))
    for file in files:
        assert (top / file).stat().st_size > 0, file
    gated.models(red={"sides": 7}).gates([("red", "one")])
    assert run(scripts, top) == 1
    (junit,) = (top / file for file in files if file.endswith("junit.xml"))
    assert 'name="lmgate.ppl_max[red-one].verdict" value="fail"' in junit.read_text()


def test_a_job_of_github_is_the_action_with_inputs_that_it_has(gated: DiceProject, tmp_path: Path) -> None:
    top, document = written(gated, "github")
    *_, install, action = document["jobs"]["gates"]["steps"]
    assert "pip install" in install["run"]
    assert action["uses"] == f"{REPOSITORY}@v{__version__}"
    assert document["permissions"]["pull-requests"] == "write"
    github = GitHub(tmp_path / "github")
    github.run(top, **{name.replace("-", "_"): value for name, value in action["with"].items()}).expect(True)
    assert len(github.comments) == 1


def test_a_file_that_exists_is_kept_and_other_systems_are_refused(tmp_path: Path) -> None:
    lmgate(tmp_path, "init", "--ci", "jenkins", code=2).says("gitlab")
    lmgate(tmp_path, "init", "--ci", "gitlab", "--rows=3", code=2).says("--ci")
    assert list(tmp_path.iterdir()) == []
    lmgate(tmp_path, "init", "--ci", "gitlab").says("a run without any gate is red: `lmgate init`")
    file = tmp_path / FILES["gitlab"]
    text = file.read_text()
    assert f"python -m pip install pytest-lmgate=={__version__}" in text
    file.write_text("mine")
    lmgate(tmp_path, "init", "--ci", "gitlab", code=3).says("exists", text)
    assert file.read_text() == "mine"


def test_a_full_disk_leaves_no_part_of_the_file(tmp_path: Path) -> None:
    limited = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99)); sys.argv[1:] = "
    code = f"{limited}['init', '--ci', 'github']; runpy.run_module('pytest_lmgate.cli', run_name='__main__')"
    run = subprocess.run([sys.executable, "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "lmgate.yml cannot be written: File too large" in run.stderr, run
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
