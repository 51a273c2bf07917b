"""``lmgate check``: what is wrong with lmgate.yaml, its models and data, with its line, before a model runs."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from pytest_lmgate.cli.app import app
from tests.end_to_end.projects import LEFT_OUT, Project, environment
from tests.warm import warm_python

GATE = "- ppl_max: {model: die, dataset: words, limit: 70}"
GATES = f"""\
gates:
  {GATE}
  - no_regression: {{metric: ppl, model: die, dataset: words, tolerance: 1%, against: sure}}
  - kl_max: {{model: die, reference: sure, dataset: words, limit: 0.01}}
  - self_kl_max: {{model: die, dataset: prompts, limit: 0.01}}
"""


@pytest.fixture
def file(project: Project, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project.folder)
    monkeypatch.setattr(sys, "executable", warm_python(environment(), "pytest"))  # that runs a conftest.py
    monkeypatch.setenv("PYTEST_ADDOPTS", LEFT_OUT)
    project.write(prompts_jsonl='{"q": "w1 w2"}\n{"q": "w3"}\n')
    project.add("datasets", prompts="path: prompts.jsonl, prompt: '{q}'")
    project.add("models", served=f"server: 'http://localhost:1/v1', model: m, tokenizer: {models}/die")
    path = project.folder / "lmgate.yaml"
    path.write_text(project.settings + GATES)
    return path


def lmgate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, arguments)])


def test_a_sound_file_runs_no_model_asks_no_server_and_fetches_nothing(file: Path) -> None:
    gate = "no_regression: {{metric: ppl, model: {}, dataset: words, tolerance: 1%}}"
    more = "".join(f"  - {gate.format(name)}\n" for name in ("served", "some/where"))
    file.write_text(file.read_text() + more)
    before = sorted(path.name for path in file.parent.iterdir())
    done = lmgate()
    assert (done.exit_code, done.stdout) == (0, f"{file}: 5 models, 2 datasets, 6 gates\n")
    found = {str(file): {"ok": True, "problems": [], "warnings": []}}
    assert json.loads(lmgate("--json").stdout) == {"ok": True, "files": found}
    assert sorted(path.name for path in file.parent.iterdir()) == before


# By gate, each in a line of its own: what its error names.
WRONG = {
    "ppl_max: {model: dye, dataset: words, limit: 70}": "'die'",
    "no_regression: {metric: ppl, model: die, dataset: words, tolerance: 1%, against: shure}": "no_regression.against",
    # What the session finds out when it describes models and data.
    "self_kl_max: {model: ./gone, dataset: prompts, limit: 0.01}": "no such folder",
    "accuracy_min: {model: die, dataset: words, limit: 0.7}": "choices:",
    "bleu_min: {model: die, dataset: prompts, limit: 7}": "references:",
    "kl_max: {model: die, reference: sure, dataset: prompts, limit: 1}": "no column 'text'",
    "kl_max: {model: served, reference: sure, dataset: words, limit: 1}": "whole distributions",
    "metric_min: {metric: acc_norm, model: die, dataset: words, limit: 7}": "'acc_norm'",
    "self_kl_max: {model: die, dataset: lost, limit: 1}": "gone.jsonl",
    "ppl_max: {model: odd, dataset: words, limit: 1}": "'mine'",
}


def test_an_error_has_its_line_and_its_key(project: Project, models: Path, file: Path) -> None:
    project.add("models", odd=f"path: {models}/die, backend: mine")
    project.add("datasets", lost="path: gone.jsonl, prompt: '{q}'")
    file.write_text(project.settings + "".join(f"  - {gate}\n" for gate in WRONG))
    done = lmgate(file)
    assert done.exit_code == 1
    at = {text.strip(): number for number, text in enumerate(file.read_text().splitlines(), 1)}
    for number, (gate, words) in enumerate(WRONG.items()):
        lines = [line for line in done.stdout.splitlines() if words in line]
        assert lines, (words, done.stdout)
        assert lines[0].startswith(f"{file}:{at['- ' + gate]}: " if number < 8 else f"{file}:"), lines


def test_a_file_that_cannot_be_read_is_one_error(project: Project, file: Path) -> None:
    project.change("gates:\n", "gates: [\n")
    done = lmgate(file)
    assert (done.exit_code, "not valid YAML" in done.stdout) == (1, True), done.stdout
    assert "gone.yaml: cannot be read" in lmgate("gone.yaml").stdout
    file.rename(file.with_name("Lmgate.yaml"))
    assert "Lmgate.yaml" in str(lmgate().exception)


REGISTERED = """
    import numpy as np
    from pytest_lmgate import TextMetric

    def pytest_lmgate_metrics():
        return [TextMetric("mine", "higher", "mine", lambda texts, references, rows: np.ones((len(texts), 2)))]
"""


def test_a_metric_of_a_conftest_is_sound_and_a_conftest_that_fails_is_a_warning(project: Project, file: Path) -> None:
    gate = "  - metric_min: {metric: mine, model: die, dataset: asked, limit: 1}\n"
    project.add("datasets", asked="path: prompts.jsonl, prompt: '{q}', references: q")
    file.write_text(file.read_text() + gate)
    assert "expected a registered metric, got 'mine'" in lmgate().stdout
    project.write(conftest=REGISTERED)
    assert lmgate().stdout == f"{file}: 5 models, 3 datasets, 5 gates\n"
    project.write(conftest="import a_module_that_is_nowhere")
    done = lmgate()
    assert (done.exit_code, "warning: " in done.stdout) == (0, True)
    assert "a_module_that_is_nowhere" in done.stdout


def test_the_hook_of_pre_commit_runs_the_command_on_every_lmgate_yaml(file: Path) -> None:
    (hook,) = yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text())
    found = [bool(re.search(hook["files"], name)) for name in ("lmgate.yaml", "a/lmgate.yaml", "a/xlmgate.yaml")]
    assert found == [True, True, False]
    assert hook["language"] == "python"
    _, *arguments = shlex.split(hook["entry"])
    assert CliRunner().invoke(app, [*arguments, file.name]).exit_code == 0
