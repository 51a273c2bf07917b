"""Files at an address that fsspec knows, such as ``s3://bucket/folder``: a history, or a second level of the cache.

Files of a cache travel as they are, with their checksum and signature, so that a file from there is believed for what
it holds and not for where it lay. A store of them that is down, slow or full never changes a verdict: it is left alone
for the rest of the session, which says so once.
"""

from __future__ import annotations

__all__ = ["Address", "AddressError", "Remote", "is_from_fork", "needs_network", "place_of"]

import concurrent.futures
import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pytest_lmgate.cache.files import write_durably
from pytest_lmgate.errors import ConfigError, harmless

T = TypeVar("T")
_SECONDS, _ATTEMPTS, _PAUSE = 60.0, 3, 1.0
_SHOWN = 300  # letters of what a store says


class AddressError(OSError):
    """Files at an address cannot be read or written, although that was tried several times."""


class Address:
    """A folder at an address.

    Args:
        url: As fsspec reads it: ``s3://``, ``gs://``, ``hf://``, ``file://`` and so on.
        option: Who names it, for messages.
        seconds: How long one transfer may take.

    Raises:
        ConfigError: There is no such kind of store, or its library is not installed.
    """

    def __init__(self, url: str, option: str, *, seconds: float = _SECONDS) -> None:
        self._secrets, self._seconds = _secrets_of(url), seconds
        self._shown = _without(self._secrets, url)
        try:
            import fsspec
        except ImportError:
            raise ConfigError(
                f"{option} {self._shown}: fsspec is not installed: pip install 'pytest-lmgate[remote]'"
            ) from None
        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise ConfigError(f"{option} {self._shown}: {error}") from None
        except Exception as error:  # whatever a store's library raises; some ask their server already
            problem = f"{type(error).__name__}: {_without(self._secrets, str(error))}"
            raise ConfigError(
                f"{option}: expected a usable address such as s3://bucket/folder, got {self._shown!r} ({problem})"
            ) from None
        self._root = root.rstrip("/")
        protocol: str | tuple[str, ...] = self._files.protocol
        self._is_local = "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def __str__(self) -> str:
        """Return the address without what may be secret."""
        return self._shown

    def read(self, name: PurePosixPath) -> bytes | None:
        """Return what a file holds; None where there is none.

        Raises:
            AddressError: It cannot be read.
        """

        def read() -> bytes | None:
            try:
                found: bytes = self._files.cat_file(self._at(name))
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return None
            return found

        return self._tried(read)

    def read_all(self, suffix: str) -> dict[str, bytes]:
        """Return what each file of this suffix holds by its name, sorted; files in inner folders are left out.

        Raises:
            AddressError: One of them cannot be read.
        """

        def read() -> dict[str, bytes]:
            self._files.invalidate_cache()  # another process may have written there
            try:
                listed = self._files.ls(self._root, detail=False)
            except FileNotFoundError:
                return {}
            paths = sorted(path for path in listed if path.endswith(suffix) and not _name(path).startswith("."))
            # Many at once, where the store can. Unlike cat it takes no [ in a name for a pattern.
            found = self._files.cat_ranges(paths, None, None)
            if problem := next((each for each in found if isinstance(each, Exception)), None):
                raise problem
            return {_name(path): data for path, data in zip(paths, found, strict=True)}

        return self._tried(read)

    def write(self, name: PurePosixPath, data: bytes) -> None:
        """Write a file.

        Raises:
            AddressError: It cannot be written.
        """

        def write() -> None:
            at = self._at(name)
            if self._is_local:
                write_durably(Path(at), data)  # whole or not at all, as object stores write
            else:
                self._files.pipe_file(at, data)

        self._tried(write)

    def remove(self, name: PurePosixPath) -> None:
        """Remove a file, if there is one.

        Raises:
            AddressError: It cannot be removed.
        """

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._at(name))

        self._tried(remove)

    def _at(self, name: PurePosixPath) -> str:
        return f"{self._root}/{name}"

    def _tried(self, work: Callable[[], T]) -> T:
        """Return what some work returns, tried several times but where the store does not answer at all."""
        for attempt in range(_ATTEMPTS):
            try:
                return _within(self._seconds, work)
            except Exception as error:  # whatever a store's library raises
                if isinstance(error, TimeoutError) or attempt == _ATTEMPTS - 1:
                    raise AddressError(f"{type(error).__name__}: {_without(self._secrets, str(error))}") from None
                time.sleep(_PAUSE * 2**attempt)
        raise AssertionError


class Remote:
    """A second level of the cache, at an address.

    Args:
        url: As `Address` takes it.
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
        self._address = Address(url, "--lmgate-remote-cache", seconds=seconds)
        self._readonly, self._remark, self._is_down = readonly, remark, False

    def get(self, name: PurePosixPath, path: Path) -> bool:
        """Copy a file from there to `path`; False where there is none, or the store cannot be used."""
        data = self._unless_down(lambda: self._address.read(name))
        if data is None:
            return False
        with contextlib.suppress(OSError):  # the folder says so itself when it is written to
            write_durably(path, data)
            return True
        return False

    def put(self, name: PurePosixPath, path: Path) -> None:
        """Copy the file at `path` there."""
        if not self._readonly and path.exists():  # not where the folder could not be written
            self._unless_down(lambda: self._address.write(name, path.read_bytes()))

    def remove(self, name: PurePosixPath) -> None:
        """Remove a file there, if there is one."""
        if not self._readonly:
            self._unless_down(lambda: self._address.remove(name))

    def _unless_down(self, work: Callable[[], T]) -> T | None:
        """Return what some work returns; None where the store cannot be used."""
        if self._is_down:
            return None
        try:
            return work()
        except OSError as error:
            self._is_down = True
            self._remark(f"the remote cache {self._address} cannot be used ({error}); this session goes on without it")
            return None


def place_of(given: str, folder: Path, option: str, *, offline: bool = False) -> Path | Address:
    """Return a folder as it is named: a path, relative to `folder`, or a URI.

    Raises:
        ConfigError: There is no such kind of store, its library is not installed, or it needs the network and `offline`
            is set.
    """
    if "://" not in given:
        return folder / Path(given).expanduser()
    if offline and needs_network(given):
        shown = _without(_secrets_of(given), given)
        raise ConfigError(f"{option} {shown} needs the network, which --lmgate-offline forbids")
    return Address(given, option)


def needs_network(url: str) -> bool:
    """Return whether an address leads away from this machine and its disks."""
    return re.match(r"(?!file:)\w+:", url) is not None


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


def _secrets_of(url: str) -> list[str]:
    """What may be secret in an address, the longest first: user and password, the password alone, and the query."""
    _, _, rest = url.partition("://")
    address, _, query = rest.partition("?")
    user, at, _ = address.rpartition("@")
    # A path may have an @ too, as in s3://bucket/model@v1.
    is_user = at and (":" in user or "/" not in user)
    found = {query, *((user, user.partition(":")[2]) if is_user else ())}
    return sorted(filter(None, found), key=len, reverse=True)


def _without(secrets: Sequence[str], text: str) -> str:
    """Return a text's first line without these secrets, and without those of other addresses that a store names.

    Many stores put the body of an answer behind it, a page of HTML or XML that may hold anything.
    """
    for secret in secrets:
        text = text.replace(secret, "***")
    line = " ".join(next(iter(text.strip().splitlines()), "").split())
    return re.sub(r"(\w://[^\s?]*)\?\S*", r"\1?***", harmless(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."))


def _name(path: str) -> str:
    return path.rpartition("/")[2]
