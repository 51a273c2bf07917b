"""Digests of files, remembered: the second run on a 10 GB checkpoint reads no weights.

A digest is remembered by path, size, mtime, ctime, inode and device. The change time cannot be set back, so weights
rewritten in place are seen even where size and mtime are restored. A file changed within the last seconds is not
remembered, since a further change could share its timestamps (the "racy git" problem). A file on a read-only file
system is not remembered either: an image may fix all timestamps, and another image may be mounted in its place. Each
memory is one small file of its own, so that two processes never write the same one from different states.
"""

from __future__ import annotations

__all__ = ["FileDigests", "sha256"]

import contextlib
import hashlib
import os
import time
from pathlib import Path

from pytest_lmgate.cache.files import mark_ignored, read_sealed, sync, write_sealed
from pytest_lmgate.config.cache_key import CacheKey
from pytest_lmgate.errors import CacheError

_RACY_SECONDS = 2.0


class FileDigests:
    """Digests of files, remembered in a folder; with a key, only what it signed is believed."""

    def __init__(self, folder: Path, key: CacheKey | None = None) -> None:
        self._folder, self._key = folder, key

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of a file's bytes.

        Raises:
            OSError: The file cannot be read.
        """
        before = path.stat()
        if _is_read_only(path):
            return sha256(path)
        key = _key(path, before)
        with contextlib.suppress(OSError, CacheError, ValueError):
            named, digest = read_sealed(self._memory(key), self._key).decode("ascii").split()
            if named == key:  # the memory of another file may have been put here
                return digest
        # A process that has the file mapped can write to a page that is changed already without a new change time.
        # After the page is written back, the next write sets the change time again.
        sync(path)
        before = path.stat()
        digest = sha256(path)
        after = path.stat()
        settled = time.time() - max(after.st_mtime, after.st_ctime) > _RACY_SECONDS
        if settled and _identity(before) == _identity(after):
            key = _key(path, after)
            with contextlib.suppress(OSError):
                mark_ignored(self._folder.parent)
                write_sealed(self._memory(key), f"{key} {digest}".encode("ascii"), key=self._key)
        return digest

    def _memory(self, key: str) -> Path:
        return self._folder / key[:2] / key[2:40]


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


def _key(path: Path, status: os.stat_result) -> str:
    return hashlib.sha256(repr((os.path.realpath(path), _identity(status))).encode()).hexdigest()


def _is_read_only(path: Path) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except (AttributeError, OSError):  # not on Windows
        return False


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, which are read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
