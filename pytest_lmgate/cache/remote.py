"""Files at an address that fsspec knows, such as ``s3://bucket/folder``: a history, or a second level of the cache.

Files of a cache travel as they are, with their checksum and signature, so that a file from there is believed for what
it holds and not for where it lay. A store that is down, slow or full never changes a verdict: it is left alone for the
rest of the session, which says so once. The stores' own libraries retry.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pytest_lmgate.cache.files import write_durably
from pytest_lmgate.errors import ConfigError, escape_controls

T = TypeVar("T")
_SECONDS = 60.0
_SHOWN = 300  # letters of what a store says


class AddressError(OSError):
    """Files at an address cannot be read or written."""


class Address:
    """A folder at an address, as fsspec reads it; `option` named it, and a transfer may take so many seconds."""

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
        except Exception as error:  # anything a store's library raises; some already ask their server
            problem = f"{type(error).__name__}: {_without(self._secrets, str(error))}"
            raise ConfigError(
                f"{option}: expected a usable address such as s3://bucket/folder, got {self._shown!r} ({problem})"
            ) from None
        self._root = root.rstrip("/")
        protocol: str | tuple[str, ...] = self._files.protocol
        self._is_local = "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def __str__(self) -> str:
        return self._shown

    def read(self, name: PurePosixPath) -> bytes | None:
        """Return a file's content, None if there is none. Failures are `AddressError`, here and below."""
        absent = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
        return self._answer(lambda: self._files.cat_file(self._at(name)), absent)

    def read_all(self, suffix: str) -> dict[str, bytes]:
        """Return the files of this suffix by name, sorted, without those in inner folders."""

        def read() -> dict[str, bytes]:
            self._files.invalidate_cache()  # another process may have written there
            listed = self._files.ls(self._root, detail=False)
            paths = sorted(path for path in listed if path.endswith(suffix) and not _name(path).startswith("."))
            # Many at once, where the store can. Unlike cat it takes no [ in a name for a pattern.
            contents = self._files.cat_ranges(paths, None, None)
            if problem := next((content for content in contents if isinstance(content, Exception)), None):
                raise problem
            return {_name(path): data for path, data in zip(paths, contents, strict=True)}

        return self._answer(read, (FileNotFoundError,)) or {}

    def write(self, name: PurePosixPath, data: bytes) -> None:
        at = self._at(name)
        # Whole or not at all, as object stores write.
        self._answer(lambda: write_durably(Path(at), data) if self._is_local else self._files.pipe_file(at, data))

    def remove(self, name: PurePosixPath) -> None:
        self._answer(lambda: self._files.rm_file(self._at(name)), (FileNotFoundError,))

    def _at(self, name: PurePosixPath) -> str:
        return f"{self._root}/{name}"

    def _answer(self, work: Callable[[], T], absent: tuple[type[OSError], ...] = ()) -> T | None:
        """Return the result of some work in a thread, with a timeout; None for the errors `absent`."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        try:
            return future.result(timeout=self._seconds)
        except absent:
            return None
        except concurrent.futures.TimeoutError:
            raise AddressError(f"TimeoutError: no answer in {self._seconds:g} s") from None
        except Exception as error:  # anything a store's library raises
            raise AddressError(f"{type(error).__name__}: {_without(self._secrets, str(error))}") from None


class Remote:
    """The remote cache; `remark` gets a sentence if it cannot be used."""

    def __init__(self, url: str, *, readonly: bool, remark: Callable[[str], None], seconds: float = _SECONDS) -> None:
        self._address = Address(url, "--lmgate-remote-cache", seconds=seconds)
        self._readonly, self._remark, self._is_down = readonly, remark, False

    def get(self, name: PurePosixPath, path: Path) -> bool:
        """Copy a remote file to `path`; return False if there is none, or the store cannot be used."""
        data = self._unless_down(lambda: self._address.read(name))
        with contextlib.suppress(OSError):  # the folder says so itself when it is written to
            if data is not None:
                write_durably(path, data)
                return True
        return False

    def put(self, name: PurePosixPath, path: Path) -> None:
        if not self._readonly and path.exists():  # not where the folder could not be written
            self._unless_down(lambda: self._address.write(name, path.read_bytes()))

    def remove(self, name: PurePosixPath) -> None:
        if not self._readonly:
            self._unless_down(lambda: self._address.remove(name))

    def _unless_down(self, work: Callable[[], T]) -> T | None:
        if self._is_down:
            return None
        try:
            return work()
        except OSError as error:
            self._is_down = True
            self._remark(
                f"the remote cache {self._address} cannot be used ({error}); this session continues without it"
            )
            return None


def place_of(given: str, folder: Path, option: str, *, offline: bool = False) -> Path | Address:
    """Return a path, relative to `folder`, or the folder at a URI, which `offline` may forbid."""
    if "://" not in given:
        return folder / Path(given).expanduser()
    if offline and needs_network(given):
        shown = _without(_secrets_of(given), given)
        raise ConfigError(f"{option} {shown} needs the network, which --lmgate-offline forbids")
    return Address(given, option)


def needs_network(url: str) -> bool:
    return re.match(r"(?!file:)\w+:", url) is not None


def is_from_fork(environment: Mapping[str, str]) -> bool:
    """Whether a CI service says that the code comes from a fork, whose tests may write anything to a cache."""
    if environment.get("GITHUB_EVENT_NAME", "").startswith("pull_request"):
        try:
            event: Any = json.loads(Path(environment["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
            request = event["pull_request"]
            return bool(request["head"]["repo"]["full_name"] != request["base"]["repo"]["full_name"])
        except (OSError, ValueError, KeyError, TypeError):  # a fork that was deleted has no name
            return True
    source, target = (environment.get(f"CI_MERGE_REQUEST_{which}PROJECT_ID") for which in ("SOURCE_", ""))
    return source is not None and source != target


def _secrets_of(url: str) -> list[str]:
    """Return the secrets of an address, longest first: user and password, the password alone, and the query."""
    _, _, rest = url.partition("://")
    address, _, query = rest.partition("?")
    user, at, _ = address.rpartition("@")
    # A path may have an @ too, as in s3://bucket/model@v1.
    is_user = at and (":" in user or "/" not in user)
    secrets = {query, *((user, user.partition(":")[2]) if is_user else ())}
    return sorted(filter(None, secrets), key=len, reverse=True)


def _without(secrets: Sequence[str], text: str) -> str:
    """Return a text's first line without these secrets, and without those of other addresses that a store names.

    Many stores append the body of the answer, HTML or XML that may contain anything.
    """
    for secret in secrets:
        text = text.replace(secret, "***")
    line = " ".join(next(iter(text.strip().splitlines()), "").split())
    return re.sub(
        r"(\w://[^\s?]*)\?\S*", r"\1?***", escape_controls(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}...")
    )


def _name(path: str) -> str:
    return path.rpartition("/")[2]
