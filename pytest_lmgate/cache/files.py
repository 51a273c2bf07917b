"""Durable files: written to a temporary name, fsynced, renamed; a reader sees the old file or the new one, whole.

A sealed file carries the SHA-256 of its body, so that truncation and flipped bits are seen. With a key it is also
signed; readers that hold the key reject unsigned files. No pickle anywhere. A lock is held by one process.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import filelock

from pytest_lmgate.errors import CacheError, NewerError, UnsignedError

if TYPE_CHECKING:
    from pytest_lmgate.settings.session import CacheKey

_SEAL = re.compile(rb"LMGATE1\n([0-9a-f]{64})(?: ([0-9a-f]{64}))?\n")  # checksum of the body, and a signature
_LONGEST_SEAL = 256
_FORMAT = re.compile(rb"LMGATE([1-9][0-9]{0,8})\n")
_LF = re.compile(rb"(?<!\r)\n")
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def write_durably(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file, given in parts, so that a crash leaves the old or the new one and nothing else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Made by open(), not by tempfile: the file gets the permissions that the user's umask gives any other.
    temporary = path.with_name(_temporary_name(path, uuid.uuid4().hex))
    try:
        with temporary.open("xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):  # what was there keeps the permissions it had
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync(path.parent)


def write_kept(path: Path, text: str) -> None:
    """Write a file that people keep, whole or not at all, through a link to where it leads.

    The lines end as those of the file that was there do, CRLF where each of them does, and the last one where it did.
    """
    target = path.resolve()
    data, before = text.encode(), target.read_bytes() if target.is_file() else b""
    if b"\r\n" in before and not _LF.search(before):
        data = _LF.sub(b"\r\n", data)
    if before and not before.endswith(b"\n"):
        data = data.rstrip(b"\r\n")
    write_durably(target, data)


def inside(root: Path, *names: str) -> Path:
    """Return the path of a file below a folder; OSError if a folder on the way is a link, which may lead out of it."""
    path = root
    for name in names[:-1]:
        if (path := path / name).is_symlink():
            raise OSError(errno.ELOOP, "its folder is a link", str(path))
    return path / names[-1]


def mark_ignored(folder: Path) -> None:
    marker = folder / ".gitignore"
    if not marker.exists():
        write_durably(marker, b"# made by pytest-lmgate\n*\n")


def remove_leftovers(path: Path) -> None:
    """Remove partial files of killed processes; nobody else may be writing the file now."""
    before, after = map(re.escape, _temporary_name(path, "\0").split("\0"))
    pattern = re.compile(f"{before}[0-9a-f]{{32}}{after}")
    with contextlib.suppress(OSError):
        for other in path.parent.iterdir():
            if pattern.fullmatch(other.name):
                other.unlink(missing_ok=True)


def write_sealed(path: Path, *body: bytes | memoryview, key: CacheKey | None = None) -> None:
    """Write a body, given in parts, durably with its checksum and, with a key, its signature."""
    signature = b"" if key is None else b" " + key.signature(path.name, *body)
    write_durably(path, b"LMGATE1\n" + _checksum(*body) + signature + b"\n", *body)


def read_sealed(path: Path, key: CacheKey | None = None) -> bytes:
    """Return the body of a sealed file, or raise a `CacheError`; without a key the checksum is enough."""
    _require_file(path)
    with path.open("rb", buffering=0) as file:  # a buffer would be joined with the rest, which copies it
        seal = _seal(path, file.read(_LONGEST_SEAL))
        file.seek(seal.end())
        body = file.readall()
    checksum, signature = seal.groups()
    if checksum != _checksum(body):
        raise CacheError(f"{path}: its checksum does not match ({len(body):,} bytes): truncated or altered")
    if key is not None:
        if signature is None:
            raise UnsignedError(f"{path}: it has no signature")
        if not key.fits(signature, path.name, body):
            raise CacheError(f"{path}: its signature does not match LMGATE_CACHE_KEY: another key, or a forged file")
    return body


def read_head(path: Path) -> bytes:
    """Return the beginning of the body of a sealed safetensors file, with all of its head; nothing is checked."""
    _require_file(path)
    with path.open("rb") as file:
        seal = _seal(path, file.read(_LONGEST_SEAL))
        file.seek(seal.end())
        length = file.read(8)
        return length + file.read(min(int.from_bytes(length, "little"), path.stat().st_size))


def is_newer(path: Path) -> bool:
    """Whether a later version of this package wrote a sealed file, in an unknown format."""
    try:
        read_head(path)
    except (OSError, CacheError) as error:
        return isinstance(error, NewerError)
    return False


def _require_file(path: Path) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):  # a pipe would never end, and a link leads out of the cache
        raise CacheError(f"{path}: not a file")


def _seal(path: Path, data: bytes) -> re.Match[bytes]:
    if (seal := _SEAL.match(data)) is not None:
        return seal
    newer = _FORMAT.match(data)
    if newer is not None and int(newer[1]) > 1:
        raise NewerError(f"{path}: a later version of pytest-lmgate wrote it")
    raise CacheError(f"{path}: not a cache entry of this format")


def _temporary_name(path: Path, unique: str) -> str:
    return f".{path.name[:96]}-{unique}.tmp"


def _checksum(*body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for part in body:
        digest.update(part)
    return digest.hexdigest().encode()


def sync(path: Path) -> None:
    """Sync a file's changed pages, or a folder's renames if possible."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def hold(
    path: Path,
    waiting: Callable[[], None] = lambda: None,
    remark: Callable[[str], None] = lambda _: None,
    *,
    is_removed: bool = False,
) -> Iterator[None]:
    """Hold the lock of a path: the system's, or a lock file if the file system has none.

    `waiting` is called before a wait, and what it raises ends the attempt. A lock file that `is_removed` stays only if
    its process is killed, and any user may lock it then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock: filelock.BaseFileLock = filelock.FileLock(path, mode=0o666) if is_removed else filelock.FileLock(path)
    if (why := _why_no_locks(path.parent)) is not None:
        lock = filelock.SoftFileLock(path.with_suffix(".marker"))
        remark(
            f"the file system of {path.parent} has no locks ({why}): lock files replace them; if a killed process "
            "left one, remove it"
        )
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        waiting()
        lock.acquire()
    try:
        yield
    finally:
        if is_removed:  # while it is held: who waits for the removed file sees that, and makes another
            with contextlib.suppress(OSError):
                path.unlink()
        lock.release()


@functools.cache
def _why_no_locks(folder: Path) -> str | None:
    """Return why the system cannot lock the files of a folder; None if it can."""
    try:
        import fcntl
    except ImportError:  # Windows has locks
        return None
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:  # earlier filelocks would wait for ever
                raise
            return error.strerror
    return None
