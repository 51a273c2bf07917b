"""Code that runs with a model and is not in its files: libraries, patches of them, and what a checkpoint imports.

A session that patches a library keeps nothing that it measures. `find_patched_libraries` is a short check that the
functions and classes which run a model are their libraries' own. docs/cache.md says what it does not see.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import linecache
import os
import re
import site
import sys
import sysconfig
import types
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# An address holds the version of these libraries, so their own code and objects are known by name.
LIBRARIES = frozenset({"accelerate", "bitsandbytes", "numpy", "peft", "tokenizers", "torch", "torchao", "transformers"})
# The kernels of quantized models come from one of these.
QUANTIZERS = ("accelerate", "bitsandbytes", "torchao", "gptqmodel", "autoawq", "compressed-tensors", "optimum", "hqq")
# The libraries use functions of these packages, which compute nothing.
_BENEATH = frozenset({"huggingface_hub", "packaging", "safetensors", "tqdm", "typing_extensions"})
_PACKAGES = LIBRARIES | _BENEATH | sys.stdlib_module_names
STANDARD_LIBRARY = "the standard library"


@functools.cache
def is_library(module: str | None) -> bool:
    return str(module).partition(".")[0] in _PACKAGES


@functools.cache
def home_of_file(file: str) -> str | None:
    """Return the installed package of a source file (``code.co_filename``); None for a user's file."""
    if file.startswith("<frozen "):
        return STANDARD_LIBRARY
    for folder in _site_folders():
        if file.startswith(folder):
            return file[len(folder) :].partition(os.sep)[0].removesuffix(".py")
    standard = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
    return STANDARD_LIBRARY if file.startswith(standard) else None


@functools.cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed versions of packages, or ``absent``, without importing them."""
    return {package: _version(package) for package in packages}


@functools.cache
def _site_folders() -> tuple[str, ...]:
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    folders.add(site.getusersitepackages())
    # Packages may be installed elsewhere, as by `pip install --target`.
    folders |= {path for path in sys.path if path.endswith("-packages") or any(Path(path).glob("*.dist-info"))}
    return tuple(sorted((f"{each}{os.sep}" for each in folders), key=len, reverse=True))


# Where code runs that computes, reads and writes; the rest of torch and PEFT is too much to look through.
_RUNNING = re.compile(
    r"(transformers(?!\.(pipelines|train|utils\.logging))|peft\.(peft_model|tuners\.(tuners_utils|lora))|tokenizers"
    r"|torch\.nn\.(functional|modules))(\.|$)|torch(\.functional|\._tensor)?$"
)
_INNER = {staticmethod: "__func__", classmethod: "__func__", property: "fget", functools.partialmethod: "func"}
# What was added to a lazy table of transformers; its items() would import what they name.
_ADDED = ("_extra_content", "_global_mapping", "_local_mapping")


def find_patched_libraries() -> tuple[str, ...]:
    """Return the patches of libraries in this session, each in words; nothing is imported to look."""
    if not hasattr(sys.modules.get("torch"), "_C"):
        return ()
    for name in ("peft", "tokenizers", "torch", "transformers"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and home_of_file(file) != name:  # its version does not tell of its code
            return (f"{name}, by importing it from {file}, which is not an installed package",)
    modules = [(name, each) for name, each in sorted(sys.modules.items()) if _RUNNING.match(name)]
    found = (each for name, module in modules for each in _foreign(name, module, module))
    return tuple(dict.fromkeys(f"{path} is {code.__module__}.{code.__qualname__}" for path, code in found))


def summarize(reasons: Sequence[str]) -> str:
    """Name the first two of several reasons."""
    more = f" and {len(reasons) - 2} more" if len(reasons) > 2 else ""
    return ", ".join(reasons[:2]) + more


def _foreign(path: str, value: Any, module: types.ModuleType, depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes in a module, its classes and its tables that are not a library's."""
    value = getattr(value, _INNER[type(value)]) if type(value) in _INNER else value
    code = value if isinstance(value, types.FunctionType | type) else type(value)
    known = (code is not value and is_library(code.__module__)) or _is_librarys(code, module)
    if not known or code.__module__ == "unittest.mock":
        yield path, code
    held: Mapping[Any, Any] = {}
    if type(value) in (dict, OrderedDict):  # hooks on all modules are in an OrderedDict
        held = value
    elif type(value) is tuple:
        held = dict(enumerate(value))
    elif value is module or (value is code and code.__module__ == module.__name__ and isinstance(code, type)):
        held = vars(value)
    elif isinstance(value, MutableMapping):
        held = {name: vars(value)[name] for name in _ADDED if name in getattr(value, "__dict__", ())}
    for key, member in list(held.items()) if depth else ():
        kind = type(member)
        if kind is types.FunctionType:  # most of what is left is one
            if not _is_librarys(member, module):
                yield f"{path}.{key}", member
        elif not _is_dull(kind) and key != "__builtins__":  # type: ignore[arg-type]  # mypy doubts that types hash
            yield from _foreign(f"{path}.{key}", member, module, depth - 1)


@functools.cache
def _is_dull(kind: type) -> bool:
    """Whether objects of a type are a library's and hold no code that Python wrote, as most members are."""
    holds_code = kind in _INNER or issubclass(kind, type | MutableMapping | tuple)
    return is_library(kind.__module__) and kind.__module__ != "unittest.mock" and not holds_code


def _is_librarys(code: Any, module: types.ModuleType) -> bool:
    """Whether a function or class in `module` is a library's, or of a package that the module's source names."""
    if isinstance(code, type):
        return _is_home(getattr(sys.modules.get(code.__module__), "__file__", None) or code.__module__, module)
    if not _is_home(code.__code__.co_filename, module):
        return False
    called = inspect.unwrap(code) if hasattr(code, "__wrapped__") else code  # a decorator hides what it calls
    return not hasattr(called, "__code__") or _is_home(called.__code__.co_filename, module)


@functools.cache
def _is_home(file: str, module: types.ModuleType) -> bool:
    if file[0] == "<" or os.sep not in file:  # some code is written at run time
        return True
    home = home_of_file(file)
    if home is None or home == STANDARD_LIBRARY or is_library(home):
        return home is not None
    return any(home in line for line in linecache.getlines(str(module.__file__)))


# These import or run code under a name that only a run tells.
_COMPUTED = frozenset({"__import__", "exec", "exec_module", "import_module", "load_module", "run_module", "run_path"})


def find_unknown_import(files: Iterable[Path]) -> str:
    """Return why Python files do not identify the code that runs; empty if they import each other and libraries only.

    Nothing is imported to find out. A package that is not installed cannot run.
    """
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # escapes in texts, which are errors in a session under -W error
                nodes = [*ast.walk(ast.parse(file.read_bytes()))]
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            return f"{file.name} cannot be read as Python: {error}"
        for node in nodes:
            called = getattr(node, "id", getattr(node, "attr", None))
            if called in _COMPUTED or called == "spec_from_file_location":
                return f"{file.name} imports by {called}, with a name that is computed at run time"
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            for name in {name.partition(".")[0] for name in names if not is_library(name)}:
                if _is_installed(name):
                    return f"{file.name} imports {name}, whose version is not part of the cache key"
    return ""


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a module that the session made, without a file
        return True
