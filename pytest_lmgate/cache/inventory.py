"""What lies in a cache folder, for people: entries with their names and sizes, checked, and removed oldest first.

Only files with the names that `store` gives are looked at: other files are neither counted nor removed. Links
are not followed, so that nothing outside of the folder is touched.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_lmgate.cache.files import hold, read_head, read_sealed
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import PARTIAL, WHOLE, decode, decode_head, lock_of, logs_of
from pytest_lmgate.errors import CacheError, NewerError
from pytest_lmgate.settings.session import CacheKey

_ENTRY = re.compile(r"([0-9a-f]{64})\.(lmgate|partial)")
_MEMORY = re.compile(r"[0-9a-f]{38}")
_ASIDE, _SET_ASIDE, _NEWER = "set-aside", "set aside", "newer"


@dataclass(frozen=True)
class EntryInfo:
    """One file of the cache."""

    path: Path
    address: str  # in the file's name
    state: str  # ``whole``, ``unfinished``, ``set aside``, or ``newer`` where a later version of this package wrote it
    size: int
    used: float  # when it was written or last found, seconds since 1970
    fingerprint: Fingerprint | None = None  # the ingredients of its address; None if it cannot be read
    facts: dict[str, Any] = field(default_factory=dict)  # its metadata
    count: int = 0  # targets, choices or texts in it
    problem: str = ""  # why it cannot be read; empty if it can

    @property
    def kind(self) -> str:
        return self.fingerprint.kind if self.fingerprint else self.path.parent.parent.name

    @property
    def model(self) -> str:
        models = self.facts.get("models")
        return " against ".join(map(str, models)) if isinstance(models, list) else ""

    @property
    def dataset(self) -> str:
        return str(self.facts.get("dataset", ""))


@dataclass(frozen=True)
class GcResult:
    """Files that were removed, those that stay and why, and the bytes of all that is left."""

    removed: Sequence[EntryInfo]
    kept: Sequence[tuple[EntryInfo, str]]
    size: int


def find_entries(folder: Path) -> list[EntryInfo]:
    """Return what lies in a cache folder, the last used first; nothing if there is no folder."""
    entries: list[EntryInfo] = []
    for kind in _folders(folder):
        for place in [kind] if kind.name == _ASIDE else _folders(kind):
            for path in place.iterdir():
                match = _ENTRY.fullmatch(path.name)
                with contextlib.suppress(FileNotFoundError):  # another process has moved it since
                    if match and path.is_file() and not path.is_symlink():
                        entries.append(_read(path, match[1]))
    return sorted(entries, key=lambda entry: (-entry.used, entry.address))


def check(entry: EntryInfo, key: CacheKey | None) -> str:
    """Return what is wrong with an entry: by checksum, signature and address; empty where nothing is."""
    try:
        address = decode(read_sealed(entry.path, key))[0].address
    except (OSError, CacheError) as error:
        return str(error)
    return "" if address == entry.address else f"{entry.path}: it contains another measurement ({address[:12]}...)"


def collect_garbage(folder: Path, entries: Sequence[EntryInfo], most: int) -> GcResult:
    """Remove files until at most `most` bytes are left: set-aside ones first, then the least recently used.

    An entry that another process measures or writes now stays.
    """
    size = sum(entry.size for entry in entries)
    removed: list[EntryInfo] = []
    kept: list[tuple[EntryInfo, str]] = []
    for entry in sorted(entries, key=lambda entry: (entry.state != _SET_ASIDE, entry.used)):
        if size <= most:
            break
        if why := _remove(folder, entry):
            kept.append((entry, why))
        else:
            removed.append(entry)
            size -= entry.size
    return GcResult(removed, kept, size)


def forget(folder: Path) -> None:
    """Remove remembered digests of files and what trials have shown of models."""
    for kind in (folder / "digests", folder / "proofs"):
        for inner in _folders(kind) if not kind.is_symlink() else ():
            for path in inner.iterdir():
                if _MEMORY.fullmatch(path.name):
                    with contextlib.suppress(OSError):
                        path.unlink()


def remove_logs(folder: Path) -> None:
    """Remove the logs of servers; one that runs goes on without its log."""
    shutil.rmtree(logs_of(folder), ignore_errors=True)


def _folders(folder: Path) -> Iterator[Path]:
    if folder.exists():
        yield from (path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def _read(path: Path, address: str) -> EntryInfo:
    status = path.lstat()
    state = _SET_ASIDE if path.parent.name == _ASIDE else {WHOLE: "whole", PARTIAL: "unfinished"}[path.suffix]
    entry = EntryInfo(path, address, state, status.st_size, status.st_mtime)
    try:
        fingerprint, facts, shapes = decode_head(read_head(path))
        texts, _ = facts.pop("texts", ()), facts.pop("cut", None)
        count = max([len(texts), *(shape[0] for shape in shapes.values() if shape)], default=0)
        return replace(entry, fingerprint=fingerprint, facts=facts, count=count)
    except NewerError as error:
        return replace(entry, problem=str(error)) if state == _SET_ASIDE else replace(entry, state=_NEWER)
    except (OSError, CacheError, TypeError) as error:
        return replace(entry, problem=str(error))


def _remove(folder: Path, entry: EntryInfo) -> str:
    """Remove an entry unless somebody measures it; return why it stays, or nothing."""
    if entry.state == _NEWER:
        return "a newer pytest-lmgate wrote it"
    try:
        with hold(lock_of(folder, entry.address), waiting=_in_use):
            entry.path.unlink(missing_ok=True)
    except (OSError, NotImplementedError, CacheError) as error:
        return str(error)
    return ""


def _in_use() -> None:
    raise CacheError("it is being measured")
