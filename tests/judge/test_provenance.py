"""Where a measurement was made: GPUs of one machine are one kind of device."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pytest_lmgate.judge.provenance import changed_since, provenance


@pytest.mark.parametrize(("then", "now"), [("cuda", "cuda:1"), ("cuda:0", "cuda"), ("cuda:2", "cuda:0")])
def test_another_gpu_of_the_same_kind_is_no_change(tmp_path: Path, then: str, now: str) -> None:
    old, new = (provenance(tmp_path, device) for device in (then, now))
    assert old.device == new.device == "cuda"
    # An older file may hold the number.
    assert changed_since(msgspec.structs.replace(old, device=then), new) == ()


def test_another_kind_of_device_is_a_change(tmp_path: Path) -> None:
    old, new = (provenance(tmp_path, device) for device in ("cpu", "cuda:1"))
    assert "device: cpu then, cuda now" in changed_since(old, new)
