"""What every engine asks of a model's entry."""

from __future__ import annotations

__all__ = ["refuse_keys", "threads"]

import os
from collections.abc import Mapping

from pytest_lmgate.backends.base import Entry
from pytest_lmgate.errors import ConfigError


def refuse_keys(entry: Entry, engine: str, instead: Mapping[str, str]) -> None:
    """Refuse keys of an entry that mean nothing to an engine.

    Args:
        entry: The entry.
        engine: The engine's name.
        instead: What to do in place of each of the keys.

    Raises:
        ConfigError: The entry has one of the keys.
    """
    for key, advice in instead.items():
        if getattr(entry.spec, key) not in (None, False, "auto"):
            raise ConfigError(f"models.{entry.name}.{key}: the engine {engine} does not take it: {advice}")


def threads(workers: int) -> int:
    """Return how many threads an engine computes with: the processors, shared by the workers of this machine.

    OMP_NUM_THREADS decides where it is set.
    """
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, processors // workers)
