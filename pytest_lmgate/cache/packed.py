"""The body of an entry's file: arrays, fingerprint and facts in the format of safetensors.

The library's own functions copy each array, twice where they write. Here nothing is copied, which counts where an entry
has millions of tokens: arrays are written as they are, and those that are read are views of the body.
"""

from __future__ import annotations

__all__ = ["arrays_of", "facts_of", "fingerprint_of", "packed", "shapes_of"]

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.cache.fingerprint import Fingerprint

_SIZES = {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8)}
_DTYPES = {"BOOL": "?", **{f"{kind.upper()}{8 * size}": f"<{kind}{size}" for kind in _SIZES for size in _SIZES[kind]}}


def packed(
    arrays: Mapping[str, NDArray[Any]], fingerprint: Fingerprint, facts: Mapping[str, Any]
) -> Iterator[bytes | memoryview]:
    """Yield a body in parts, of which the arrays are no copies."""
    metadata = {"fingerprint": fingerprint.text, "facts": json.dumps(dict(facts), sort_keys=True)}
    head: dict[str, Any] = {"__metadata__": metadata}
    # The widest numbers first, so that all are aligned, as the format asks.
    ordered = {name: arrays[name] for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))}
    end = 0
    for name, array in ordered.items():
        begin, end = end, end + array.nbytes
        kind = "BOOL" if array.dtype.kind == "b" else f"{array.dtype.kind.upper()}{8 * array.dtype.itemsize}"
        head[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for array in ordered.values():
        yield np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data


def arrays_of(body: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of an entry, which are views of its body and cannot be written to.

    Raises:
        ValueError: It is not an entry.
    """
    head, begin = _head(body)
    found = {}
    for name, facts in head.items():
        match facts:
            case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(first), int(last)]} if kind in _DTYPES:
                own = memoryview(body)[begin + first : begin + last]
                if not 0 <= first <= last or len(own) != last - first:
                    raise ValueError(f"array {name!r} is not within the file")
                if not all(type(size) is int and size >= 0 for size in shape):
                    raise ValueError(f"array {name!r} has no shape")
                found[name] = np.frombuffer(own, _DTYPES[kind]).reshape(shape)
            case _ if name != "__metadata__":
                raise ValueError(f"array {name!r} is not described as one")
    return found


def fingerprint_of(body: bytes) -> Fingerprint:
    """Return the fingerprint of an entry, from the body of its file or from as much as holds the head.

    Raises:
        ValueError: It is not an entry.
    """
    return Fingerprint.parse(_metadata(body, "fingerprint"))


def facts_of(body: bytes) -> dict[str, Any]:
    """Return the facts of an entry, likewise."""
    facts = json.loads(_metadata(body, "facts"))
    if not isinstance(facts, dict):
        raise ValueError("expected facts by name")
    return facts


def shapes_of(body: bytes) -> dict[str, list[int]]:
    """Return the shape of each array of an entry, likewise."""
    return {name: array["shape"] for name, array in _head(body)[0].items() if name != "__metadata__"}


def _metadata(body: bytes, name: str) -> str:
    match _head(body)[0]:
        case {"__metadata__": dict(metadata)} if isinstance(metadata.get(name), str):
            return str(metadata[name])
    raise ValueError(f"expected safetensors with {name!r} in its metadata")


def _head(body: bytes) -> tuple[dict[str, Any], int]:
    """Return the head of a safetensors file, an 8-byte length, then that much JSON, and where the arrays begin."""
    begin = 8 + int.from_bytes(body[:8], "little")
    head = json.loads(body[8:begin])
    if not isinstance(head, dict):
        raise ValueError("expected safetensors")
    return head, begin
