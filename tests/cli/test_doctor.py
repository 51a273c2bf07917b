"""``lmgate doctor``: a sound project is sound, and each fault is named with what to do."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "words.txt").write_text("words")
    (tmp_path / "lmgate.yaml").write_text(
        "models: {m: {path: model}}\ndatasets: {words: {path: words.txt}}\n"
        "gates: [{ppl_max: {model: m, dataset: words, limit: 3}}]\n"
    )
    return tmp_path


def findings(code: int) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == code, result.output
    found = json.loads(result.stdout)
    assert found["ok"] == (code == 0)
    return {each["topic"]: each for each in found["findings"]}


def test_a_sound_project_is_sound(project: Path) -> None:
    found = findings(0)
    assert found["lmgate.yaml"]["fact"] == f"{project / 'lmgate.yaml'}: 1 model, 1 dataset, 1 gate"
    assert found["rootdir"]["fact"] == f"{project}, by pytest.ini"
    assert found["cache"]["fact"].endswith(".lmgate_cache: 0 entries, 0 B")
    assert "torch " in found["libraries"]["fact"]
    assert f"pytest {pytest.__version__}" in found["libraries"]["fact"]
    assert "GB free" in found["device"]["fact"]
    assert CliRunner().invoke(app, ["doctor"]).stdout.endswith("nothing is wrong\n")


@pytest.mark.parametrize(
    ("file", "text", "topic", "says"),
    [
        ("lmgate.yaml", "modells: {}", "lmgate.yaml", "'models'"),
        ("lmgate.yaml", "models: {m: {path: gone}}", "model", "gone does not exist"),
        ("lmgate.yaml", "datasets: {d: {path: gone.txt}}", "dataset", "gone.txt does not exist"),
        ("lmgate.yaml", "gates: [{ppl_max: {model: m}}]", "gate", "'dataset'"),
        ("lmgate.yaml", "models: {m: {path: model, backend: vllm}}", "model", "m: "),
        ("lmgate-baseline.json", "{", "baseline", "not whole JSON"),
        ("lmgate.yaml", "models: {m: {path: model, key: x}}", "model", "models.m."),
        ("pytest.ini", "[pytest]\nlmgate_cache = words.txt/x", "cache", "0 entries"),
        (".lmgate_cache", "a file in the place of the folder", "cache", "Not a directory"),
        (f".lmgate_cache/token-nll/ab/{'a' * 64}.lmgate", "broken", "cache", "1 entry"),
    ],
)
def test_each_fault_is_named_where_it_is(project: Path, file: str, text: str, topic: str, says: str) -> None:
    (project / file).parent.mkdir(parents=True, exist_ok=True)
    (project / file).write_text(text)
    found = findings(1)[topic]
    assert found["wrong"]
    assert says in found["fact"]
    assert found["advice"]
    assert CliRunner().invoke(app, ["doctor"]).stdout.endswith("1 thing wrong\n")


def test_a_package_that_pytest_does_not_load_and_a_short_key_are_wrong(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_lmgate.cli.project.entry_points", lambda group: ())
    monkeypatch.setenv("LMGATE_CACHE_KEY", "short")
    found = findings(1)
    assert "pip" in found["plugin"]["advice"]
    assert "16 bytes" in found["cache"]["fact"]


def test_an_engine_of_a_conftest_is_no_fault_and_without_a_file_it_says_how_to_make_one(project: Path) -> None:
    (project / "lmgate.yaml").write_text("models: {m: {path: model, backend: own}}\n")
    assert "'own'" in findings(0)["model"]["fact"]
    (project / "lmgate.yaml").unlink()
    assert "lmgate init" in findings(0)["lmgate.yaml"]["advice"]
