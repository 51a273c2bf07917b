"""What the source of a library's module says: its functions and classes, its imports, and its tables of functions.

Sources are searched as text, and read once a session.
"""

from __future__ import annotations

__all__ = ["body", "definitions", "is_code_of", "is_defined_as", "is_entry", "is_imported"]

import functools
import operator
import re
import sys
import types
from pathlib import Path
from typing import Any

_WRAPPED = 100  # functions within one another
_DEFINITIONS = r"\n(?:def|class) (\w+)"
_IMPORTS = r"\n[ \t]*(?:from|import)\s+(\w+)"
_ENTRIES = r"[\"']([^\"'\n]+)[\"']\]?\s*[:=]\s*(\w+)"  # {"sdpa": attend} and table["sdpa"] = attend
_CHOICES = r"\n(\w+) = (\w+) if [^\n]+ else (\w+)\n"  # attend = attend_new if NEW_TORCH else attend_old


def definitions(module: types.ModuleType) -> frozenset[str]:
    """Return the names of the functions and classes that a module's source defines, outside all blocks."""
    return _in_source(module, _DEFINITIONS)


def is_entry(key: object, function: Any, module: types.ModuleType) -> bool:
    """Return whether the source of a module puts a function into a table under `key`, by its name or by one of two."""
    name, entries = getattr(function, "__name__", None), _in_source(module, _ENTRIES)
    chosen = (chosen for chosen, *two in _in_source(module, _CHOICES) if name in two)
    return any((key, each) in entries for each in (name, *chosen))


def is_code_of(code: types.CodeType, path: str, file: str | None) -> bool:
    """Return whether code comes from a file under a qualified name, which Python 3.10 does not keep."""
    if code.co_filename != file or code.co_name != path.rpartition(".")[2]:
        return False
    return getattr(code, "co_qualname", path) == path


def is_defined_as(function: Any, path: str, module: types.ModuleType) -> bool:
    """Return whether a function's code, or the code that it wraps, comes from `module` under a qualified name."""
    file = getattr(module, "__file__", None)
    for _ in range(_WRAPPED):
        code = getattr(function, "__code__", None)
        if isinstance(code, types.CodeType) and (code.co_filename, code.co_name) == (file, path.rpartition(".")[2]):
            return is_code_of(code, path, file)
        if (function := getattr(function, "__wrapped__", None)) is None:
            return False
    return False


def is_imported(value: Any, module: types.ModuleType, home: str) -> bool:
    """Return whether a library's module imports an object of another package, or takes it from a module that does.

    A module that imports a package by its own source may hold the package's code.
    """
    if home in _in_source(module, _IMPORTS):
        return True
    library, is_value = module.__name__.partition(".")[0], functools.partial(operator.is_, value)
    return any(
        isinstance(each, types.ModuleType)
        and any(map(is_value, list(vars(each).values())))
        and home in _in_source(each, _IMPORTS)
        for name, each in list(sys.modules.items())
        if name.partition(".")[0] == library
    )


@functools.cache
def body(module: types.ModuleType, name: str) -> str:
    """Return the source of a class's body, down to the next line that is not indented."""
    _, found, rest = _source(module).partition(f"\nclass {name}")
    return re.split(r"\n(?=[^\s#)])", rest, maxsplit=1)[0] if found else ""


@functools.cache
def _in_source(module: types.ModuleType, pattern: str) -> frozenset[Any]:
    return frozenset(re.findall(pattern, _source(module)))


@functools.cache
def _source(module: types.ModuleType) -> str:
    """Return the source of a module after a line break; empty for a module without one."""
    file = getattr(module, "__file__", None)
    try:
        return "\n" + Path(file).read_bytes().decode() if isinstance(file, str) and file.endswith(".py") else ""
    except (OSError, UnicodeDecodeError):
        return ""
