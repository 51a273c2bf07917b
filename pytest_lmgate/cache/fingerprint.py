"""A measurement's address: the hash of everything that can change it; and the digests of files that go into it.

The digest of a file is remembered by path, size, mtime, ctime, inode and device, so that the second run on a 10 GB
checkpoint reads no weights. The change time cannot be set back, so weights rewritten in place are seen even where size
and mtime are restored. A file changed within the last seconds is not remembered, since a further change could share its
timestamps (the "racy git" problem). A file on a read-only file system is not remembered either: an image may fix all
timestamps, and another image may be mounted in its place. Each memory is a small file of its own, so that two processes
never write the same one from different states.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_lmgate.cache.files import inside, mark_ignored, read_sealed, sync, write_sealed
from pytest_lmgate.errors import CacheError
from pytest_lmgate.settings.session import CacheKey

_RACY_SECONDS = 2.0


@dataclass(frozen=True)
class Fingerprint:
    """Everything that can change a measurement: texts by name, sorted.

    Its kind contains the revision of the measuring code, as in ``token-nll/1``.
    """

    kind: str
    ingredients: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, kind: str, ingredients: Mapping[str, str]) -> Fingerprint:
        return cls(kind, tuple(sorted(ingredients.items())))

    @property
    def address(self) -> str:
        """SHA-256 of kind and ingredients, 64 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def text(self) -> str:
        return json.dumps({"kind": self.kind, "ingredients": dict(self.ingredients)}, sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        match json.loads(text):
            case {"kind": str(kind), "ingredients": dict(ingredients)}:
                if all(isinstance(value, str) for value in ingredients.values()):
                    return cls.of(kind, ingredients)
        raise ValueError("expected the kind of a measurement and its ingredients, text by name")


def difference(new: Fingerprint, old: Fingerprint) -> list[str]:
    """Name the ingredients that differ, or that only one of them has."""
    a, b = dict(new.ingredients), dict(old.ingredients)
    changed = [] if new.kind == old.kind else [f"kind: {old.kind} -> {new.kind}"]
    for name in sorted(a.keys() | b.keys()):
        # A package that is not installed is the same whether it was asked for or not.
        if a.get(name, "absent") != b.get(name, "absent"):
            changed.append(f"{name}: {_short(b.get(name))} -> {_short(a.get(name))}")
    return changed


def _short(value: str | None) -> str:
    """Digests are shortened, other values are not."""
    if value is None:
        return "(none)"
    return f"{value[:12]}..." if re.fullmatch(r"(blob:)?[0-9a-f]{40,64}", value) else value


class FileDigests:
    """Digests of files, remembered in a folder; with a key, only signed ones are used."""

    def __init__(self, folder: Path, key: CacheKey | None = None) -> None:
        self._folder, self._key = folder, key

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of a file's bytes."""
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
        return inside(self._folder.parent, self._folder.name, key[:2], key[2:40])


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
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
