"""Code that runs with a model and is not in its files: patches of libraries, and what a checkpoint's own code imports.

A session that patches a library keeps nothing that it measures. We look for the common patches: functions and classes
in the modules that run a model which come from no installed library; hooks on all modules, active torch modes, classes
registered with transformers' auto classes. Only loaded modules can be patched, so nothing is imported to look. Python
allows more ways than this can see: docs/cache.md says which, and what to do.
"""

from __future__ import annotations

__all__ = ["Imports", "find_patched_libraries", "imports_of", "summarize"]

import ast
import functools
import importlib.util
import re
import sys
import types
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_lmgate.identity.libraries import STANDARD_LIBRARY, home_of_file, is_library

_RUNNING = re.compile(
    r"transformers\.(models\..+\.(modeling|tokenization)_\w+|(modeling|tokenization)_\w+|activations|cache_utils"
    r"|generation\.(utils|logits_process)|integrations\.\w+|masking_utils|pytorch_utils)$"
    r"|peft\.(peft_model|tuners\.(tuners_utils|lora\.\w+))$|tokenizers$|torch\.nn\.(functional|modules\.\w+)$|torch(\.functional|\._tensor)?$"
)
_AUTO = re.compile(r"transformers\.models\.auto\.\w+_auto$")
# transformers puts the code that comes with a checkpoint here; it is hashed with the checkpoint's files.
_CHECKPOINTS = "transformers_modules."


