"""Hidden states on disk: what is written is read, in a file without a name, within its bounds."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pytest_lmgate.backends import spool
from pytest_lmgate.backends.spool import Spool, room
from pytest_lmgate.errors import EngineError


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_what_is_written_is_read_bit_for_bit_in_any_order(dtype: torch.dtype, tmp_path: Path) -> None:
    states = torch.randn(10, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    with Spool(tmp_path) as file:
        file.write(4, states[4:])
        file.write(0, states[:4])

        assert torch.equal(file.read(2, 5), states[2:7])
        assert torch.equal(file.read(0, 10), states)
        assert file.read(0, 1).dtype == dtype


@pytest.mark.skipif(os.name != "posix", reason="elsewhere the file has a name until it is closed")
def test_the_file_has_no_name_even_while_it_is_open(tmp_path: Path) -> None:
    with Spool(tmp_path) as file:
        file.write(0, torch.ones(1000, 100))
        assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_a_strided_tensor_is_written_as_it_reads(tmp_path: Path) -> None:
    states = torch.arange(24.0).view(4, 6)
    with Spool(tmp_path) as file:
        file.write(0, states.t())
        assert torch.equal(file.read(0, 6), states.t())


def test_the_room_is_bounded_and_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for free, expected in ((2**20, 2**19), (2**50, 8 * 2**30)):
        monkeypatch.setattr(spool.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert room(tmp_path) == expected


def test_a_folder_that_cannot_be_written_to_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"hidden states cannot be kept in .*gone.*free some of the disk"):
        Spool(tmp_path / "gone")


def test_a_full_disk_is_an_error_that_says_what_to_do() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full, which is always full")
    with Spool(None) as file:
        file._file.close()
        with Path("/dev/full").open("wb", buffering=0) as full:
            file._file = full  # type: ignore[assignment]
            with pytest.raises(EngineError, match="No space left on device; both models do not fit in memory"):
                file.write(0, torch.ones(1000, 100))


def test_a_file_cut_short_is_an_error(tmp_path: Path) -> None:
    with Spool(tmp_path) as file:
        file.write(0, torch.ones(3, 2))
        with pytest.raises(EngineError, match="the spool ends early"):
            file.read(2, 2)
