"""The content-addressed store: arrays and facts under a fingerprint, one file each, one lock each.

    .lmgate_cache/
      token-nll/ab/abcdef….lmgate     a whole measurement (sealed safetensors: checksum, signature, arrays, metadata)
      token-nll/ab/abcdef….partial    what an interrupted measurement had, removed once it is whole
      locks/abcdef….lock              held while measuring (see `locks`)
      digests/…                       remembered digests of files
      set-aside/…                     entries that could not be trusted

A cache that cannot be read or written never changes a verdict: it warns, and the gate measures.
"""

from __future__ import annotations

__all__ = ["PARTIAL", "WHOLE", "Entry", "Store", "lock_of", "open_store"]

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from numpy.typing import NDArray

from pytest_lmgate.cache.digest import FileDigests
from pytest_lmgate.cache.files import is_newer, mark_ignored, read_sealed, write_sealed
from pytest_lmgate.cache.fingerprint import Fingerprint, difference
from pytest_lmgate.cache.locks import hold
from pytest_lmgate.cache.packed import arrays_of, facts_of, fingerprint_of, packed
from pytest_lmgate.cache.remote import Remote, is_from_fork, needs_network
from pytest_lmgate.config.cache_key import CacheKey
from pytest_lmgate.config.options import Options
from pytest_lmgate.errors import CacheError, NewerError, UnsignedError

WHOLE, PARTIAL = ".lmgate", ".partial"
_SEND_SECONDS = 30.0


