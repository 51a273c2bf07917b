"""`Executor`: where models run, if not in the process that judges."""

from __future__ import annotations

__all__ = ["Executor"]

import importlib.util
import math
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from pytest_lmgate.errors import ConfigError, nearest

_NAME = "--lmgate-executor"
_KEYS = ("workers", "num_gpus", "num_cpus")


@dataclass(frozen=True)
class Executor:
    """The workers of a Ray cluster.

    Attributes:
        address: Address of the cluster, as in ``ray://host:10001``; None for the one that Ray finds on this machine or
            in RAY_ADDRESS, and else for one of this session's own.
        workers: How many workers; None for as many as there is room for.
        num_gpus: GPUs of each worker, which may be a part of one.
        num_cpus: Processors of each worker; None for 1 beside GPUs, and else for those of the smallest node.
    """

    address: str | None = None
    workers: int | None = None
    num_gpus: float = 0
    num_cpus: float | None = None

    @classmethod
    def parse(cls, written: str) -> Executor:
        """Read ``ray`` or ``ray://host:port``, with ``?workers=8&num_gpus=0.5`` and the like.

        Raises:
            ConfigError: It is none, or Ray is not installed.
        """
        base, _, query = written.partition("?")
        if base != "ray" and not _is_address(base):
            raise ConfigError(f"{_NAME}: expected ray, or an address as in ray://host:10001; got {written!r}")
        given: dict[str, float] = {}
        for key, value in parse_qsl(query, keep_blank_values=True):
            if key not in _KEYS:
                raise ConfigError(
                    f"{_NAME}: expected one of {', '.join(_KEYS)} after ?; got {key!r}{nearest(key, _KEYS)}"
                )
            given[key] = _number(key, value)
        workers = given.get("workers")
        if given.get("num_cpus") == 0 and not (workers or given.get("num_gpus")):
            raise ConfigError(f"{_NAME}: num_cpus=0: say workers= or num_gpus= too, to limit the workers")
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(f"{_NAME}: Ray is not installed: pip install 'pytest-lmgate[ray]'")
        return cls(
            address=None if base == "ray" else base,
            workers=None if workers is None else int(workers),
            num_gpus=given.get("num_gpus", 0),
            num_cpus=given.get("num_cpus"),
        )

    @property
    def device(self) -> str:
        """What ``device: auto`` means on a worker."""
        return "cuda" if self.num_gpus else "cpu"

    def share(self, cpus: float) -> str:
        """What a worker takes of a node, in words."""
        gpus = f" and {self.num_gpus:g} GPUs" if self.num_gpus else ""
        return f"{cpus:g} processors{gpus}"


def _is_address(written: str) -> bool:
    try:
        known = urlsplit(written)
    except ValueError:  # as of a bracket that is not closed
        return False
    return known.scheme == "ray" and bool(known.netloc)


def _number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    is_whole = number.is_integer()
    if key == "workers" and not (is_whole and number >= 1):
        expected = "a whole number from 1"
    elif not math.isfinite(number) or number < 0:
        expected = "a number from 0"
    elif key == "num_gpus" and number > 1 and not is_whole:
        expected = "a part of a GPU, or a whole number of them"
    else:
        return number
    raise ConfigError(f"{_NAME}: {key}: expected {expected}; got {value!r}")
