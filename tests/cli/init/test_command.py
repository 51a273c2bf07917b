"""What ``lmgate init`` refuses before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pytest_lmgate.cli.app import app
from pytest_lmgate.cli.init.files import write_new
from pytest_lmgate.errors import ConfigError


@pytest.fixture(autouse=True)
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin in a folder with a model and a text."""
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).write_text("{}")
    (tmp_path / "words.txt").write_text("words")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def init(*arguments: str, typed: str = "") -> Result:
    result = CliRunner().invoke(app, ["init", *arguments], input=typed)
    assert result.exit_code == 2, result.output
    assert sorted(path.name for path in Path().iterdir()) == ["model", "pytest.ini", "words.txt"]
    return result


def test_an_original_that_is_not_there_is_refused() -> None:
    assert "--against: gone does not exist" in init("--yes", "--against", "gone").stderr


@pytest.mark.parametrize("answer", ["2", "0", "modle"])
def test_an_answer_that_is_no_number_of_the_list_and_no_path_is_refused(answer: str) -> None:
    said = init("--dataset", "words.txt", typed=f"{answer}\n").stderr
    assert "1  model" in said
    assert f"expected a number from the list or a path, got '{answer}'" in said


@pytest.mark.parametrize("name", ["words.txt", "words.txt/lmgate.yaml"])
def test_a_file_that_cannot_be_made_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: cannot be written: "):
        write_new(Path(name), "mine")
    assert Path("words.txt").read_text() == "words"
