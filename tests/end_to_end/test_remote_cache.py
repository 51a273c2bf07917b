"""Two machines that share a remote cache: the second measures nothing."""

import shutil

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
