"""Writes every message that a user can see to messages.txt, so that they can be read and reviewed in one list.

    python tests/messages.py

These are the texts of three words or more that are no docstring: of errors and warnings, remarks and
notes, and what the reports write. Parts that are filled in are shown as ``{}``.
"""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "pytest_lmgate"
LIST = Path(__file__).with_name("messages.txt")


def messages(file: Path) -> set[str]:
    """Return the messages of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside: set[ast.AST] = set()
    texts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inside.add(node.value)  # a docstring
        if isinstance(node, ast.JoinedStr):
            inside.update(part for part in ast.walk(node) if part is not node and isinstance(part, ast.Constant))
            texts.add("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            texts.add(node.value)
    return {" ".join(text.split()) for text in texts if len(text.split()) >= 3}


def listed() -> str:
    """Return the list: the name of each file, and its messages by the alphabet."""
    lines = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if found := messages(path):
            lines += [path.relative_to(PACKAGE).as_posix(), *(f"    {text}" for text in sorted(found))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    LIST.write_text(listed(), encoding="utf-8")
