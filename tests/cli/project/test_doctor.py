"""``lmgate doctor``: a sound project is sound, and each fault is named with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("LMGATE_CACHE", "LMGATE_CACHE_KEY", "LMGATE_CONFIG", "LMGATE_BASELINE"):
        monkeypatch.delenv(name, raising=False)
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
    assert f"pytest {pytest.__version__}" in found["beside"]["fact"]
    assert "GB free" in found["device"]["fact"]
    text = CliRunner().invoke(app, ["doctor"])
    assert text.exit_code == 0
    assert text.stdout.endswith("nothing is wrong\n")


def test_paths_that_lead_nowhere_are_wrong(project: Path) -> None:
    (project / "model").rmdir()
    (project / "words.txt").unlink()
    found = findings(1)
    assert found["model"]["fact"] == f"m: {project / 'model'} does not exist"
    assert found["dataset"]["advice"] == "Mend datasets.words.path, or bring the files."
    assert CliRunner().invoke(app, ["doctor"]).stdout.endswith("2 things wrong\n")


@pytest.mark.parametrize(
    ("file", "text", "topic", "says"),
    [
        ("lmgate.yaml", "modells: {}", "lmgate.yaml", "unknown key (did you mean 'models'?)"),
        ("lmgate.yaml", "gates: [{ppl_max: {model: m}}]", "gate", "missing a required argument"),
        ("lmgate.yaml", "models: {m: {path: model, backend: vllm}}", "model", "its engine vllm is not installed"),
        ("lmgate-baseline.json", "{", "baseline", "not whole JSON"),
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


def test_a_key_that_is_too_short_is_wrong(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMGATE_CACHE_KEY", "short")
    assert "at least 16 bytes" in findings(1)["cache"]["fact"]


def test_a_folder_without_lmgate_yaml_is_told_how_to_make_one(project: Path) -> None:
    (project / "lmgate.yaml").unlink()
    assert findings(0)["lmgate.yaml"]["advice"] == "`lmgate init` makes one."


def test_an_engine_that_only_a_conftest_may_know_is_no_fault(project: Path) -> None:
    (project / "lmgate.yaml").write_text("models: {m: {path: model, backend: own}}\n")
    found = findings(0)["model"]
    assert "'own'" in found["fact"]
    assert found["advice"] == "Only pytest sees whether a conftest registers it."


def test_a_key_that_the_engine_does_not_take_is_wrong(project: Path) -> None:
    (project / "lmgate.yaml").write_text("models: {m: {path: model, backend: vllm, model: served}}\n")
    assert "the engine vllm does not take it" in findings(1)["model"]["fact"]


def test_a_library_that_is_broken_is_wrong(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> str:
        raise ImportError("libtorch.so: no such file")

    monkeypatch.setattr("pytest_lmgate.backends.hf.models.device.resolve_device", broken)
    found = findings(1)["device"]
    assert (found["fact"], found["wrong"]) == ("libtorch.so: no such file", True)


def test_a_cache_that_cannot_be_written_is_wrong(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    found = findings(1)["cache"]
    assert found["advice"] == f"{project} cannot be written: every session measures anew."
