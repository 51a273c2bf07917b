"""Where a measurement was made: GPUs of one machine are one kind of device."""

import platform
from pathlib import Path

import msgspec
import pytest

from pytest_lmgate.judge.provenance import _processor, changed_since, provenance


@pytest.mark.parametrize(("then", "now"), [("cuda", "cuda:1"), ("cuda:0", "cuda"), ("cuda:2", "cuda:0")])
def test_another_gpu_of_the_same_kind_is_no_change(tmp_path: Path, then: str, now: str) -> None:
    old, new = (provenance(tmp_path, device) for device in (then, now))
    assert old.device == new.device == "cuda"
    # An older file may hold the number.
    assert changed_since(msgspec.structs.replace(old, device=then), new) == ()


def test_without_git_and_the_systems_word_on_the_processor_a_measurement_still_says_where_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("pytest_lmgate.judge.provenance.Path", lambda _: tmp_path / "gone")
    _processor.cache_clear()
    found = provenance(tmp_path, "cpu")
    _processor.cache_clear()
    assert found.commit == ""
    assert found.hardware == (platform.processor() or platform.machine())


def test_another_kind_of_device_is_a_change(tmp_path: Path) -> None:
    old, new = (provenance(tmp_path, device) for device in ("cpu", "cuda:1"))
    assert "device: cpu then, cuda now" in changed_since(old, new)
