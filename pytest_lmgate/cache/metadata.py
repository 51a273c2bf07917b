"""What the head of an entry's file says: its fingerprint, its facts, the shapes of its arrays."""

from __future__ import annotations

__all__ = ["facts_of", "fingerprint_of", "shapes_of"]

import json
from typing import Any

from pytest_lmgate.cache.fingerprint import Fingerprint


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
    return {name: array["shape"] for name, array in _head(body).items() if name != "__metadata__"}


def _metadata(body: bytes, name: str) -> str:
    match _head(body):
        case {"__metadata__": dict(metadata)} if isinstance(metadata.get(name), str):
            return str(metadata[name])
    raise ValueError(f"expected safetensors with {name!r} in its metadata")


def _head(body: bytes) -> Any:
    """Return the head of a safetensors file: an 8-byte length, then that much JSON."""
    length = int.from_bytes(body[:8], "little")
    return json.loads(body[8 : 8 + length])
