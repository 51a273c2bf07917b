"""``lmgate init --ci``: the file of each CI system is where it looks, and its scripts run the gates as they stand."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_lmgate.tools.init.ci import REPOSITORY
from pytest_lmgate.version import __version__
from tests.end_to_end.commands import lmgate, lmgate_json
from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import environment
from tests.end_to_end.workflows import GitHub
from tests.warm import warm_python

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


def test_a_file_that_exists_is_kept_and_the_error_shows_what_it_would_be(tmp_path: Path) -> None:
    file = tmp_path / FILES["gitlab"]
    lmgate(tmp_path, "init", "--ci", "gitlab")
    text = file.read_text()
    assert f"python -m pip install pytest-lmgate=={__version__}" in text
    file.write_text("mine")
    lmgate(tmp_path, "init", "--ci", "gitlab", code=3).says("exists", text)
    assert file.read_text() == "mine"


def test_a_full_disk_leaves_no_part_of_the_file(tmp_path: Path) -> None:
    limited = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99)); sys.argv[1:] = "
    code = f"{limited}['init', '--ci', 'github']; runpy.run_module('pytest_lmgate.cli', run_name='__main__')"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "lmgate.yml cannot be written: File too large" in run.stderr, run
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_other_options_and_systems_are_refused(tmp_path: Path) -> None:
    lmgate(tmp_path, "init", "--ci", "jenkins", code=2).says("gitlab")
    lmgate(tmp_path, "init", "--ci", "gitlab", "--rows=3", code=2).says("--ci")
    assert list(tmp_path.iterdir()) == []


def test_where_no_gate_is_written_yet_it_says_that_the_run_will_be_red(tmp_path: Path) -> None:
    assert "a run without any gate is red: `lmgate init`" in lmgate(tmp_path, "init", "--ci", "gitlab").text
