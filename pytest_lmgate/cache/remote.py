"""A second level of the cache behind the folder: any address that fsspec knows, such as ``s3://bucket/cache``.

Files travel as they are, with their checksum and signature, so that a file from there is believed for what it holds and
not for where it lay. A store that is down, slow or full never changes a verdict: it is left alone for the rest of the
session, which says so once.
"""

from __future__ import annotations

__all__ = ["Remote", "is_from_fork"]

import concurrent.futures
import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pytest_lmgate.cache.files import write_durably
from pytest_lmgate.errors import ConfigError

T = TypeVar("T")
_SECONDS, _ATTEMPTS, _PAUSE = 60.0, 3, 1.0


class Remote:
    """Files at an address.

    Args:
        url: As fsspec reads it: ``s3://``, ``gs://``, ``hf://``, ``file://`` and so on.
        readonly: Whether nothing is written there.
        remark: Called with a sentence where the store cannot be used.
        seconds: How long one transfer may take.

    Raises:
        ConfigError: There is no such kind of store, or its library is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        readonly: bool = False,
        remark: Callable[[str], None] = lambda _: None,
        seconds: float = _SECONDS,
    ) -> None:
        self.shown = _masked(url)
        self._readonly, self._remark, self._seconds, self._is_down = readonly, remark, seconds, False
        try:
            import fsspec

            self._files, self._root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise ConfigError(f"--lmgate-remote-cache {self.shown}: {error}") from None
        except ValueError as error:
            raise ConfigError(
                f"--lmgate-remote-cache: expected an address such as s3://bucket/folder, got {self.shown!r} ({error})"
            ) from None

    def get(self, name: PurePosixPath, path: Path) -> bool:
        """Copy a file from there to `path`; False where there is none, or the store cannot be used."""

        def read() -> bytes | None:
            try:
                found: bytes = self._files.cat_file(self._at(name))
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return None
            return found

        data = self._tried(read)
        if data is None:
            return False
        with contextlib.suppress(OSError):  # the folder says so itself when it is written to
            write_durably(path, data)
            return True
        return False

    def put(self, name: PurePosixPath, path: Path) -> None:
        """Copy the file at `path` there."""
        if self._readonly or not path.exists():  # where the folder could not be written
            return

        def write() -> None:
            data, at = path.read_bytes(), self._at(name)
            if "file" in _protocols(self._files):
                write_durably(Path(at), data)  # whole or not at all, as object stores write
            else:
                self._files.pipe_file(at, data)

        self._tried(write)

    def remove(self, name: PurePosixPath) -> None:
        """Remove a file there, if there is one."""

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._at(name))

        if not self._readonly:
            self._tried(remove)

    def _at(self, name: PurePosixPath) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _tried(self, work: Callable[[], T]) -> T | None:
        """Return what some work returns, tried several times; None where the store cannot be used."""
        for attempt in range(_ATTEMPTS):
            if self._is_down:
                return None
            try:
                return _within(self._seconds, work)
            except Exception as error:  # whatever a store's library raises
                problem = f"{type(error).__name__}: {_masked(' '.join(str(error).split()))}"
                if isinstance(error, TimeoutError) or attempt == _ATTEMPTS - 1:
                    self._is_down = True
                    self._remark(
                        f"the remote cache {self.shown} cannot be used ({problem}); this session goes on without it"
                    )
                else:
                    time.sleep(_PAUSE * 2**attempt)
        return None


def is_from_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a CI service says that the code comes from a fork, whose tests may write anything to a cache."""
    if environment.get("GITHUB_EVENT_NAME", "").startswith("pull_request"):
        try:
            event: Any = json.loads(Path(environment["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
            request = event["pull_request"]
            return bool(request["head"]["repo"]["full_name"] != request["base"]["repo"]["full_name"])
        except (OSError, ValueError, KeyError, TypeError):  # a fork that was deleted has no name
            return True
    source, target = (environment.get(f"CI_MERGE_REQUEST_{which}PROJECT_ID") for which in ("SOURCE_", ""))
    return source is not None and source != target


def _within(seconds: float, work: Callable[[], T]) -> T:
    """Run some work in a thread that nobody waits for any longer than that.

    Raises:
        TimeoutError: It took longer.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return future.result(timeout=seconds)
    except concurrent.futures.TimeoutError:
        raise TimeoutError(f"no answer in {seconds:g} s") from None


def _protocols(files: Any) -> tuple[str, ...]:
    protocol: str | tuple[str, ...] = files.protocol
    return (protocol,) if isinstance(protocol, str) else protocol


def _masked(text: str) -> str:
    """Take what may be secret out of addresses: user and password, and all that follows a question mark."""
    text = re.sub(r"(\w://)[^/\s@]*@", r"\1***@", text)
    return re.sub(r"(\w://[^\s?]*)\?\S*", r"\1?***", text)
