"""What code imports that is neither Python's nor a library's, by the content of its files, and what that imports.

Found without importing anything: code may import when it runs, and a checkpoint's own code is not loaded yet when its
address is made.
"""

from __future__ import annotations

__all__ = ["Import", "imported_code", "imports_of", "loaded_as", "sources"]

import dis
import hashlib
import os
import sys
import types
import uuid
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path

from pytest_lmgate.engine.libraries import is_library

_ABSENT = "absent"
_CODE = (".py", *EXTENSION_SUFFIXES)
# What imports by a name that only a run tells.
_COMPUTED = frozenset({"__import__", "import_module", "spec_from_file_location"})
# Folders of installed packages; these are known by the versions of all that is installed there.
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Import:
    """An import statement.

    Attributes:
        module: Whole name of the module.
        names: What is taken from it; empty where it is the module itself.
        optional: Whether the code goes on without it, by ``except ImportError`` or the like.
    """

    module: str
    names: tuple[str, ...]
    optional: bool


@dataclass(frozen=True)
class _Place:
    """Where a module's code is: its own file, and the folders of a package."""

    file: Path | None
    folders: tuple[str, ...]


def imported_code(files: Iterable[Path]) -> dict[str, str]:
    """Return a digest of what Python files import, as an ingredient of an address; empty where that is nothing."""
    found = sources([each for file in files for each in _imports_in(_read(file), package="")])
    return {"imported code": hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()} if found else {}


def imports_of(code: types.CodeType, package: str) -> Iterator[Import]:
    """Yield the imports in a function's or a file's code and in all code within, less those of libraries.

    Args:
        code: The code.
        package: What relative imports are relative to; empty where they are to be left out.
    """
    instructions = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
    if _COMPUTED & set(code.co_names):
        yield Import("a name that is computed", (), optional=False)
    for index, each in enumerate(instructions):
        if each.opname != "IMPORT_NAME":
            continue
        level, names = instructions[index - 2].argval, instructions[index - 1].argval
        module = str(each.argval)
        if level:
            if not package:
                continue
            base = ".".join(package.split(".")[: len(package.split(".")) - level + 1])
            module = f"{base}.{module}" if module else base
        if not is_library(module):
            yield Import(module, tuple(names or ()), _is_optional(code, instructions, each.offset))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from imports_of(constant, package)


def loaded_as(needed: Import) -> list[types.ModuleType]:
    """Return the modules that an import statement stands for, as far as they are loaded."""
    names = [needed.module, *(f"{needed.module}.{name}" for name in needed.names)]
    return [module for name in names if isinstance(module := sys.modules.get(name), types.ModuleType)]


def sources(needed: Iterable[Import]) -> dict[str, str]:
    """Return digests of the files that imports lead to, by the modules' names.

    A package that is imported as such counts with all that is in it. What is not found where it is needed may be found
    when the code runs: it gets a digest that is never seen again.
    """
    found: dict[str, str] = {}
    waiting = [(name, each.optional) for each in needed for name in _modules(each)]
    while waiting:
        name, optional = waiting.pop()
        if is_library(name) or (name in found and (optional or found[name] != _ABSENT)):
            continue
        place = _locate(name)
        if place is None:
            found[name] = _ABSENT if optional and name not in sys.modules else uuid.uuid4().hex
            continue
        found[name] = ""
        for path, module, package in _files(name, place):
            if (folder := _installed(path)) is not None:
                found[folder.name] = _digest(repr(_versions(folder)).encode())
                break
            content = _read(path)
            found[f"{module} {path.name}"] = _digest(content)
            if path.suffix == ".py":
                waiting += [
                    (each, inner.optional) for inner in _imports_in(content, package) for each in _modules(inner)
                ]
    return found


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return uuid.uuid4().bytes


def _imports_in(content: bytes, package: str) -> list[Import]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a text's escapes, which are errors in a session that wants it so
            code = compile(content, "<imported>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return []  # nobody can import it
    return list(imports_of(code, package))


def _modules(needed: Import) -> list[str]:
    """The modules that an import statement loads: ``from package import module`` does not take the whole package."""
    inner = [f"{needed.module}.{name}" for name in needed.names]
    inner = [name for name in inner if _locate(name) is not None]
    return inner if needed.names and len(inner) == len(needed.names) else [needed.module, *inner]


def _files(name: str, place: _Place) -> Iterator[tuple[Path, str, str]]:
    """Yield a module's files, each with its module's name and package: a package's whole, and those run before it."""
    parents = name.split(".")[:-1]
    for parent in (".".join(parents[: end + 1]) for end in range(len(parents))):
        if (above := _locate(parent)) is not None and above.file is not None:
            yield above.file, parent, parent
    if place.file is not None:
        yield place.file, name, name if place.folders else ".".join(parents)
    for top in place.folders:
        if _installed(Path(top)) is not None:
            yield Path(top, "__init__.py"), name, name
            continue
        for folder, inner, files in os.walk(top):
            inner[:] = sorted(
                each for each in inner if each.isidentifier() and each not in (*_INSTALLED, "__pycache__")
            )
            package = ".".join([name, *Path(folder).relative_to(top).parts])
            yield from (
                (Path(folder, file), f"{package}.{file.partition('.')[0]}", package)
                for file in sorted(files)
                if file.endswith(_CODE)
            )


def _locate(name: str) -> _Place | None:
    if (module := sys.modules.get(name)) is not None:
        file, folders = getattr(module, "__file__", None), tuple(getattr(module, "__path__", ()))
        return _place(file, folders)
    parent, _, _ = name.rpartition(".")
    above = _locate(parent) if parent else None
    if parent and (above is None or not above.folders):
        return None
    spec = _spec(name, None if above is None else list(above.folders))
    return None if spec is None else _place(spec.origin, tuple(spec.submodule_search_locations or ()))


def _spec(name: str, path: list[str] | None) -> ModuleSpec | None:
    """As ``importlib.util.find_spec``, which would import the packages that a module is in."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except Exception:  # whatever a finder of somebody's raises: another may find it
            continue
        if spec is not None:
            return spec
    return None


def _place(file: str | None, folders: tuple[str, ...]) -> _Place | None:
    path = Path(file) if file and Path(file).is_file() else None
    folders = tuple(folder for folder in folders if Path(folder).is_dir())
    return _Place(path, folders) if path or folders else None


def _is_optional(code: types.CodeType, instructions: list[dis.Instruction], offset: int) -> bool:
    """Whether an instruction stands in a ``try`` that has an ``except`` of some type, and in no ``with`` within."""
    around = [each for each in getattr(dis.Bytecode(code), "exception_entries", ()) if each.start <= offset < each.end]
    if not around:
        return False
    handler = max(around, key=lambda each: each.start).target
    first = [each.opname for each in instructions if each.offset >= handler][:8]
    return "CHECK_EXC_MATCH" in first


def _installed(path: Path) -> Path | None:
    return next((parent for parent in path.parents if parent.name in _INSTALLED), None)


def _versions(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.glob("*-info"))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
