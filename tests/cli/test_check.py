"""``lmgate check``: what is wrong with lmgate.yaml, with its line, without a model."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import ConfigError

SOUND = """\
models:
  int8: {path: models/int8}
  fp16: {path: models/fp16}
datasets:
  news: {path: news.txt}
gates:
  - ppl_max: {model: int8, dataset: news, limit: 16.5}
  - no_regression: {metric: ppl, model: int8, dataset: news, tolerance: 1%, against: fp16}
  - kl_max: {model: int8, reference: fp16, dataset: news, limit: 0.01}
  - metric_min: {metric: our-own, model: int8, dataset: news, limit: 1}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lmgate.yaml").write_text(SOUND)
    return tmp_path / "lmgate.yaml"


def lmgate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, arguments)])


def test_a_sound_file_needs_neither_models_nor_data(file: Path) -> None:
    done = lmgate()
    assert (done.exit_code, done.stdout) == (0, f"{file}: 2 models, 1 dataset, 4 gates\n")
    assert json.loads(lmgate("--json").stdout) == {
        "ok": True,
        "files": {str(file): {"ok": True, "problems": [], "warnings": []}},
    }


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("model: int8, dataset: news, limit: 16.5", "model: int9, dataset: news, limit: 16.5", 7, "'int8'"),
        ("against: fp16", "against: fp61", 8, "gates[1].no_regression.against"),
        ("path: news.txt", "path: news.csv, chat: true", 5, "datasets.news.chat"),
        ("gates:\n", "gates: [\n", 7, "not valid YAML"),
    ],
)
def test_an_error_has_its_line_and_its_key(file: Path, old: str, new: str, line: int, words: str) -> None:
    file.write_text(SOUND.replace(old, new))
    done = lmgate(file)
    assert done.exit_code == 1
    (said,) = done.stdout.splitlines()
    assert said.startswith(f"{file}:{line}: "), said
    assert words in said


@pytest.mark.parametrize(
    ("metric", "hint"), [("acuracy", "'accuracy'"), ("acc_norm", "metric: accuracy, variant: acc_norm")]
)
def test_a_metric_that_looks_like_one_of_ours_is_a_warning(file: Path, metric: str, hint: str) -> None:
    file.write_text(SOUND.replace("our-own", metric))
    done = lmgate(file)
    assert done.exit_code == 0
    counts, said = done.stdout.splitlines()
    assert counts.endswith("4 gates")
    assert said.startswith(f"warning: {file}:10: gates[3].metric_min.metric: {metric!r} ")
    assert hint in said
    assert len(json.loads(lmgate("--json").stdout)["files"][str(file)]["warnings"]) == 1


def test_all_errors_of_all_files_are_named(file: Path) -> None:
    other = file.with_name("other.yaml")
    other.write_text(SOUND.replace("model: int8, dataset", "model: int9, dataset"))
    file.write_text(SOUND.replace("limit: 16.5", "limt: 16.5"))
    found = json.loads(lmgate(file, other, "--json").stdout)
    assert [len(each["problems"]) for each in found["files"].values()] == [1, 2]


def test_a_file_that_is_not_there_is_an_error(file: Path) -> None:
    assert "gone.yaml: cannot be read" in lmgate("gone.yaml").stdout
    assert lmgate("gone.yaml").exit_code == 1
    file.rename(file.with_name("Lmgate.yaml"))
    failed = lmgate().exception
    assert isinstance(failed, ConfigError)
    assert "Lmgate.yaml" in str(failed)


def test_the_hook_of_pre_commit_runs_the_command_on_every_lmgate_yaml(file: Path) -> None:
    (hook,) = yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text())
    found = [bool(re.search(hook["files"], name)) for name in ("lmgate.yaml", "a/lmgate.yaml", "a/xlmgate.yaml")]
    assert found == [True, True, False]
    program, *arguments = shlex.split(hook["entry"])
    assert program == "lmgate"
    command = [sys.executable, "-m", "pytest_lmgate.cli", *arguments, file.name]
    assert subprocess.run(command, check=False).returncode == 0
    file.write_text(SOUND.replace("ppl_max", "ppl_mx"))
    assert subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 1
