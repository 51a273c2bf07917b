"""What the Python code that comes with a checkpoint imports: its own files, installed packages, or anything else."""

from __future__ import annotations

__all__ = ["Imports", "imports_of", "several"]

import ast
import importlib.util
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_lmgate.identity.libraries import home_of_file, is_library

# These import or run code under a name that only a run tells.
_COMPUTED = frozenset(
    {"__import__", "exec_module", "import_module", "load_module", "run_module", "run_path", "spec_from_file_location"}
)


class Imports(NamedTuple):
    """What Python files import.

    Attributes:
        packages: Whether they import an installed package that is none of the libraries.
        unknown: Why the files alone do not tell what runs, in words; empty if they do.
    """

    packages: bool
    unknown: str


def imports_of(files: Iterable[Path]) -> Imports:
    """Return what Python files import, found without running or importing anything."""
    packages = False
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # escapes in texts, which are errors in a session under -W error
                tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            return Imports(packages, f"{file.name} cannot be read as Python: {error}")
        for name, optional in _imported(tree, optional=False):
            if name in _COMPUTED:
                return Imports(
                    packages, f"{file.name} imports by {name}, with a module's name that is computed at run time"
                )
            home = _home(name)
            if home == "outside" or (home == "absent" and not optional):
                where = "which is not installed" if home == "absent" else "which is not an installed package"
                return Imports(packages, f"{file.name} imports {name}, {where}")
            packages = packages or home == "installed"
    return Imports(packages, "")


def _imported(tree: ast.AST, *, optional: bool) -> Iterator[tuple[str, bool]]:
    """Yield the packages that code imports absolutely, and whether the code catches that one is absent."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], optional) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0], optional
        elif isinstance(node, ast.Name) and node.id in _COMPUTED | {"exec"}:
            yield "__import__" if node.id == "exec" else node.id, optional
        elif isinstance(node, ast.Attribute) and node.attr in _COMPUTED:
            yield node.attr, optional
        if isinstance(node, ast.Try):
            for part in ("body", "handlers", "orelse", "finalbody"):
                inner = ast.Module(body=getattr(node, part), type_ignores=[])
                yield from _imported(inner, optional=optional or (part == "body" and bool(node.handlers)))
        else:
            yield from _imported(node, optional=optional)


def _home(name: str) -> str:
    """Return where a package lies: ``library``, ``installed``, ``outside`` of what is installed, or ``absent``."""
    if is_library(name):
        return "library"
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return "outside"
    if spec is None:
        return "absent"
    places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
    return "installed" if places and all(home_of_file(str(place)) for place in places) else "outside"


def several(reasons: Sequence[str]) -> str:
    """Name the first two of several reasons."""
    more = f" and {len(reasons) - 2} more" if len(reasons) > 2 else ""
    return ", ".join(reasons[:2]) + more
