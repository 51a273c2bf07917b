"""The content-addressed store: a measurement's address, arrays and facts under it, and what lies in a cache folder.

    .lmgate_cache/
      token-nll/ab/abcdef….lmgate     a whole measurement (sealed safetensors: checksum, signature, arrays, metadata)
      token-nll/ab/abcdef….partial    what an interrupted measurement had, removed once it is whole
      locks/abcdef….lock              held while measuring
      digests/…                       remembered digests of files
      proofs/ab/cdef…                 what trials have shown of a model, by the hash of its content and runtime
      set-aside/…                     entries that could not be trusted

A cache that cannot be read or written never changes a verdict: it warns, and the gate measures.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from pytest_lmgate.cache.files import hold, inside, is_newer, mark_ignored, read_head, read_sealed, sync, write_sealed
from pytest_lmgate.cache.remote import Remote, is_from_fork, needs_network
from pytest_lmgate.errors import CacheError, NewerError, UnsignedError
from pytest_lmgate.settings.session import CacheKey, Options

# The address, and the digests of files that go into it.


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
    """Digests of files, remembered in a folder; with a key, only signed ones are used.

    A digest is remembered by path, size, mtime, ctime, inode and device, so that the second run on a 10 GB checkpoint
    reads no weights. The change time cannot be set back, so weights rewritten in place are seen even where size and
    mtime are restored. A file changed within the last seconds is not remembered, since a further change could share its
    timestamps (the "racy git" problem). Nor is a file on a read-only file system: an image may fix all timestamps, and
    another image may be mounted in its place. Each memory is a small file of its own, so that two processes never write
    the same one from different states.
    """

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


# The store.


WHOLE, PARTIAL = ".lmgate", ".partial"
_SEND_SECONDS = 30.0


@dataclass(frozen=True)
class StoredResult:
    """Arrays and JSON values by name, stored under a fingerprint."""

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Any] = field(default_factory=dict)


def encode(entry: StoredResult, fingerprint: Fingerprint) -> bytes:
    # Not ascontiguousarray, which makes an array of a number.
    arrays = {name: np.asarray(array, order="C") for name, array in entry.arrays.items()}
    facts = json.dumps(dict(entry.facts), sort_keys=True)
    return safetensors.numpy.save(arrays, metadata={"fingerprint": fingerprint.text, "facts": facts})


def decode(body: bytes) -> tuple[Fingerprint, StoredResult]:
    """Decode the body of an entry's file, or raise CacheError."""
    fingerprint, facts, _ = decode_head(body)
    try:
        return fingerprint, StoredResult(safetensors.numpy.load(body), facts)
    except (ValueError, KeyError, safetensors.SafetensorError) as error:
        raise CacheError(f"expected safetensors: {error}") from error


