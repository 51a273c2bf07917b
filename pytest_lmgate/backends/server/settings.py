"""How to reach a server: its address, the key of its users, and what `load:` of a model's entry may say."""

from __future__ import annotations

__all__ = ["ServerSettings"]

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from pytest_lmgate.backends.base import Entry
from pytest_lmgate.backends.entries import refuse_options
from pytest_lmgate.errors import ConfigError

# Options of `load:`: the least value, and the default.
_OPTIONS: Mapping[str, tuple[int, int | None]] = {
    "concurrency": (1, 8),
    "timeout": (1, 60),
    "retries": (0, 5),
    "context": (8, None),
}
_LOOPBACK = ("localhost", "::1")


@dataclass(frozen=True)
class ServerSettings:
    """A server and how to talk to it.

    Attributes:
        url: Its address without user name and password.
        model: Its name for the model.
        variable: Environment variable that holds the key; None without one. Nothing here holds the key itself, so that
            it appears in no message, file or traceback.
        concurrency: Requests that this process may have on their way at once, its share of those of all workers.
        timeout: Seconds that an answer may take.
        retries: How often a request that failed is sent again.
        context: Tokens that prompt and text may have together; None asks the server.
        credentials: User name and password of the address.
    """

    url: str
    model: str
    variable: str | None
    concurrency: int
    timeout: int
    retries: int
    context: int | None
    credentials: tuple[str, str] | None = field(repr=False)

    @classmethod
    def of(cls, entry: Entry) -> ServerSettings:
        """Read a model's entry.

        Raises:
            ConfigError: The address, the name of the model, the key's variable or an option is not what it should be.
        """
        spec, where = entry.spec, f"models.{entry.name}"
        if not spec.server:
            raise ConfigError(f"{where}: the engine server needs server:, an address as in http://localhost:8000/v1")
        if not spec.model:
            raise ConfigError(
                f"{where}.model: expected the server's name for the model, as GET {{server}}/models lists it"
            )
        address = _split(spec.server, where)
        user = (unquote(address.username), unquote(address.password or "")) if address.username is not None else None
        if user and spec.key:
            raise ConfigError(f"{where}.key: the address under server: has a user name already; leave out one of them")
        if spec.key is not None:
            _require_key(spec.key, where)
        host = address.netloc.rpartition("@")[2]
        url = address._replace(netloc=host).geturl().rstrip("/")
        refuse_options(entry, "a server", _OPTIONS)
        options = _options(spec.load, where)
        options["concurrency"] = max(1, options["concurrency"] // entry.workers)
        return cls(url, spec.model, spec.key, **options, credentials=user)

    @property
    def is_local(self) -> bool:
        """Whether the server runs on this machine."""
        host = urlsplit(self.url).hostname or ""
        return host in _LOOPBACK or host.endswith(".localhost") or host.startswith("127.")

    @property
    def key(self) -> str | None:
        """The key, read anew each time."""
        return None if self.variable is None else os.environ.get(self.variable, "")

    def hidden(self, text: str) -> str:
        """Return what a server said, without the key and the password, which it may repeat."""
        for secret in (self.key, self.credentials and self.credentials[1]):
            text = text.replace(secret, "***") if secret else text
        return text


def _split(written: str, where: str) -> SplitResult:
    try:
        address = urlsplit(written)
        is_valid = address.scheme in ("http", "https") and bool(address.hostname) and (address.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid or address.query or address.fragment:
        # A query or fragment may be a secret; before an @ stand user name and password.
        address_alone, *rest = re.split(r"[?#]", written, maxsplit=1)
        shown = "***" if any("@" in each for each in rest) else address_alone.rpartition("@")[2]
        raise ConfigError(
            f"{where}.server: expected an address as in http://localhost:8000/v1, without ? and #, got {shown!r}"
        )
    return address


def _require_key(variable: str, where: str) -> None:
    key = os.environ.get(variable)
    if not key:
        state = "not set" if key is None else "empty"
        raise ConfigError(
            f"{where}.key: the environment variable {variable!r} is {state}; set it to the server's key, or leave key: "
            "out for a server without one"
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            f"{where}.key: the environment variable {variable!r} holds white space or letters that no key has; "
            "set it anew"
        )


def _options(load: Mapping[str, Any], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {key: default for key, (_, default) in _OPTIONS.items()}
    for key, value in load.items():
        least, _ = _OPTIONS[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{where}.load.{key}: expected a whole number from {least}, got {value!r}")
        found[key] = value
    return found