def find_patched_libraries() -> tuple[str, ...]:
    """Return the patches in this session, each in words; empty without any."""
    torch = sys.modules.get("torch")
    if not hasattr(torch, "_C"):
        return ()
    for name in ("peft", "tokenizers", "torch", "transformers"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and home_of_file(file) != name:  # its version does not tell of its code
            return (f"{name}, by importing it from {file}, which is no installed package",)
    found = [*_modes(), *_registered()]
    for name, module in sorted(sys.modules.items()):
        if _RUNNING.match(name) and isinstance(module, types.ModuleType):
            found += [
                f"{name}.{path} is {value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}"
                for path, value in _code_in(module)
                if not _is_librarys(value, module)
            ]
    return tuple(dict.fromkeys(found))


def summarize(reasons: Sequence[str]) -> str:
    """Name the first two of several reasons."""
    more = f" and {len(reasons) - 2} more" if len(reasons) > 2 else ""
    return ", ".join(reasons[:2]) + more


def _code_in(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield functions and classes: of a module, of the classes that it defines, and of its tables of functions."""
    for key, value in list(vars(module).items()):
        if isinstance(value, types.FunctionType) or _is_mock(value):
            yield key, value
        elif isinstance(value, type):
            yield key, value
            members = vars(value).items() if value.__module__ == module.__name__ else ()
            for name, member in list(members):
                function = member if _is_mock(member) else getattr(member, "__func__", getattr(member, "fget", member))
                function = function.func if isinstance(function, functools.partialmethod) else function
                if isinstance(function, types.FunctionType) or _is_mock(function):
                    yield f"{key}.{name}", function
        elif isinstance(value, dict) or "_local_mapping" in getattr(value, "__dict__", ()):
            # The items() of a lazy mapping would import what they name; a table of attention functions has two dicts.
            tables = [value] if isinstance(value, dict) else [value._local_mapping, type(value)._global_mapping]
            for table in tables:
                for name, member in list(dict.items(table)):
                    if isinstance(member, types.FunctionType | type):
                        yield f"{key}[{name!r}]", member


def _is_mock(value: object) -> bool:
    return type(value).__module__ == "unittest.mock"  # each has a class of its own


def _is_librarys(value: Any, module: types.ModuleType) -> bool:
    """Return whether a function or class in `module` is a library's, or of a package that the module's source names."""
    if _is_mock(value):
        return False
    file: str | None
    if isinstance(value, types.FunctionType):
        file, name = value.__code__.co_filename, str(value.__globals__.get("__name__"))
        # Some are written at run time, such as the methods of dataclasses.
        if _is_library_file(file) or (file[0] == "<" and (is_library(name) or name.startswith("namedtuple_"))):
            wrapped = vars(value).get("__wrapped__")  # by a library's decorator
            return not isinstance(wrapped, types.FunctionType) or _is_librarys(wrapped, module)
    else:
        name, file = str(value.__module__), getattr(sys.modules.get(str(value.__module__)), "__file__", None)
        if is_library(name) or issubclass(value, BaseException):  # an exception computes nothing
            return True
    home = home_of_file(file) if file else name.partition(".")[0]
    return home is not None and _names(module, home)


@functools.cache
def _is_library_file(file: str) -> bool:
    home = home_of_file(file)
    return home == STANDARD_LIBRARY or is_library(home)


@functools.cache
def _names(module: types.ModuleType, package: str) -> bool:
    try:
        return package in Path(str(module.__file__)).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def _registered() -> Iterator[str]:
    """Name the classes that the session registered with transformers' auto classes."""
    for name, module in list(sys.modules.items()):
        for key, mapping in list(vars(module).items()) if _AUTO.match(name) else ():
            extra = vars(mapping).get("_extra_content") if hasattr(mapping, "__dict__") else None
            for kinds in list(extra.values()) if isinstance(extra, dict) else ():
                for kind in kinds if isinstance(kinds, tuple) else (kinds,):
                    if kind is not None and not str(getattr(kind, "__module__", "")).startswith(_CHECKPOINTS):
                        yield f"{getattr(kind, '__name__', kind)} is registered in {name}.{key}"


def _modes() -> Iterator[str]:
    """Name hooks on all modules, and active modes of torch."""
    everywhere = sys.modules.get("torch.nn.modules.module")
    for key, value in list(vars(everywhere).items()) if everywhere else ():
        if key.startswith("_global_") and isinstance(value, dict) and value:
            yield f"torch.nn.modules.module.{key} holds a hook on all modules"
    overrides, dispatch = (sys.modules.get(f"torch.{each}") for each in ("overrides", "utils._python_dispatch"))
    functions = getattr(overrides, "_get_current_function_mode_stack", list)
    for mode in [*functions(), *getattr(dispatch, "_get_current_dispatch_mode_stack", list)()]:
        if type(mode).__name__ != "DeviceContext":  # of torch.set_default_device
            yield f"the mode {type(mode).__module__}.{type(mode).__name__} is active"


# These import or run code under a name that only a run tells.
_COMPUTED = frozenset(
    {"__import__", "exec", "exec_module", "import_module", "load_module", "run_module", "run_path",
     "spec_from_file_location"}
)  # fmt: skip


class Imports(NamedTuple):
    """What Python files import.

    Attributes:
        packages: Whether they import an installed package that is none of the libraries.
        unknown: Why the files alone do not tell what runs, in words; empty if they do.
    """

    packages: bool
    unknown: str


def imports_of(files: Iterable[Path]) -> Imports:
    """Return what Python files import, found without running or importing anything.

    A package that is not installed cannot run, so the code does without it or fails.
    """
    packages = False
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # escapes in texts, which are errors in a session under -W error
                nodes = [*ast.walk(ast.parse(file.read_bytes()))]
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            return Imports(packages, f"{file.name} cannot be read as Python: {error}")
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
        for called in (getattr(node, "id", getattr(node, "attr", None)) for node in nodes):
            if called in _COMPUTED:
                return Imports(packages, f"{file.name} imports by {called}, with a name that is computed at run time")
        for name in {name.partition(".")[0] for name in names}:
            if is_library(name):
                continue
            if not (places := _places(name)):
                continue
            if not all(map(home_of_file, places)):
                return Imports(packages, f"{file.name} imports {name}, which is not an installed package")
            packages = True
    return Imports(packages, "")


def _places(name: str) -> list[str]:
    """Return where the code of a package lies; empty where it is not installed."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module that the session made, without a file
        return ["nowhere"]
    if spec is None:
        return []
    return [spec.origin] if spec.has_location and spec.origin else [*(spec.submodule_search_locations or ["nowhere"])]