def decode_head(body: bytes) -> tuple[Fingerprint, dict[str, Any], dict[str, list[int]]]:
    """Decode the fingerprint, the facts and the shapes of the arrays; the body may be truncated after its head."""
    try:
        head = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
        metadata = head.pop("__metadata__")
        facts = dict(json.loads(metadata["facts"]))
        return Fingerprint.parse(metadata["fingerprint"]), facts, {name: array["shape"] for name, array in head.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CacheError(f"expected safetensors with a fingerprint and facts ({error!r})") from error


class Store:
    """A cache folder, made when first written to.

    With a `key`, every file is signed, and only signed files are used. The remote cache is read if the folder lacks a
    file, and written after it.
    """

    def __init__(
        self,
        folder: Path,
        warn: Callable[[str], None],
        key: CacheKey | None = None,
        remark: Callable[[str], None] = lambda _: None,
        remote: Remote | None = None,
    ) -> None:
        self.folder = folder
        self.digests = FileDigests(folder / "digests", key)
        self._warn, self._key, self._remark, self._remote = warn, key, remark, remote
        self._sent = -math.inf  # when the last unfinished measurement was sent

    def get(self, fingerprint: Fingerprint) -> StoredResult | None:
        """Return the complete measurement; an entry that cannot be trusted is set aside.

        Sets the file's time, which `lmgate cache gc` uses as its last use.
        """
        entry = self._found(self.path(fingerprint), fingerprint)
        if entry is not None:
            with contextlib.suppress(OSError):  # a cache may be for reading only
                os.utime(self.path(fingerprint))
        return entry

    def put(self, fingerprint: Fingerprint, entry: StoredResult) -> None:
        """Store a complete measurement and remove the partial one."""
        path, partial = self.path(fingerprint), self.path(fingerprint, PARTIAL)
        if not self._save(path, fingerprint, entry):
            return
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if self._remote is not None:
            self._remote.put(self._name(path), path)
            self._remote.remove(self._name(partial))

    def get_partial(self, fingerprint: Fingerprint) -> StoredResult | None:
        return self._found(self.path(fingerprint, PARTIAL), fingerprint)

    def put_partial(self, fingerprint: Fingerprint, entry: StoredResult) -> None:
        path = self.path(fingerprint, PARTIAL)
        saved = self._save(path, fingerprint, entry)
        if saved and self._remote is not None and time.monotonic() - self._sent >= _SEND_SECONDS:
            self._remote.put(self._name(path), path)
            self._sent = time.monotonic()

    def proofs(self, model: Fingerprint) -> dict[str, Any]:
        """Return the results of trials of a model; none if they are unknown, or the file cannot be trusted.

        Whoever can write a proof can write a measurement too, so a proof is believed as a measurement is: whole, of
        this very model and, with a key, signed.
        """
        with contextlib.suppress(OSError, CacheError, ValueError, KeyError, TypeError, RecursionError):
            kept = json.loads(read_sealed(self._proof(model), self._key))
            if kept["model"] == model.text:
                return dict(kept["proofs"])
        return {}

    def keep_proofs(self, model: Fingerprint, proofs: Mapping[str, Any]) -> None:
        body = json.dumps({"model": model.text, "proofs": dict(proofs)}).encode()
        with contextlib.suppress(OSError):
            mark_ignored(self.folder)
            write_sealed(self._proof(model), body, key=self._key)

    def _proof(self, model: Fingerprint) -> Path:
        return self.folder / "proofs" / model.address[:2] / model.address[2:40]

    @contextlib.contextmanager
    def lock(self, fingerprint: Fingerprint, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the measurement's lock, so that two processes measure once; `waiting` is called before a wait."""
        with contextlib.ExitStack() as held:
            try:
                mark_ignored(self.folder)
                held.enter_context(hold(lock_of(self.folder, fingerprint.address), waiting, self._remark))
            except (OSError, NotImplementedError) as error:
                why = getattr(error, "strerror", None) or error
                self._warn(
                    f"the cache folder {self.folder} cannot be locked ({why}); two runs may make the same measurement"
                )
            yield

    def explain(self, fingerprint: Fingerprint) -> list[str]:
        """Return the ingredients that changed since the nearest earlier entry."""
        nearest: tuple[int, float, list[str]] | None = None
        for path in self.folder.glob(f"*/*/*{WHOLE}"):
            with contextlib.suppress(OSError, CacheError):
                other = decode_head(read_sealed(path, self._key))[0]
                changed = difference(fingerprint, other)
                if other.kind.partition("/")[0] != fingerprint.kind.partition("/")[0] or not changed:
                    continue
                candidate = (len(changed), -path.stat().st_mtime, changed)
                nearest = candidate if nearest is None else min(nearest, candidate)
        return nearest[2] if nearest else []

    def path(self, fingerprint: Fingerprint, suffix: str = WHOLE) -> Path:
        address = fingerprint.address
        return self.folder / fingerprint.kind.partition("/")[0] / address[:2] / f"{address}{suffix}"

    def _name(self, path: Path) -> PurePosixPath:
        return PurePosixPath(path.relative_to(self.folder).as_posix())

    def _found(self, path: Path, fingerprint: Fingerprint) -> StoredResult | None:
        try:
            inside(self.folder, *path.relative_to(self.folder).parts)
        except OSError as error:
            self._warn_of_reading(path, error)
            return None
        entry = self._load(path, fingerprint)
        if entry is None and self._remote is not None and self._remote.get(self._name(path), path):
            entry = self._load(path, fingerprint)
        return entry

    def _load(self, path: Path, fingerprint: Fingerprint) -> StoredResult | None:
        try:
            stored, entry = decode(read_sealed(path, self._key))
            if stored != fingerprint:
                raise CacheError(f"{path}: it contains another measurement ({stored.address[:12]}...)")
            return entry
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NewerError:
            self._remark(
                f"{self.folder} has entries that a newer pytest-lmgate wrote: this version leaves them alone, measures "
                "again, and does not keep the result"
            )
        except UnsignedError:
            self._remark("LMGATE_CACHE_KEY is set: cache entries without a signature were not used, but measured again")
        except CacheError as error:
            self.set_aside(path, error)
        except OSError as error:
            self._warn_of_reading(path, error)
        return None

    def _warn_of_reading(self, path: Path, error: OSError) -> None:  # once for all entries, as `_save` does
        why = error.strerror or type(error).__name__
        self._warn(f"entries in the cache folder {path.parents[1]} cannot be read ({why}); measuring again")

    def _save(self, path: Path, fingerprint: Fingerprint, entry: StoredResult) -> bool:
        try:
            inside(self.folder, *path.relative_to(self.folder).parts)
            if is_newer(path):
                return False
            mark_ignored(self.folder)
            write_sealed(path, encode(entry, fingerprint), key=self._key)
        except OSError as error:  # said without the file's name, which differs each time
            why = error.strerror or error
            self._warn(f"the cache folder {self.folder} cannot be written ({why}); the result is not kept")
            return False
        return True

    def set_aside(self, path: Path, reason: Exception) -> None:
        """Set an entry aside that turned out to be damaged."""
        try:
            aside = inside(self.folder, "set-aside", path.name)
            aside.parent.mkdir(parents=True, exist_ok=True)
            path.replace(aside)
            done = f"set aside as {aside}"
        except OSError as error:
            done = f"it cannot be set aside ({error})"
        self._warn(f"a cache entry cannot be trusted: {reason}; {done}; measuring again")


def lock_of(folder: Path, address: str) -> Path:
    """Return the file that is locked while an address is measured or removed."""
    return inside(folder, "locks", f"{address[:40]}.lock")


def logs_of(folder: Path) -> Path:
    """Return where the logs of servers are that measure for a cache folder.

    They are not in it, since CI may save it for everyone who can read a branch.
    """
    user = getattr(os, "getuid", lambda: "user")()
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"lmgate-logs-{user}" / name


def open_store(options: Options, warn: Callable[[str], None], remark: Callable[[str], None]) -> Store:
    """Return the store that a session's options ask for."""
    remote = None
    # Offline, only a folder is asked.
    if options.remote_cache and not (options.offline and needs_network(options.remote_cache)):
        readonly = options.remote_cache_readonly or is_from_fork(os.environ)
        remote = Remote(options.remote_cache, readonly=readonly, remark=remark)
    return Store(options.cache, warn, options.cache_key, remark, remote)


# What lies in a cache folder, for people. Only files with the names that a store gives are counted or removed, and
# links are not followed, so that nothing outside of the folder is touched.


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
    """Return the entries of a cache folder, the last used first; none if there is no folder."""
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
    """Return the fault of an entry by checksum, signature and address; empty if it is whole."""
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
    """Remove remembered digests of files and results of trials of models."""
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
