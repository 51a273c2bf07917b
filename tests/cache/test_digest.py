"""Digests of files: exact, and remembered only where nothing can have changed."""

import hashlib
import mmap
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_lmgate.cache.store import FileDigests
from tests.file_systems import notes_writes_by_mapping

_opened: list[str] | None = None


def _note_opened(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(str(arguments[0]))


sys.addaudithook(_note_opened)  # the interpreter's own account of what is opened; it cannot be taken off again


@pytest.fixture
def opened() -> Iterator[list[str]]:
    global _opened
    _opened = []
    yield _opened
    _opened = None


@pytest.fixture(autouse=True)
def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute from now, when the files of the test are no longer fresh."""
    now = time.time
    monkeypatch.setattr("pytest_lmgate.cache.store.time.time", lambda: now() + 60)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "weights").write_bytes(b"weights")
    return tmp_path / "weights"


@pytest.fixture
def digests(tmp_path: Path) -> FileDigests:
    return FileDigests(tmp_path / "digests")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_the_second_time_the_file_is_not_read(tmp_path: Path, weights: Path, digests: FileDigests, opened: list[str]):
    first = digests.digest(weights)
    assert str(weights) in opened
    opened.clear()
    assert FileDigests(tmp_path / "digests").digest(weights) == first  # as the next process sees it
    assert str(weights) not in opened
    assert opened  # the memory was


def test_a_file_that_was_just_written_is_not_remembered(
    tmp_path: Path, weights: Path, digests: FileDigests, opened: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()
    for _ in range(2):
        opened.clear()
        assert digests.digest(weights) == _sha256(b"weights")
        assert str(weights) in opened
    assert not (tmp_path / "digests").exists()


def test_a_file_that_changes_while_it_is_read_is_read_again(
    weights: Path, digests: FileDigests, monkeypatch: pytest.MonkeyPatch
):
    def read_and_changed(path: Path) -> str:
        digest = _sha256(path.read_bytes())
        time.sleep(0.02)
        path.write_bytes(b"behind")
        return digest

    with monkeypatch.context() as patch:
        patch.setattr("pytest_lmgate.cache.store.sha256", read_and_changed)
        digests.digest(weights)
    assert digests.digest(weights) == _sha256(b"behind")


def test_weights_rewritten_in_place_are_seen_though_size_and_mtime_are_the_same(weights: Path, digests: FileDigests):
    status = weights.stat()
    assert digests.digest(weights) == _sha256(b"weights")
    time.sleep(0.02)  # the clock of the file system ticks in milliseconds
    with weights.open("r+b") as file:
        file.write(b"WEIGHTS")
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    now = weights.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (status.st_size, status.st_mtime_ns, status.st_ino)
    assert digests.digest(weights) == _sha256(b"WEIGHTS")


def test_a_memory_that_was_damaged_is_not_believed(tmp_path: Path, weights: Path, digests: FileDigests):
    right = digests.digest(weights)
    (memory,) = (file for file in (tmp_path / "digests").rglob("*") if file.is_file())
    whole = memory.read_bytes()
    for damaged in (b"", whole[:-1], whole.replace(right[:4].encode(), b"0000"), b"\xff" * len(whole)):
        memory.write_bytes(damaged)
        assert digests.digest(weights) == right
        assert memory.read_bytes() == whole  # and is mended


def test_a_link_that_is_turned_to_another_file_is_seen(tmp_path: Path, digests: FileDigests):
    link = tmp_path / "latest"
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / name)
        assert digests.digest(link) == _sha256(name.encode())


def test_a_write_through_a_mapping_that_was_there_before_is_seen(tmp_path: Path, digests: FileDigests):
    if not notes_writes_by_mapping(tmp_path):
        pytest.skip("this file system (tmpfs) notes no change by a mapping; docs/cache.md says so")
    path = tmp_path / "weights"
    path.write_bytes(b"a" * 4096)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0:1] = b"b"  # the page is changed and not written back: a further change may keep the change time
        before = digests.digest(path)
        time.sleep(0.02)
        mapped[1:2] = b"b"
        assert digests.digest(path) == _sha256(b"bb" + b"a" * 4094) != before
