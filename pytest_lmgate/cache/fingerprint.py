"""A measurement's address: the hash of everything that can change it, and what differs between two addresses."""

from __future__ import annotations

__all__ = ["Fingerprint", "difference"]

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Fingerprint:
    """Everything that can change a measurement: texts by name, sorted.

    Its kind has the revision of the code that measures it, as in ``token-nll/1``.
    """

    kind: str
    ingredients: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, kind: str, ingredients: Mapping[str, str]) -> Fingerprint:
        """Make a fingerprint of named ingredients."""
        return cls(kind, tuple(sorted(ingredients.items())))

    @property
    def address(self) -> str:
        """SHA-256 of kind and ingredients, 64 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def text(self) -> str:
        """Canonical JSON."""
        return json.dumps({"kind": self.kind, "ingredients": dict(self.ingredients)}, sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """Return the fingerprint of its `text`, or raise ValueError."""
        match json.loads(text):
            case {"kind": str(kind), "ingredients": dict(ingredients)}:
                if all(isinstance(value, str) for value in ingredients.values()):
                    return cls.of(kind, ingredients)
        raise ValueError("expected the kind of a measurement and its ingredients, text by name")


def difference(new: Fingerprint, old: Fingerprint) -> list[str]:
    """Name the ingredients of `new` that `old` has otherwise or not at all, and those that only `old` has."""
    a, b = dict(new.ingredients), dict(old.ingredients)
    changed = [] if new.kind == old.kind else [f"kind: {old.kind} -> {new.kind}"]
    for name in sorted(a.keys() | b.keys()):
        # A package that is not installed is the same whether it was asked for or not.
        if a.get(name, "absent") != b.get(name, "absent"):
            changed.append(f"{name}: {_short(b.get(name))} -> {_short(a.get(name))}")
    return changed


def _short(value: str | None) -> str:
    """Digests are shown by their beginning, everything else whole."""
    if value is None:
        return "(none)"
    return f"{value[:12]}..." if re.fullmatch(r"(blob:)?[0-9a-f]{40,64}", value) else value
