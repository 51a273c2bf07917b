"""Code that runs with a model and is not in its files: libraries, and patches of them.

A session that patches a library keeps nothing that it measures. `find_patched_libraries` is a short check that the
functions and classes which run a model are their libraries' own. docs/cache.md says what it does not see.
"""

from __future__ import annotations

import functools
import linecache
import operator
import os
import re
import site
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# An address holds the version of these libraries, so their own code and objects are known by name.
LIBRARIES = frozenset({"accelerate", "bitsandbytes", "numpy", "peft", "tokenizers", "torch", "torchao", "transformers"})
# The kernels of quantized models come from one of these.
QUANTIZERS = ("accelerate", "bitsandbytes", "torchao", "gptqmodel", "autoawq", "compressed-tensors", "optimum", "hqq")
# The libraries use functions of these packages, which compute nothing; Python's own modules in C are in lib-dynload.
_BENEATH = frozenset({"huggingface_hub", "lib-dynload", "packaging", "safetensors", "tqdm", "typing_extensions"})
_PACKAGES = LIBRARIES | _BENEATH | sys.stdlib_module_names


@functools.cache
def is_library(module: str | None) -> bool:
    return str(module).partition(".")[0] in _PACKAGES


@functools.cache
def home_of_file(file: str) -> str | None:
    """Return the installed package or Python's own module of a source file; None for a user's file."""
    found = (file[len(folder) :] for folder in _folders() if file.startswith(folder))
    return next((path.partition(os.sep)[0].removesuffix(".py") for path in found), None)


@functools.cache
def _folders() -> tuple[str, ...]:
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    # Packages may be installed elsewhere, as by `pip install --target`.
    folders |= {path for path in sys.path if path.endswith("-packages") or any(Path(path).glob("*.dist-info"))}
    return tuple(sorted((f"{each}{os.sep}" for each in folders), key=len, reverse=True))


@functools.cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed versions of packages, or ``absent``, without importing them."""
    return {package: _version(package) for package in packages}


# Where code runs that computes, reads and writes; the rest of torch and PEFT is too much to look through.
_RUNNING = re.compile(
    r"(transformers(?!\.(pipelines|train|utils\.logging))|peft\.(peft_model|tuners\.(tuners_utils|lora))|tokenizers"
    r"|torch\.nn\.(functional|modules))(\.|$)|torch(\.functional|\._tensor)?$"
)
_INNER = {staticmethod: "__func__", classmethod: "__func__", property: "fget", functools.partialmethod: "func"}


def find_patched_libraries() -> tuple[str, ...]:
    """Return the patches of libraries in this session, each in words; nothing is imported to look."""
    if not hasattr(sys.modules.get("torch"), "_C"):
        return ()
    for name in ("peft", "tokenizers", "torch", "transformers"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and home_of_file(file) != name:  # its version does not tell of its code
            return (f"{name}, by importing it from {file}, which is not an installed package",)
    modules = sorted((name, each) for name, each in list(sys.modules.items()) if _RUNNING.match(name))
    patches = dict.fromkeys(patch for name, module in modules for patch in _patches_in(name, module))
    return tuple(patches)


class _Look:
    """What a module without a patch held when it was looked through.

    Code is patched by putting something else into a table or an attribute, so a look compares identities and types.
    """

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module
        self.tables: list[tuple[Mapping[Any, Any], list[Any], list[type]]] = []
        self.parts: list[tuple[Any, str, Any]] = [(module, "__class__", type(module))]

    def is_current(self, module: types.ModuleType) -> bool:
        return (
            module is self.module
            and all(
                _are(_values(table), members) and _are(list(map(type, members)), kinds)
                for table, members, kinds in self.tables
            )
            and all(getattr(owner, name, None) is part for owner, name, part in self.parts)
        )

    def note(self, table: Mapping[Any, Any]) -> None:
        members = _values(table)
        self.tables.append((table, members, list(map(type, members))))

    def part(self, owner: Any, name: str) -> Any:
        """Return an attribute in which a patch could be put."""
        found = getattr(owner, name)
        self.parts.append((owner, name, found))
        return found


def _are(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    return len(found) == len(expected) and all(map(operator.is_, found, expected))


# Lists are made at once: another thread may import something meanwhile.
def _values(table: Mapping[Any, Any]) -> list[Any]:
    return list(dict.values(table) if isinstance(table, dict) else table.values())


def _items(table: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Return what a table holds; a lazy one, of a class of its own, imports nothing for that."""
    return list(dict.items(table) if isinstance(table, dict) else table.items())


