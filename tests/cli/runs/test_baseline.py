"""``lmgate baseline``: shown, compared with a commit, renamed and pruned, by the file's own reader and writer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import BaselineError
from pytest_lmgate.gates.baseline import BaselineEntry, Provenance, format_baseline
from pytest_lmgate.judge.baselines import read_baseline

ENTRY = BaselineEntry(
    metric="ppl",
    model="int8",
    dataset="words",
    value=2.0,
    n=100,
    unit="token",
    signature="protocol:sliding",
    identity={"data": "d"},
    provenance=Provenance("2026-01-31", "abc", "cpu", "a processor", {}),
    clusters=[[100, 69.3]],
)
OTHER = msgspec.structs.replace(ENTRY, metric="bleu", value=40.0)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("LMGATE_BASELINE", raising=False)
    path = tmp_path / "lmgate-baseline.json"
    path.write_text(format_baseline({"t.py::test_a": ENTRY, "t.py::test_b": OTHER}), encoding="utf-8")
    return path


def lmgate(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["baseline", *arguments])
    assert result.exit_code == code, result.output
    return result


def git(folder: Path, *arguments: str) -> None:
    named = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    subprocess.run(["git", *named, *arguments], cwd=folder, check=True, capture_output=True)


def test_show_lists_the_entries(file: Path) -> None:
    header, first, second, total = lmgate("show").stdout.splitlines()
    assert header.split() == ["value", "scored", "model", "dataset", "measured", "gate"]
    assert first.split() == ["2", "100", "tokens", "int8", "words", "2026-01-31", "abc", "t.py::test_a"]
    assert second.split()[0] == "40"
    assert total == f"{file}: 2 entries"
    found = json.loads(lmgate("show", "--json").stdout)["gates"]["t.py::test_a"]
    assert found["value"] == 2.0
    assert "clusters" not in found


def test_names_of_gates_are_whole_on_a_narrow_terminal_so_that_they_can_be_copied(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    name = f"tests/{'long/' * 20}test_quality.py::test_a::no_regression:ppl[int8-words]"
    lmgate("rename", "t.py::test_a", name)
    assert name in lmgate("show").stdout


def test_a_missing_file_has_no_entries_and_the_command_that_makes_it(file: Path) -> None:
    file.unlink()
    assert "0 entries; the file does not exist: pytest --lmgate-update-new-only makes it" in lmgate("show").stdout


def test_diff_says_old_and_new_and_whether_it_is_worse(file: Path) -> None:
    git(file.parent, "init", "-q")
    git(file.parent, "add", file.name)
    git(file.parent, "commit", "-qm", "baseline")
    assert "0 changes, 2 unchanged" in lmgate("diff").stdout
    worse, better = (msgspec.structs.replace(ENTRY, value=value) for value in (2.2, 1.9))
    lower = msgspec.structs.replace(OTHER, value=30.0)
    other_data = msgspec.structs.replace(ENTRY, identity={"data": "other"})
    file.write_text(format_baseline({"t.py::test_a": worse, "t.py::test_b": lower, "t.py::test_c": ENTRY}))
    rows = [line.split() for line in lmgate("diff").stdout.splitlines()]
    assert rows[1:-1] == [
        ["2", "2.2", "+10.00%", "worse", "t.py::test_a"],
        ["40", "30", "-25.00%", "worse", "t.py::test_b"],
        ["-", "2", "-", "new", "t.py::test_c"],
    ]
    file.write_text(format_baseline({"t.py::test_a": better}))
    changes = json.loads(lmgate("diff", "HEAD", "--json").stdout)["changes"]
    assert [(each["gate"][-1], each["is"]) for each in changes] == [("a", "better"), ("b", "removed")]
    assert changes[0]["change"] == pytest.approx(-5)
    file.write_text(format_baseline({"t.py::test_a": other_data}))
    assert "other data or protocol" in lmgate("diff").stdout


def test_diff_with_a_commit_that_has_no_such_file_has_only_new_entries(file: Path) -> None:
    git(file.parent, "init", "-q")
    git(file.parent, "commit", "-qm", "empty", "--allow-empty")
    assert "2 changes, 0 unchanged" in lmgate("diff").stdout


def test_diff_outside_of_a_repository_or_with_an_unknown_commit_says_what_git_says(file: Path) -> None:
    found = CliRunner().invoke(app, ["baseline", "diff"], env={"GIT_CEILING_DIRECTORIES": str(file.parents[1])})
    assert isinstance(found.exception, BaselineError)
    assert "not a git repository" in str(found.exception)
    git(file.parent, "init", "-q")
    found = CliRunner().invoke(app, ["baseline", "diff", "--", "--output=x"])
    assert isinstance(found.exception, BaselineError)
    assert not (file.parent / "x").exists()


def test_rename_moves_an_entry_and_nothing_else(file: Path) -> None:
    out = lmgate("rename", "t.py::test_a", "t.py::test_new").stdout
    assert "t.py::test_a renamed to t.py::test_new" in out
    assert read_baseline(file) == {"t.py::test_new": ENTRY, "t.py::test_b": OTHER}


def test_rename_refuses_what_is_not_there_and_what_is_there_already(file: Path) -> None:
    before = file.read_bytes()
    said = " ".join(lmgate("rename", "t.py::test_aa", "x", code=2).stderr.split())
    assert "no entry is called 't.py::test_aa' (did you mean 't.py::test_a'?)" in said
    assert "has an entry already" in " ".join(lmgate("rename", "t.py::test_a", "t.py::test_b", code=2).stderr.split())
    assert file.read_bytes() == before


def test_prune_removes_what_is_named_and_without_a_name_says_who_knows(file: Path) -> None:
    assert "pytest --lmgate-prune" in lmgate("prune", code=2).stderr
    lmgate("prune", "t.py::test_b")
    assert read_baseline(file) == {"t.py::test_a": ENTRY}
    before = file.read_bytes()
    lmgate("prune", "t.py::test_a", "nobody", code=2)
    assert file.read_bytes() == before


def test_a_file_that_is_no_baseline_is_an_error_and_stays(file: Path) -> None:
    file.write_text("{}")
    found = CliRunner().invoke(app, ["baseline", "prune", "x"])
    assert isinstance(found.exception, BaselineError)
    assert file.read_text() == "{}"


def test_diff_of_a_metric_that_only_a_session_knows_says_that_it_changed(file: Path) -> None:
    git(file.parent, "init", "-q")
    own = msgspec.structs.replace(ENTRY, metric="keyword_recall")
    file.write_text(format_baseline({"t.py::test_a": own}))
    git(file.parent, "add", file.name)
    git(file.parent, "commit", "-qm", "baseline")
    file.write_text(format_baseline({"t.py::test_a": msgspec.structs.replace(own, value=2.2)}))
    (change,) = json.loads(lmgate("diff", "--json").stdout)["changes"]
    assert (change["is"], change["change"]) == ("changed", pytest.approx(10))


def test_diff_without_git_says_that_it_cannot_be_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(file.parent))
    failed = CliRunner().invoke(app, ["baseline", "diff"]).exception
    assert isinstance(failed, BaselineError)
    assert f"{file}: git rev-parse cannot be run: " in str(failed)