@dataclass(frozen=True)
class Entry:
    """What is stored under a fingerprint: arrays and JSON values by name."""

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Store:
    """A cache folder.

    Args:
        folder: Where; made when first written to.
        warn: Called with a sentence that says what is wrong with the cache.
        key: Signs every file; then only files with its signature are believed.
        remark: Called with a sentence where entries without a signature are measured again.
        remote: A second level, read where the folder lacks a file and written after it.
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

    def get(self, fingerprint: Fingerprint) -> Entry | None:
        """Return the whole measurement under `fingerprint`; an entry that cannot be trusted is set aside.

        Its file's time of change becomes that of its last use, by which `lmgate cache gc` goes.
        """
        found = self._found(self.path(fingerprint), fingerprint)
        if found is not None:
            with contextlib.suppress(OSError):  # a cache may be for reading only
                os.utime(self.path(fingerprint))
        return found

    def put(self, fingerprint: Fingerprint, entry: Entry) -> None:
        """Store a whole measurement; the partial one goes, unless the whole one cannot be written."""
        path, partial = self.path(fingerprint), self._path(fingerprint, PARTIAL)
        if not self._save(path, fingerprint, entry):
            return
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if self._remote is not None:
            self._remote.put(self._name(path), path)
            self._remote.remove(self._name(partial))

    def get_partial(self, fingerprint: Fingerprint) -> Entry | None:
        """Return what an interrupted measurement had, if anything."""
        return self._found(self._path(fingerprint, PARTIAL), fingerprint)

    def put_partial(self, fingerprint: Fingerprint, entry: Entry) -> None:
        """Store what a measurement has so far."""
        path = self._path(fingerprint, PARTIAL)
        saved = self._save(path, fingerprint, entry)
        if saved and self._remote is not None and time.monotonic() - self._sent >= _SEND_SECONDS:
            self._remote.put(self._name(path), path)
            self._sent = time.monotonic()

    def set_aside(self, fingerprint: Fingerprint, reason: CacheError) -> None:
        """Put the whole measurement under `fingerprint` out of the way: it was found not to be one."""
        self._set_aside(self.path(fingerprint), reason)

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
                    f"the cache folder {self.folder} cannot be locked ({why}); two runs may measure the same twice"
                )
            yield

    def explain(self, fingerprint: Fingerprint) -> list[str]:
        """Say which ingredients changed since the nearest earlier entry; empty where there is no earlier one."""
        nearest: tuple[int, float, list[str]] | None = None
        for path in self.folder.glob(f"*/*/*{WHOLE}"):
            with contextlib.suppress(OSError, CacheError, ValueError, RecursionError):
                other = fingerprint_of(read_sealed(path, self._key))
                changed = difference(fingerprint, other)
                if other.kind.partition("/")[0] != fingerprint.kind.partition("/")[0] or not changed:
                    continue
                candidate = (len(changed), -path.stat().st_mtime, changed)
                nearest = candidate if nearest is None else min(nearest, candidate)
        return nearest[2] if nearest else []

    def path(self, fingerprint: Fingerprint) -> Path:
        """Return the file of the whole measurement under `fingerprint`."""
        return self._path(fingerprint, WHOLE)

    def _path(self, fingerprint: Fingerprint, suffix: str) -> Path:
        address = fingerprint.address
        return self.folder / fingerprint.kind.partition("/")[0] / address[:2] / f"{address}{suffix}"

    def _name(self, path: Path) -> PurePosixPath:
        return PurePosixPath(path.relative_to(self.folder).as_posix())

    def _found(self, path: Path, fingerprint: Fingerprint) -> Entry | None:
        found = self._load(path, fingerprint)
        if found is None and self._remote is not None and self._remote.get(self._name(path), path):
            found = self._load(path, fingerprint)
        return found

    def _load(self, path: Path, fingerprint: Fingerprint) -> Entry | None:
        try:
            body = read_sealed(path, self._key)
            if (found := fingerprint_of(body)) != fingerprint:
                raise CacheError(f"{path}: it holds another measurement ({found.address[:12]}...)")
            return Entry(arrays_of(body), facts_of(body))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NewerError:
            self._remark(
                f"{self.folder} has entries that a newer pytest-lmgate wrote: this version leaves them as they "
                "are, measures again, and does not keep the result"
            )
        except UnsignedError:
            self._remark("LMGATE_CACHE_KEY is set: cache entries without a signature were not used, but measured again")
        except (CacheError, ValueError, RecursionError) as error:
            self._set_aside(path, error)
        except OSError as error:
            self._warn(f"the cache entry {path} cannot be read ({error}); measuring again")
        return None

    def _save(self, path: Path, fingerprint: Fingerprint, entry: Entry) -> bool:
        if is_newer(path):
            return False
        try:
            mark_ignored(self.folder)
            write_sealed(path, *packed(entry.arrays, fingerprint, entry.facts), key=self._key)
        except OSError as error:  # said without the file's name, which differs each time
            why = error.strerror or error
            self._warn(f"the cache folder {self.folder} cannot be written ({why}); the result is not kept")
            return False
        return True

    def _set_aside(self, path: Path, reason: Exception) -> None:
        aside = self.folder / "set-aside" / path.name
        try:
            aside.parent.mkdir(parents=True, exist_ok=True)
            path.replace(aside)
            done = f"set aside as {aside}"
        except OSError as error:
            done = f"it cannot be set aside ({error})"
        self._warn(f"a cache entry cannot be trusted: {reason}; {done}; measuring again")


def lock_of(folder: Path, address: str) -> Path:
    """Return the file that is locked while the measurement of an address is made or removed."""
    return folder / "locks" / f"{address[:40]}.lock"


def open_store(options: Options, warn: Callable[[str], None], remark: Callable[[str], None]) -> Store:
    """Return the store that a session's options ask for; see `Store`.

    Raises:
        ConfigError: The address of the remote cache leads to no kind of store.
    """
    remote = None
    # Offline, only a folder is asked.
    if options.remote_cache and not (options.offline and needs_network(options.remote_cache)):
        readonly = options.remote_cache_readonly or is_from_fork(os.environ)
        remote = Remote(options.remote_cache, readonly=readonly, remark=remark)
    return Store(options.cache, warn, options.cache_key, remark, remote)
