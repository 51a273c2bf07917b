"""Where a gate stands: the line of its marker, for reports that point at it."""

from __future__ import annotations

__all__ = ["MarkerLines"]

import ast
import functools
import linecache
from pathlib import Path

import pytest


class MarkerLines:
    """Finds where gates of a session stand; each file is read once."""

    def __init__(self) -> None:
        self._decorators = functools.cache(_decorators)

    def place_of(self, item: pytest.Item, mark: pytest.Mark) -> tuple[str, int]:
        """Return the file and the line, from 1, where a gate of a test stands.

        That is the line of the marker among the decorators of the test, else the line of the test, as for a marker of a
        class, of a module or of a parameter. A gate of lmgate.yaml stands in its own line.
        """
        path, begin, _ = item.reportinfo()
        if begin is None:
            return "", 0
        file, line = str(Path(path)), begin + 1
        if isinstance(item, pytest.Function):
            # The last decorator is the first in the list.
            marks = getattr(item.obj, "pytestmark", [])
            own = [each for each in reversed(marks if isinstance(marks, list) else []) if each.name == mark.name]
            lines = [at for name, at in self._decorators(file).get(line, []) if name == mark.name]
            if len(own) == len(lines):  # else some have other names there
                line = next((at for each, at in zip(own, lines, strict=True) if each is mark), line)
        return file, line


def _decorators(file: str) -> dict[int, list[tuple[str, int]]]:
    """Return names and lines of the decorators of each function of a file, by the line of the first one."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # tests may come from something else than Python's text
        return {}
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.decorator_list:
            called = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
            names = [each.attr if isinstance(each, ast.Attribute) else "" for each in called]
            lines = [each.lineno for each in node.decorator_list]
            found[lines[0]] = list(zip(names, lines, strict=True))
    return found