_last: dict[str, _Look] = {}


def _patches_in(name: str, module: types.ModuleType) -> list[str]:
    """Return the patches in a module; one that has not changed since it had none is not looked through again."""
    if name in _last and _last[name].is_current(module):
        return []
    _last.pop(name, None)
    look = _Look(module)
    found = [f"{path} is {code.__module__}.{code.__qualname__}" for path, code in _foreign(name, module, module, look)]
    if not found:
        _last[name] = look
    return found


def summarize(reasons: Sequence[str]) -> str:
    """Name the first two of several reasons."""
    more = f" and {len(reasons) - 2} more" if len(reasons) > 2 else ""
    return ", ".join(reasons[:2]) + more


def _foreign(path: str, value: Any, module: types.ModuleType, look: _Look, depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes in a module, its classes and its tables that are not a library's.

    What is looked at is noted in `look`.
    """
    value = look.part(value, _INNER[type(value)]) if type(value) in _INNER else value
    code = value if isinstance(value, types.FunctionType | type) else type(value)
    if not all(_is_librarys(each, module) for each in (code, *_called(code, look))):
        yield path, code
    tables: list[Mapping[Any, Any]] = []
    if value is module or (value is code and isinstance(value, type) and value.__module__ == module.__name__):
        tables = [vars(value)]
    elif issubclass(type(value), MutableMapping):
        # The items() of a lazy table would import what it names; it keeps that in its own attributes.
        tables = [*([value] if isinstance(value, dict) else []), getattr(value, "__dict__", {})]
    for table in tables:
        look.note(table)
    if type(value) is tuple:  # which cannot change
        tables = [dict(enumerate(value))]
    for key, member in [each for table in tables for each in _items(table)] if depth else ():
        if not _is_dull(type(member)) and key != "__builtins__":  # type: ignore[arg-type]  # mypy doubts that types hash
            yield from _foreign(f"{path}.{key}", member, module, look, depth - 1)


def _called(code: Any, look: _Look) -> Iterator[Any]:
    """Yield the functions that a function's decorators hide."""
    for _ in range(99):  # a function may wrap itself
        if isinstance(code, types.FunctionType):
            look.part(code, "__code__")
        if not hasattr(code, "__wrapped__"):
            return
        code = look.part(code, "__wrapped__")
        yield code


@functools.cache
def _is_dull(kind: type) -> bool:
    """Whether objects of a type, as of most members, are a library's and hold no code that Python wrote."""
    holds_code = kind in _INNER or issubclass(kind, type | types.FunctionType | MutableMapping | tuple)
    return is_library(kind.__module__) and kind.__module__ != "unittest.mock" and not holds_code


def _is_librarys(code: Any, module: types.ModuleType) -> bool:
    """Whether a function or class in `module` is a library's, or of a package that the module's source names."""
    if isinstance(code, type):
        file = getattr(sys.modules.get(code.__module__), "__file__", None) or code.__module__
        return code.__module__ != "unittest.mock" and _is_home(file, module)
    return not hasattr(code, "__code__") or _is_home(code.__code__.co_filename, module)


@functools.cache
def _is_home(file: str, module: types.ModuleType) -> bool:
    if file[0] == "<" or os.sep not in file:  # some code is written at run time
        return True
    home = home_of_file(file)
    return home is not None and (
        is_library(home) or any(home in line for line in linecache.getlines(str(module.__file__)))
    )
