"""Names that another package keeps private are used in modules called ``private.py`` alone, where they are found."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "pytest_lmgate"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "private.py")
# Of Python itself, documented in spite of their names.
DOCUMENTED = {"_asdict", "_exit", "_replace"}


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.endswith("__") and name.isidentifier()


def is_named(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def defined(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the private names that code gives to classes, functions, variables and attributes of its own."""
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_named(node.value, "self"):
            yield node.attr


def used(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield what code reads, as its text, and the private name in it."""
    for node in nodes:
        names: list[object] = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            paths = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            names = [part for path in paths for part in path.split(".")]
        elif isinstance(node, ast.Call) and is_named(node.func, "getattr", "setattr", "hasattr", "delattr"):
            names = [argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant)]
        yield from ((ast.unparse(node), str(name)) for name in names if is_private(name))


def foreign(codes: dict[str, str]) -> list[str]:
    """Return uses of private names that no code defines; of ``super()``, also those that one class alone defines."""
    nodes = {file: [*ast.walk(ast.parse(code))] for file, code in codes.items()}
    own = Counter(name for each in nodes.values() for name in defined(each))
    return [
        f"{file}: {text}"
        for file, each in nodes.items()
        for text, name in used(each)
        if name not in DOCUMENTED and own[name] < (2 if text.startswith("super()") else 1)
    ]


def test_private_names_of_other_packages_are_used_in_modules_of_that_name_alone() -> None:
    assert foreign({str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in MODULES}) == []
