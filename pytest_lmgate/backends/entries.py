"""What every engine asks of a model's entry."""

from __future__ import annotations

__all__ = ["hashed", "refuse_keys", "refuse_options", "threads"]

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from pytest_lmgate.backends.base import Entry
from pytest_lmgate.errors import ConfigError, ModelError, nearest
from pytest_lmgate.identity.files import Snapshot


def refuse_keys(entry: Entry, engine: str, instead: Mapping[str, str]) -> None:
    """Refuse keys of an entry that mean nothing to an engine; `instead` says what to do in place of each.

    Raises:
        ConfigError: The entry has one of the keys.
    """
    for key, advice in instead.items():
        if getattr(entry.spec, key) not in (None, False, "auto"):
            raise ConfigError(f"models.{entry.name}.{key}: the engine {engine} does not take it: {advice}")


def refuse_options(entry: Entry, engine: str, known: Collection[str]) -> None:
    """Refuse options in ``load:`` of an entry that are not among the `known` ones of an engine.

    Raises:
        ConfigError: The entry has another option.
    """
    for key in entry.spec.load:
        if key not in known:
            raise ConfigError(
                f"models.{entry.name}.load: {engine} has no option {key!r}{nearest(key, known)}; it has "
                f"{', '.join(known)}"
            )


def hashed(entry: Entry, files: Mapping[str, Path], folders: Iterable[Path] = ()) -> tuple[Snapshot, dict[str, str]]:
    """Note the status of a model's files, and then hash them.

    Args:
        entry: The model's entry.
        files: Its files, by their names in an address.
        folders: Folders to which a file may be added.

    Returns:
        The status of files and folders, and the digest of each file.

    Raises:
        ModelError: A file cannot be read.
    """
    try:
        snapshot = Snapshot.of([*files.values(), *folders])
        return snapshot, {name: entry.digest(path) for name, path in files.items()}
    except OSError as error:
        raise ModelError(f"model {entry.name!r}: {error.filename}: cannot be read: {error.strerror}") from error


def threads(workers: int) -> int:
    """Return how many threads an engine computes with: the processors, shared by the workers of this machine.

    OMP_NUM_THREADS decides where it is set.
    """
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, processors // workers)
