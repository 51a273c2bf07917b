"""Two machines that share a remote cache: the second measures nothing, and a store that is down changes no verdict."""

import shutil
from pathlib import Path

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, GATE, Project


def test_a_second_machine_measures_nothing(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    project.write(conftest=COUNT_MEASUREMENTS, test_gate=GATE)
    shared = tmp_path_factory.mktemp("shared")
    other = Project(tmp_path_factory.mktemp("elsewhere") / "checkout")
    shutil.copytree(project.folder, other.folder)
    remote = ("--lmgate-remote-cache", f"file://{shared}")
    project.run(*remote).expect(0, passed=1)
    assert project.measured == ["die"]
    other.run(*remote, "-n", "2", torch_free=True).expect(0, passed=1).says("cached")
    assert other.measured == []
    # What was read lies in the machine's own cache then.
    shutil.rmtree(shared)
    other.run(*remote, torch_free=True).expect(0, passed=1)
    assert other.measured == []


def test_a_store_that_cannot_be_used_is_said_once_and_changes_no_verdict(project: Project, tmp_path: Path) -> None:
    project.write(test_gate=GATE + GATE.replace("test_gate", "test_again").replace("60.5", "59.5"))
    (tmp_path / "shared").write_text("a file where a folder is needed")
    outcome = project.run("--lmgate-remote-cache", f"file://{tmp_path}/shared").expect(1, passed=1, failed=1)
    assert outcome.text.count("cannot be used") == 1, outcome.text
