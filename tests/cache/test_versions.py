"""Two versions of the package on one cache: an entry is read or missed, never misread; a newer one is left alone."""

import hashlib
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pytest_lmgate.cache.store import Fingerprint, Store, StoredResult
from pytest_lmgate.cli.app import app

INGREDIENTS = {"data": "d", "model": "m"}
FINGERPRINT = Fingerprint.of("token-nll/5", INGREDIENTS)
ENTRY = StoredResult({"nll": np.array([9.0], dtype=np.float32)})


def write(folder: Path, suffix: str = ".lmgate", *, kind: str = "token-nll/5", number: int = 1) -> Path:
    """Write an entry of version 0.1 byte by byte, with none of the code that is tested."""
    text = json.dumps({"kind": kind, "ingredients": INGREDIENTS}, sort_keys=True)
    address = hashlib.sha256(text.encode()).hexdigest()
    metadata = {"fingerprint": text, "facts": '{"running_text": true}'}
    nll = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"__metadata__": metadata, "nll": nll}).encode()
    body = struct.pack("<Q", len(header)) + header + struct.pack("<2f", 0.5, 1.5)
    path = folder / "token-nll" / address[:2] / f"{address}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"LMGATE%d\n%s\n" % (number, hashlib.sha256(body).hexdigest().encode()) + body)
    return path


@pytest.fixture
def remarks() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, remarks: list[str]) -> Store:
    return Store(tmp_path / "cache", pytest.fail, remark=remarks.append)


def lmgate(folder: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["cache", *arguments, "--cache", str(folder)], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_an_entry_in_the_layout_of_version_0_1_is_read(store: Store):
    write(store.folder)
    write(store.folder, ".partial")
    for found in (store.get(FINGERPRINT), store.get_partial(FINGERPRINT)):
        assert found.arrays["nll"].tolist() == [0.5, 1.5]
        assert found.facts == {"running_text": True}


def test_an_entry_of_an_earlier_revision_of_a_measurement_is_missed_and_stays(store: Store, remarks: list[str]):
    old = write(store.folder, kind="token-nll/4")
    before = old.read_bytes()
    assert store.get(FINGERPRINT) is None
    assert store.explain(FINGERPRINT) == ["kind: token-nll/4 -> token-nll/5"]
    store.put(FINGERPRINT, ENTRY)
    assert old.read_bytes() == before
    assert remarks == []
    assert "2 entries checked, 0 broken" in lmgate(store.folder, "verify")


@pytest.mark.parametrize("number", [2, 999])
def test_an_entry_of_a_newer_format_is_missed_and_nothing_replaces_it(store: Store, remarks: list[str], number: int):
    newer = [write(store.folder, suffix, number=number) for suffix in (".lmgate", ".partial")]
    before = [path.read_bytes() for path in newer]
    assert store.get(FINGERPRINT) is store.get_partial(FINGERPRINT) is None
    store.put_partial(FINGERPRINT, ENTRY)
    store.put(FINGERPRINT, ENTRY)
    assert store.get(FINGERPRINT) is None
    assert [path.read_bytes() for path in newer] == before
    assert not (store.folder / "set-aside").exists()
    (remark,) = set(remarks)
    assert remark.startswith(f"{store.folder} has entries that a newer pytest-lmgate wrote: this version leaves them")


def test_the_commands_name_a_newer_entry_and_leave_it_where_it_is(store: Store):
    newer, ours = write(store.folder, number=2), write(store.folder, kind="token-nll/4")
    os.utime(newer, (1, 1))  # the first to go, were it ours
    assert " newer " in lmgate(store.folder, "ls")
    said = lmgate(store.folder, "verify")
    assert "1 entry checked, 0 broken, 1 of a newer pytest-lmgate not checked" in said
    assert f"{newer}: stays, since a newer pytest-lmgate wrote it" in lmgate(store.folder, "gc", "--max-size", "0")
    assert (newer.exists(), ours.exists()) == (True, False)
    assert "0 entries removed" in lmgate(store.folder, "clear", "--yes")
    assert newer.exists()
