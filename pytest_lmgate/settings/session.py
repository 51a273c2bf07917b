"""`Options`: what a session was told besides lmgate.yaml, wherever it was said."""

from __future__ import annotations

import hmac
import importlib.util
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Meta

from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.settings.decoding import convert
from pytest_lmgate.settings.entries import Defaults


@dataclass(frozen=True)
class Options:
    """Options of a session."""

    cache: Path  # cache folder
    remote_cache: str | None = None  # address of the remote cache, for fsspec
    remote_cache_readonly: bool = False  # write nothing to it
    # id of the run, the same in all its processes; kept with what it measures
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    refresh: bool = False  # measure again everything that was not measured in this run
    offline: bool = False  # forbid the network
    looks: bool = False  # only look at models, for `lmgate check`: no file is hashed and no server is asked
    device: str | None = None  # device for models whose entry names none; None for the project's default
    executor: Executor | None = None  # where models run; None for this process
    workers: int = 1  # processes that measure side by side and share the processors
    # the number of this process, which selects a GPU if there are several; None for a single process
    worker: int | None = None
    explain_cache: bool = False  # print for each gate what changed since the nearest earlier entry
    strict: bool = False  # treat INCONCLUSIVE as FAIL
    verify: int = 0  # how many cache hits of this process to measure again at its end
    cache_key: CacheKey | None = None  # signs the cache; None without
    arguments: tuple[str, ...] = ()  # the options that affect results, to repeat in a "rerun with" hint

    def __post_init__(self) -> None:
        if self.device is not None:
            convert({"device": self.device}, Defaults)


# `Executor`: where models run, if not in the process that judges.


_NAME = "--lmgate-executor"
_KEYS = ("workers", "num_gpus", "num_cpus")
_Amount = Annotated[float, Meta(ge=0, le=10_000)]


class Executor(msgspec.Struct, frozen=True):
    """The workers of a Ray cluster."""

    # address of the cluster, such as ``ray://host:10001``; None for the one that Ray finds on this machine or in
    # RAY_ADDRESS, else a new one
    address: str | None = None
    workers: Annotated[int, Meta(ge=1)] | None = None  # number of workers; None for as many as fit
    num_gpus: _Amount = 0  # GPUs per worker, possibly a fraction
    num_cpus: _Amount | None = None  # processors per worker; None for 1 with GPUs, else those of the smallest node

    def __post_init__(self) -> None:
        if self.num_gpus > 1 and self.num_gpus % 1:
            raise ConfigError(f"num_gpus: expected a part of a GPU, or a whole number of them, got {self.num_gpus:g}")
        if self.num_cpus == 0 and not (self.workers or self.num_gpus):
            raise ConfigError("num_cpus=0: set workers= or num_gpus= too, to limit the workers")

    @classmethod
    def parse(cls, written: str) -> Executor:
        """Read ``ray`` or ``ray://host:port``, with ``?workers=8&num_gpus=0.5`` and the like."""
        base, _, query = written.partition("?")
        if base != "ray" and not _is_address(base):
            raise ConfigError(f"{_NAME}: expected ray, or an address as in ray://host:10001; got {written!r}")
        given: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
        if unknown := [key for key in given if key not in _KEYS]:
            near = nearest(unknown[0], _KEYS)
            raise ConfigError(f"{_NAME}: expected one of {', '.join(_KEYS)} after ?; got {unknown[0]!r}{near}")
        try:
            executor = convert({"address": None if base == "ray" else base, **given}, cls, strict=False)
        except ConfigError as error:
            raise ConfigError(f"{_NAME}: {error}") from None
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(f"{_NAME}: Ray is not installed: pip install 'pytest-lmgate[ray]'")
        return executor

    @property
    def device(self) -> str:
        """What ``device: auto`` means on a worker."""
        return "cuda" if self.num_gpus else "cpu"

    def share(self, cpus: float) -> str:
        gpus = f" and {self.num_gpus:g} GPUs" if self.num_gpus else ""
        return f"{cpus:g} processors{gpus}"


def _is_address(written: str) -> bool:
    try:
        known = urlsplit(written)
    except ValueError:  # as of a bracket that is not closed
        return False
    return known.scheme == "ray" and bool(known.netloc)


# `CacheKey`: signs the files of the cache, so that a file counts only if somebody who has the key wrote it.


VARIABLE = "LMGATE_CACHE_KEY"
_LEAST_BYTES = 16


class CacheKey:
    """A secret key for HMAC-SHA-256 (RFC 2104), without a readable form that a traceback could show."""

    def __init__(self, key: bytes) -> None:
        if len(key) < _LEAST_BYTES:
            raise ConfigError(
                f"{VARIABLE}: expected a secret of at least {_LEAST_BYTES} bytes, got {len(key)}; make one with "
                '`python -c "import secrets; print(secrets.token_hex(32))"`, or unset the variable to read and write '
                "the cache without signatures"
            )
        self._keyed = hmac.new(key, digestmod="sha256")

    @classmethod
    def from_environment(cls) -> CacheKey | None:
        given = os.environ.get(VARIABLE)
        return None if given is None else cls(os.fsencode(given.strip()))

    def signature(self, name: str, *body: bytes | memoryview) -> bytes:
        """Return the signature of a file, 64 hexadecimal digits; its name is signed too: files cannot be swapped."""
        keyed = self._keyed.copy()
        keyed.update(os.fsencode(name) + b"\0")
        for part in body:
            keyed.update(part)
        return keyed.hexdigest().encode()

    def fits(self, signature: bytes, name: str, body: bytes) -> bool:
        return hmac.compare_digest(signature, self.signature(name, body))
