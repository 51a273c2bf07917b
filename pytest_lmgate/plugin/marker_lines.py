"""Where a gate stands: the line of its marker, for reports that point at it."""

from __future__ import annotations

__all__ = ["place_of"]

import linecache
import re
from pathlib import Path

import pytest


def place_of(item: pytest.Item, mark: pytest.Mark, count: int) -> tuple[str, int]:
    """Return the file and the line, from 1, where a gate of a test stands.

    That is the line of the marker among the decorators of the test, else the line of the test, as for a marker of a
    class, of a module or of a parameter. A gate of lmgate.yaml stands in its own line.

    Args:
        item: The test.
        mark: The gate's marker.
        count: How many gates of the test, from the top, have a marker of this name before it.
    """
    path, begin, _ = item.reportinfo()
    if begin is None:
        return "", 0
    found = begin + 1
    if mark in item.own_markers and isinstance(item, pytest.Function):
        for line, text in enumerate(linecache.getlines(str(Path(path)))[begin:], begin + 1):
            if re.match(r"\s*(async\s+)?(def|class)\b", text):
                break
            if re.match(rf"\s*@.*\b{mark.name}\b", text):
                found, count = line, count - 1
                if count < 0:
                    break
    return str(path), found
