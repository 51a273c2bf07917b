"""Entries as somebody would forge them who can write to the cache: whole, sealed, of the right name, and untrue."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.numpy
from numpy.typing import NDArray

from pytest_lmgate.cache.files import read_sealed, write_sealed
from pytest_lmgate.settings.session import CacheKey


def forge(
    entry: Path,
    change: Callable[[str, NDArray[Any]], NDArray[Any]] = lambda _, array: array,
    facts: Callable[[dict[str, Any]], dict[str, Any]] = lambda facts: facts,
    key: CacheKey | None = None,
) -> None:
    """Rewrite an entry with other arrays, given by name, or other facts."""
    body = read_sealed(entry)
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    metadata = header["__metadata__"]
    metadata["facts"] = json.dumps(facts(json.loads(metadata["facts"])), sort_keys=True)
    arrays = {name: change(name, array) for name, array in safetensors.numpy.load(body).items()}
    write_sealed(entry, safetensors.numpy.save(arrays, metadata=metadata), key=key)


def times(factor: float) -> Callable[[str, NDArray[Any]], NDArray[Any]]:
    """Return a change that multiplies every log-likelihood."""
    return lambda name, array: array * array.dtype.type(factor) if name == "nll" else array
