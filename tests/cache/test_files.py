"""Durable and sealed files: the old one or the new one, whole, or an error."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_lmgate.cache.files import read_sealed, write_durably, write_kept, write_sealed
from pytest_lmgate.errors import CacheError, UnsignedError
from pytest_lmgate.settings.session import CacheKey


def test_data_is_on_the_disk_before_its_name_and_that_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        steps.append("folder" if is_folder else f"data {os.fstat(descriptor).st_size}")
        fsync(descriptor)

    def watched_replace(source: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    write_durably(tmp_path / "a", b"four")
    assert steps == ["data 4", "rename", "folder"]


@pytest.mark.parametrize(("owner", "step"), [(os, "fsync"), (Path, "replace")])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_between_the_steps_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, step: str, error: BaseException
):
    path = tmp_path / "a"
    write_durably(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, Mock(side_effect=error))
        with pytest.raises(type(error)):
            write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


_KILLED = """
import os, sys
from pathlib import Path
from pytest_lmgate.cache.files import write_durably
step, when = sys.argv[2:]
owner = {"fsync": os, "replace": Path}[step]
real = getattr(owner, step)
def killed(*args):
    if when == "after":
        real(*args)
    os.kill(os.getpid(), 9)
setattr(owner, step, killed)
write_durably(Path(sys.argv[1]), b"new")
"""


@pytest.mark.parametrize(
    ("step", "when", "found"), [("fsync", "before", b"old"), ("fsync", "after", b"old"), ("replace", "after", b"new")]
)
def test_a_process_killed_between_steps_leaves_the_old_or_new_file(tmp_path: Path, step: str, when: str, found: bytes):
    path = tmp_path / "a"
    write_durably(path, b"old")
    status = subprocess.run([sys.executable, "-c", _KILLED, str(path), step, when], check=False).returncode
    assert status == -9
    assert path.read_bytes() == found
    write_durably(path, b"next")  # what was left behind is in nobody's way
    assert path.read_bytes() == b"next"


KEY = CacheKey(b"sixteen bytes at least")


def test_a_sealed_file_is_the_format_the_checksum_a_signature_of_name_and_body_and_the_body(tmp_path: Path):
    path = tmp_path / "entry.lmgate"
    # SHA-256 of "abc": FIPS 180-2, appendix B.1.
    checksum = b"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    # printf 'entry.lmgate\0abc' | openssl dgst -sha256 -hmac 'sixteen bytes at least'
    signature = b"dbef75f321cdc26608714428eb3a43ed058f47cb0dd5295243f34c693ceaebdf"
    for key, signed in ((None, b""), (KEY, b" " + signature)):
        write_sealed(path, b"abc", key=key)
        assert path.read_bytes() == b"LMGATE1\n" + checksum + signed + b"\nabc"


@pytest.mark.parametrize("key", [None, KEY])
def test_a_sealed_file_cut_anywhere_or_with_any_bit_flipped_is_not_read(tmp_path: Path, key: CacheKey | None):
    path = tmp_path / "a"
    write_sealed(path, b"a body of some bytes", key=key)
    whole = path.read_bytes()
    flipped = (
        whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at in range(len(whole)) for bit in range(8)
    )
    for damaged in [*(whole[:length] for length in range(len(whole))), whole + b"\0", *flipped]:
        path.write_bytes(damaged)
        with pytest.raises(CacheError):
            read_sealed(path, key)
    path.write_bytes(whole)
    assert read_sealed(path, key) == read_sealed(path) == b"a body of some bytes"


def test_a_signed_file_is_not_read_with_another_key_under_another_name_or_without_its_signature(tmp_path: Path):
    path, other = tmp_path / "a", tmp_path / "b"
    write_sealed(path, b"body", key=KEY)
    with pytest.raises(CacheError, match=r"a: its signature does not match LMGATE_CACHE_KEY"):
        read_sealed(path, CacheKey(b"another key of many bytes"))
    path.replace(other)
    with pytest.raises(CacheError, match=r"b: its signature does not match LMGATE_CACHE_KEY"):
        read_sealed(other, KEY)
    write_sealed(path, b"body")
    with pytest.raises(UnsignedError):
        read_sealed(path, KEY)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, b"a\nb\n"),
        (b"x\n", b"a\nb\n"),
        (b"x\r\ny\r\n", b"a\r\nb\r\n"),
        (b"x\r\ny", b"a\r\nb"),
        (b"x\ny", b"a\nb"),
        (b"x\r\ny\n", b"a\nb\n"),
    ],
)
def test_a_file_that_people_keep_has_its_ends_of_lines_and_stays_where_its_link_leads(
    tmp_path: Path, before: bytes | None, after: bytes
):
    target, link = tmp_path / "inner" / "target", tmp_path / "link"
    target.parent.mkdir()
    if before is not None:
        target.write_bytes(before)
        target.chmod(0o640)
    link.symlink_to(target)
    write_kept(link, "a\nb\n")
    assert target.read_bytes() == after
    assert link.is_symlink()
    assert before is None or target.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in target.parent.iterdir()] == ["target"]
