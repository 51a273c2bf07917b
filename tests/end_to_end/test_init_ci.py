"""``lmgate init --ci``: the file of each CI system is where it looks, and its scripts run the gates as they stand."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_lmgate.cli.ci import REPOSITORY
from pytest_lmgate.version import __version__
from tests.end_to_end.commands import lmgate, lmgate_json
from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import environment
from tests.end_to_end.workflows import ROOT, GitHub
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
    for name, command in {
        "pytest": f'"{warm_python(environment(), "pytest")}" -m pytest',
        "python": f'"{sys.executable}"',
    }.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    env = environment() | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "CI": "true", "PIP_NO_INDEX": "1"}
    return subprocess.run(["bash", "-e", "-c", "\n".join(scripts)], cwd=top, env=env, check=False).returncode


def is_green_then_red(gated: DiceProject, steps: list[list[str]], top: Path, files: list[str], cache: str) -> None:
    """Run the steps twice, the second time with a worse model, and look at the files that the system is told of."""
    assert [run(step, top) for step in steps] == [0] * len(steps)
    assert len(gated.loads) == 1
    assert list((top / cache).glob("token-nll/*/*.lmgate"))
    for file in files:
        assert (top / file).stat().st_size > 0, file
    gated.models(red={"sides": 7}).gates([("red", "one")])
    assert run(steps[-1], top) == 1
    (junit,) = (top / file for file in files if file.endswith("junit.xml"))
    properties = {each.attrib["name"]: each.attrib["value"] for each in ElementTree.parse(junit).iter("property")}
    assert properties["lmgate.ppl_max[red-one].verdict"] == "fail"


def test_gitlab(gated: DiceProject) -> None:
    top, document = written(gated, "gitlab")
    job, (cache,) = document["lmgate"], document["lmgate"]["cache"]["paths"]
    assert job["cache"]["when"] == job["artifacts"]["when"] == "always"
    files = [*job["artifacts"]["paths"], *job["artifacts"]["reports"].values()]
    is_green_then_red(gated, [job["script"]], top, files, cache)


def test_azure(gated: DiceProject) -> None:
    top, document = written(gated, "azure")
    scripts = [[step["script"]] for step in document["steps"] if "script" in step]
    inputs = {step["task"]: step["inputs"] for step in document["steps"] if "task" in step}
    (report,) = (step["publish"] for step in document["steps"] if "publish" in step)
    files = [inputs["PublishTestResults@2"]["testResultsFiles"], report]
    assert [step["condition"] for step in document["steps"][-2:]] == ["always()"] * 2
    assert inputs["Cache@2"]["key"].startswith(f"{inputs['Cache@2']['restoreKeys']} | ")
    is_green_then_red(gated, scripts, top, files, inputs["Cache@2"]["path"])


def test_buildkite(gated: DiceProject) -> None:
    top, document = written(gated, "buildkite")
    (step,) = document["steps"]
    ((plugin, cache),) = (each for named in step["plugins"] for each in named.items())
    assert plugin.startswith("cache#v")
    assert cache["force"] is True, "or the first cache of a pipeline stays the only one"
    is_green_then_red(gated, [step["commands"]], top, step["artifact_paths"], cache["path"])


def test_github(gated: DiceProject, tmp_path: Path) -> None:
    top, document = written(gated, "github")
    *_, install, action = document["jobs"]["gates"]["steps"]
    assert action["uses"] == f"{REPOSITORY}@v{__version__}"
    assert document["permissions"]["pull-requests"] == "write"
    assert run([install["run"]], top) == 0
    github = GitHub(tmp_path / "github")
    inputs = {name.replace("-", "_"): value for name, value in action["with"].items()}
    github.run(top, **inputs).expect(True)
    gated.models(red={"sides": 7}).gates([("red", "one")])
    github.run(top, **inputs).expect(False)
    assert len(github.comments) == 1


@pytest.mark.parametrize("service", FILES)
def test_a_file_that_exists_is_kept_and_the_error_shows_what_it_would_be(service: str, tmp_path: Path) -> None:
    file = tmp_path / FILES[service]
    lmgate(tmp_path, "init", "--ci", service)
    text = file.read_text()
    assert f"python -m pip install pytest-lmgate=={__version__}" in text
    file.write_text("mine")
    lmgate(tmp_path, "init", "--ci", service, code=3).says("exists", text)
    assert file.read_text() == "mine"


def test_other_options_and_systems_are_refused(tmp_path: Path) -> None:
    lmgate(tmp_path, "init", "--ci", "jenkins", code=2).says("gitlab")
    lmgate(tmp_path, "init", "--ci", "gitlab", "--rows=3", code=2).says("--ci")
    assert list(tmp_path.iterdir()) == []


def test_the_address_of_the_action_is_that_of_the_project() -> None:
    urls = re.findall(r'^\w+ = "(https://github.com/[^"]+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert urls
    assert all(url.startswith(f"https://github.com/{REPOSITORY}") for url in urls)


def test_where_no_gate_is_written_yet_it_says_that_the_run_will_be_red(tmp_path: Path) -> None:
    assert "a run without any gate is red: `lmgate init`" in lmgate(tmp_path, "init", "--ci", "gitlab").text
