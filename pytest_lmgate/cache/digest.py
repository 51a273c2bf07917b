"""Digests of files, remembered: the second run on a 10 GB checkpoint reads no weights.

A digest is remembered by path, size, mtime, ctime and inode. The change time cannot be set back, so weights rewritten
in place are seen even where size and mtime are restored. A file changed within the last seconds is not remembered,
since a further change could share its timestamps (the "racy git" problem). Each memory is one small file of its own,
so that two processes never write the same one from different states.
"""

from __future__ import annotations

__all__ = ["FileDigests"]

import contextlib
import hashlib
import os
import re
import time
from pathlib import Path

from pytest_lmgate.cache.files import read_sealed, write_sealed
from pytest_lmgate.errors import CacheError

_RACY_SECONDS = 2.0
_CONTENT_NAME = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


class FileDigests:
    """Digests of files, remembered in a folder; a folder that cannot be written only costs time."""

    def __init__(self, folder: Path) -> None:
        """Remember in `folder`, which is made when first needed."""
        self._folder = folder

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of a file's bytes, or its blob name in the hub's cache, which is made of its content.

        Raises:
            OSError: The file cannot be read.
        """
        if (blob := _hub_blob(path)) is not None:
            return f"blob:{blob}"
        before = path.stat()
        memory = self._folder / _memory_name(path, before)
        with contextlib.suppress(OSError, CacheError, UnicodeDecodeError):
            return read_sealed(memory).decode("ascii")
        digest = _sha256(path)
        after = path.stat()
        settled = time.time() - max(after.st_mtime, after.st_ctime) > _RACY_SECONDS
        if settled and _identity(before) == _identity(after):
            with contextlib.suppress(OSError):
                write_sealed(memory, digest.encode("ascii"))
        return digest


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


def _memory_name(path: Path, status: os.stat_result) -> str:
    key = hashlib.sha256(repr((os.path.realpath(path), _identity(status))).encode()).hexdigest()
    return f"{key[:2]}/{key[2:40]}"


def _hub_blob(path: Path) -> str | None:
    """Name of the blob behind a file of the hub's cache: ``models--x/snapshots/COMMIT/file -> ../../blobs/DIGEST``.

    Only a name that is a SHA-1 or SHA-256 tells of the content; a server may have given another. And only of a blob as
    it was when the link to it was made: people edit a snapshot's config, and write through the link.
    """
    if not path.is_symlink() or not any(folder.name == "snapshots" for folder in path.parents):
        return None
    blob = path.resolve()
    if blob.parent.name != "blobs" or not _CONTENT_NAME.fullmatch(blob.name):
        return None
    content, link = blob.stat(), path.lstat()
    untouched = content.st_mtime_ns <= link.st_mtime_ns and content.st_ctime_ns <= link.st_ctime_ns
    return blob.name if untouched else None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
