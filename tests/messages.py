"""Prints every message that a user can see, by file and line, so that they can be read once in a list.

    python tests/messages.py

These are the texts of three words or more that are no docstring: of errors and warnings, remarks and
notes, and what the reports write. Parts that are filled in are shown as ``{name}``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "pytest_lmgate"


def messages(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each message of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inside.add(node.value)  # a docstring
        if isinstance(node, ast.JoinedStr):
            inside.update(part for part in ast.walk(node) if part is not node and isinstance(part, ast.Constant))
    for node in ast.walk(tree):
        if node in inside:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"  # type: ignore[attr-defined]
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if len(text.split()) >= 3:
            yield node.lineno, " ".join(text.split())


if __name__ == "__main__":
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, text in messages(path):
            print(f"{path.relative_to(PACKAGE)}:{line}: {text}")
