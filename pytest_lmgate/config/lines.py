"""Where a key of lmgate.yaml stands: its file, its line and its name, for messages."""

from __future__ import annotations

__all__ = ["Lines", "line_of"]

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Lines:
    """The lines of a file's keys.

    Attributes:
        file: The file.
        root: Its content as nodes; None for an empty file.
    """

    file: Path
    root: yaml.Node | None

    def at(self, keys: Sequence[object], name: str = "") -> str:
        """Return ``lmgate.yaml:3: models.die.dtype`` for a key, wherever it is merged in from.

        Args:
            keys: The key and those above it, outermost first.
            name: How to name the key; by default its parts with dots between.
        """
        line = self._line(keys)
        return f"{self.file}{f':{line}' if line else ''}: {name or '.'.join(map(str, keys))}"

    def _line(self, keys: Sequence[object]) -> int:
        node, line = self.root, 0
        for key in keys:
            pairs = node.value if isinstance(node, yaml.MappingNode) else []
            # The library puts what `<<` merges in before what is written.
            found = next((pair for pair in reversed(pairs) if pair[0].value == str(key)), None)
            if found is None:
                break
            line, node = line_of(found[0]), found[1]
        return line


def line_of(node: yaml.Node) -> int:
    """Return a node's line, from 1."""
    return int(node.start_mark.line) + 1
