"""The content-addressed store: arrays and facts under a fingerprint, one file each, one lock each.

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
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from pytest_lmgate.cache.files import hold, inside, is_newer, mark_ignored, read_sealed, write_sealed
from pytest_lmgate.cache.fingerprint import FileDigests, Fingerprint, difference
from pytest_lmgate.cache.remote import Remote, is_from_fork, needs_network
from pytest_lmgate.errors import CacheError, NewerError, UnsignedError
from pytest_lmgate.settings.session import CacheKey, Options

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
