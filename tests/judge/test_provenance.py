"""Where a measurement was made: GPUs of one machine are one kind of device."""

import platform
from pathlib import Path

import pytest

from pytest_lmgate.engines.devices import processor
from pytest_lmgate.judge.provenance import provenance, run_now


def test_without_git_and_a_name_of_the_processor_a_place_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("pytest_lmgate.engines.devices.Path", lambda _: tmp_path / "gone")
    processor.cache_clear()
    found = provenance(tmp_path, "cpu")
    processor.cache_clear()
    assert found.commit == ""
    assert found.hardware == (platform.processor() or platform.machine())


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("json:s3://bucket/run.json?signature=abc", "'json:s3://bucket/run.json?***'"),
        ("http://user:pass@host/x", "'http://***@host/x'"),
        ("--token=abc", "'--token=***'"),
        ("--metric=acc", "--metric=acc"),
    ],
)
def test_the_command_of_a_run_is_kept_without_secrets(tmp_path: Path, word: str, shown: str):
    run = run_now(tmp_path, ["lmgate", "judge", word], stopped=True)
    assert (run.command, run.commit, run.stopped) == (f"lmgate judge {shown}", "", True)
