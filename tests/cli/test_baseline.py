"""``lmgate baseline``: shown, compared with a commit, renamed and pruned, by the file's own reader and writer."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import BaselineError, ConfigError
from pytest_lmgate.judge.baseline import BaselineEntry, format_baseline, read_baseline
from tests.end_to_end.projects import git
from tests.judge.records import ENTRY

OTHER = replace(ENTRY, metric="bleu", value=40.0)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    path = tmp_path / "lmgate-baseline.json"
    path.write_text(format_baseline({"t.py::test_a": ENTRY, "t.py::test_b": OTHER}), encoding="utf-8")
    return path


def lmgate(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["baseline", *arguments])
    assert result.exit_code == code, result.output
    return result


def test_show_lists_the_entries(file: Path) -> None:
    header, first, second, total = lmgate("show").stdout.splitlines()
    assert header.split() == ["value", "scored", "model", "dataset", "measured", "gate"]
    assert first.split() == ["2", "100", "tokens", "int8", "words", "2026-01-31", "abc", "t.py::test_a"]
    assert second.split()[0] == "40"
    assert total == f"{file}: 2 entries"
    found = json.loads(lmgate("show", "--json").stdout)["gates"]["t.py::test_a"]
    assert found["value"] == 2.0
    assert "clusters" not in found


def test_diff_says_old_and_new_and_whether_it_is_worse(file: Path) -> None:
    def changed(**entries: BaselineEntry) -> list[tuple[str, str, str]]:
        file.write_text(format_baseline({f"t.py::test_{name}": entry for name, entry in entries.items()}))
        changes = json.loads(lmgate("diff", "HEAD", "--json").stdout)["changes"]
        return [(each["gate"][-1], each["is"], each["change"] and f"{each['change']:.4g}") for each in changes]

    git(file.parent, "init", "-q")
    git(file.parent, "add", file.name)
    git(file.parent, "commit", "-qm", "baseline")
    assert "0 changes, 2 unchanged" in lmgate("diff").stdout
    assert changed(a=replace(ENTRY, value=2.2), b=replace(OTHER, value=30.0), c=ENTRY) == [
        ("a", "worse", "10"), ("b", "worse", "-25"), ("c", "new", None)
    ]  # fmt: skip
    rows = [line.split() for line in lmgate("diff").stdout.splitlines()]
    assert rows[1] == ["2", "2.2", "+10.00%", "worse", "t.py::test_a"]
    assert rows[3] == ["-", "2", "-", "new", "t.py::test_c"]
    assert changed(a=replace(ENTRY, value=1.9)) == [("a", "better", "-5"), ("b", "removed", None)]
    changed(a=replace(ENTRY, identity={"data": "other"}))
    assert "other data" in lmgate("diff").stdout
    # Only a session knows which way a metric of a conftest's gets worse.
    own = replace(ENTRY, metric="keyword_recall")
    changed(a=own)
    git(file.parent, "commit", "-qam", "own")
    assert changed(a=replace(own, value=2.2)) == [("a", "changed", "10")]


def failing(*arguments: str, **env: str) -> str:
    """Return the error that a command ends with."""
    found = CliRunner().invoke(app, ["baseline", *arguments], env=env)
    assert isinstance(found.exception, ConfigError | BaselineError)
    return str(found.exception)


def test_diff_without_git_outside_of_a_repository_or_with_an_unknown_commit_says_what_git_says(file: Path) -> None:
    assert "git rev-parse cannot be run" in failing("diff", PATH="")
    assert "not a git repository" in failing("diff", GIT_CEILING_DIRECTORIES=str(file.parents[1]))
    git(file.parent, "init", "-q")
    failing("diff", "--", "--output=x")
    assert not (file.parent / "x").exists()
    git(file.parent, "commit", "-q", "--allow-empty", "-m", "empty")
    assert {each["is"] for each in json.loads(lmgate("diff", "--json").stdout)["changes"]} == {"new"}


def test_rename_moves_an_entry_and_refuses_names_that_cannot_be(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()
    assert "'t.py::test_a'" in lmgate("rename", "t.py::test_aa", "x", code=2).stderr
    lmgate("rename", "t.py::test_a", "t.py::test_b", code=2)
    assert file.read_bytes() == before
    name = f"tests/{'long/' * 20}test_quality.py::test_a::no_regression:ppl[int8-words]"
    assert f"t.py::test_a renamed to {name}" in lmgate("rename", "t.py::test_a", name).stdout
    assert read_baseline(file) == {name: ENTRY, "t.py::test_b": OTHER}
    monkeypatch.setenv("COLUMNS", "20")
    assert name in lmgate("show").stdout, "names are whole, so that they can be copied"


def test_prune_removes_what_is_named_and_without_a_name_says_who_knows(file: Path) -> None:
    assert "pytest --lmgate-prune" in lmgate("prune", code=2).stderr
    lmgate("prune", "t.py::test_b")
    assert read_baseline(file) == {"t.py::test_a": ENTRY}
    before = file.read_bytes()
    lmgate("prune", "t.py::test_a", "nobody", code=2)
    assert file.read_bytes() == before
    file.write_text("{}")
    failing("prune", "x")
    assert file.read_text() == "{}", "a file that is no baseline stays"
