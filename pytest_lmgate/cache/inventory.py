"""What lies in a cache folder, for people: entries with their names and sizes, checked, and removed oldest first.

Only files of the names that `store` gives are looked at: whatever else lies there is neither counted nor removed. Links
are not followed, so that nothing outside of the folder is touched.
"""

from __future__ import annotations

__all__ = ["Found", "Swept", "check", "find_entries", "forget_digests", "sweep"]

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_lmgate.cache.files import read_head, read_sealed
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.locks import hold
from pytest_lmgate.cache.packed import arrays_of, facts_of, fingerprint_of, shapes_of
from pytest_lmgate.cache.store import PARTIAL, WHOLE, lock_of
from pytest_lmgate.config.cache_key import CacheKey
from pytest_lmgate.errors import CacheError, NewerError

_ENTRY = re.compile(r"([0-9a-f]{64})\.(lmgate|partial)")
_DIGEST = re.compile(r"[0-9a-f]{38}")
_ASIDE, _SET_ASIDE, _NEWER = "set-aside", "set aside", "newer"


@dataclass(frozen=True)
class Found:
    """One file of the cache.

    Attributes:
        path: The file.
        address: Address in its name.
        state: ``whole``, ``unfinished``, ``set aside``, or ``newer`` where a later version of this package wrote it.
        size: Bytes.
        used: When it was written or last found, seconds since 1970.
        fingerprint: What its address is made of; None where it cannot be read.
        facts: What it says of itself, less what was measured.
        count: Targets, choices or texts in it.
        problem: Why it cannot be read; empty where it can.
    """

    path: Path
    address: str
    state: str
    size: int
    used: float
    fingerprint: Fingerprint | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    problem: str = ""

    @property
    def kind(self) -> str:
        """What was measured, as in ``token-nll/7``."""
        return self.fingerprint.kind if self.fingerprint else self.path.parent.parent.name

    @property
    def model(self) -> str:
        """Names of the models when it was measured; empty in entries of earlier versions."""
        models = self.facts.get("models")
        return " against ".join(map(str, models)) if isinstance(models, list) else ""

    @property
    def dataset(self) -> str:
        """Name of the dataset when it was measured, likewise."""
        return str(self.facts.get("dataset", ""))


@dataclass(frozen=True)
class Swept:
    """What was removed.

    Attributes:
        removed: Files that are gone.
        kept: Files that should have gone, but are in use or cannot be removed, and why.
        size: Bytes of all entries that are left.
    """

    removed: Sequence[Found]
    kept: Sequence[tuple[Found, str]]
    size: int


def find_entries(folder: Path) -> list[Found]:
    """Return what lies in a cache folder, the last used first; nothing where there is no folder.

    Raises:
        OSError: The folder cannot be read.
    """
    found: list[Found] = []
    for path, match in _files(folder):
        with contextlib.suppress(FileNotFoundError):  # another process has moved it since
            found.append(_read(path, match[1]))
    return sorted(found, key=lambda each: (-each.used, each.address))


def check(entry: Found, key: CacheKey | None) -> str:
    """Return what is wrong with an entry: by checksum, signature and address; empty where nothing is."""
    try:
        body = read_sealed(entry.path, key)
        address = fingerprint_of(body).address
        facts_of(body)
        arrays_of(body)
    except (OSError, CacheError, ValueError, RecursionError) as error:
        return str(error)
    return "" if address == entry.address else f"{entry.path}: it holds another measurement ({address[:12]}...)"


def sweep(folder: Path, entries: Sequence[Found], most: int) -> Swept:
    """Remove files until at most so many bytes are left: set-aside ones first, then those not used for longest.

    An entry that another process measures or writes now stays.

    Args:
        folder: The cache folder.
        entries: What lies in it.
        most: Bytes that may be left.
    """
    size = sum(entry.size for entry in entries)
    removed: list[Found] = []
    kept: list[tuple[Found, str]] = []
    for entry in sorted(entries, key=lambda each: (each.state != _SET_ASIDE, each.used)):
        if size <= most:
            break
        if why := _remove(folder, entry):
            kept.append((entry, why))
        else:
            removed.append(entry)
            size -= entry.size
    return Swept(removed, kept, size)


def forget_digests(folder: Path) -> None:
    """Remove the remembered digests of files, which are then computed again."""
    for inner in (each for top in _folders(folder) if top.name == "digests" for each in _folders(Path(top.path))):
        for path in Path(inner.path).iterdir():
            if _DIGEST.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    path.unlink()


def _files(folder: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    for kind in _folders(folder):
        inner = [kind.path] if kind.name == _ASIDE else [each.path for each in _folders(Path(kind.path))]
        for path in inner:
            with os.scandir(path) as files:
                for file in files:
                    match = _ENTRY.fullmatch(file.name)
                    if match and file.is_file(follow_symlinks=False):
                        yield Path(file.path), match


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as inner:
            return [each for each in inner if each.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _read(path: Path, address: str) -> Found:
    status = path.lstat()
    states = {WHOLE: "whole", PARTIAL: "unfinished"}
    state = _SET_ASIDE if path.parent.name == _ASIDE else states[path.suffix]
    found = Found(path, address, state, status.st_size, status.st_mtime)
    try:
        head = read_head(path)
        fingerprint, facts, shapes = fingerprint_of(head), facts_of(head), shapes_of(head)
        texts = facts.pop("texts", ())
        count = max([len(texts), *(shape[0] for shape in shapes.values() if shape)], default=0)
        return replace(found, fingerprint=fingerprint, facts=facts, count=count)
    except (OSError, CacheError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, NewerError) and state != _SET_ASIDE:
            return replace(found, state=_NEWER)
        return replace(found, problem=str(error))


def _remove(folder: Path, entry: Found) -> str:
    """Remove an entry while nobody measures it; return why it stays, or nothing."""
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
