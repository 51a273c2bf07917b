"""Finds libraries that the session patched, so that nothing measured with them is kept.

A patch is found and named, never hashed. Only modules that are already loaded can be patched, so nothing is imported to
look. `patches` compares the functions and classes of a library with the library's source: the file that their code
comes from, and the name under which it was defined. docs/cache.md names the patches that this cannot find.
"""

from __future__ import annotations

__all__ = ["patches"]

import functools
import gc
import operator
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_lmgate.identity.libraries import LIBRARIES, STANDARD_LIBRARY, home_of_file, is_library

_SCANNED = re.compile(r"(transformers|peft|tokenizers|torch\.nn)(\.|$)|torch(\.functional|\._tensor)?$")
_AUTO = re.compile(r"transformers\.models\.auto\.\w+_auto$")
# transformers puts the code that comes with a checkpoint here; it is hashed with the checkpoint's files.
_CHECKPOINTS = "transformers_modules."
_WRAPPERS = (staticmethod, classmethod, property, functools.cached_property)
_PLAIN = frozenset(
    {bool, bytes, float, int, str, types.BuiltinFunctionType, types.GetSetDescriptorType, types.MemberDescriptorType,
     types.MethodDescriptorType, types.ModuleType, types.NoneType, types.WrapperDescriptorType}
)  # fmt: skip
_DEEP = 100  # objects looked at within one callable

# Modules without a patch, with what they held then.
_CLEAN: dict[str, list[Any]] = {}
_Scan = dict[int, list[types.FunctionType]]  # code within callables that is no library's, by the callable's id


def patches() -> tuple[str, ...]:
    """Return the patches in this session, each in words; empty without any."""
    torch = sys.modules.get("torch")
    if not hasattr(torch, "_C"):
        return ()
    for name in ("peft", "tokenizers", "torch", "transformers"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and home_of_file(file) != name:  # its version does not tell of its code
            return (f"{name}, by importing it from {file}, which is no installed package",)
    scan: _Scan = {}
    found = [*_registered(), *_modes(torch), *_swapped_operators(torch)]
    for name, module in sorted(sys.modules.items()):
        if not _SCANNED.match(name) or not isinstance(module, types.ModuleType):
            continue
        held = _held(module)
        before = _CLEAN.get(name, [])
        if len(held) == len(before) and all(map(operator.is_, held, before)):
            continue
        strange = [*_patched_in(name, module, scan)]
        found += strange
        if not strange:
            _CLEAN[name] = held
    return tuple(dict.fromkeys(found))


def _held(module: types.ModuleType) -> list[Any]:
    """Return the objects that `_patched_in` looks at, so that an unchanged module is not searched again."""
    held = list(vars(module).values())
    mappings = [vars(each).get("_local_mapping", {}) for each in held if hasattr(type(each), "_global_mapping")]
    homes = (module.__name__, module.__name__.rpartition(".")[0])
    for kind in [each for each in held if isinstance(each, type) and each.__module__ in homes]:
        held += vars(kind).values()
    tables = [each for each in held if isinstance(each, dict) and "__name__" not in each]
    codes = [each.__code__ for each in held if type(each) is types.FunctionType]
    return [*held, *codes, *(value for table in [*mappings, *tables] for value in dict.values(table))]


def _patched_in(name: str, module: types.ModuleType, scan: _Scan) -> Iterator[str]:
    parent = name.rpartition(".")[0]  # some functions and classes say that they come from the package that offers them
    for key, value in list(vars(module).items()):
        if isinstance(value, type) and value.__module__ in (name, parent) and value.__name__ == key:
            if name != "torch":  # generates its classes, or has them in C; torch._tensor has the methods of Tensor
                yield from _patched_class(module, value, scan)
        elif isinstance(value, dict):
            yield from _patched_table(f"{name}.{key}", value, module, scan)
        elif (strange := _strange_code(value, module, scan)) is not None:
            yield f"{name}.{key} is {strange}"
        elif _is_swapped(key, value, module):
            yield f"{name}.{key} is {value.__module__}.{value.__qualname__}"
        elif hasattr(type(value), "_global_mapping"):  # a table of functions that may have entries of its own
            for entry, function in getattr(value, "_local_mapping", {}).items():
                home = sys.modules.get(str(getattr(function, "__module__", None)))
                set_by_library = rf"\[[\"']{re.escape(str(entry))}[\"']\]\s*=\s*{getattr(function, '__name__', None)}\b"
                if _strange_code(function, module, scan) or not home or not re.search(set_by_library, _source(home)):
                    yield f"{name}.{key}[{entry!r}] is set"


def _patched_class(module: types.ModuleType, kind: type, scan: _Scan) -> Iterator[str]:
    where = f"{module.__name__}.{kind.__qualname__}"
    for key, value in list(vars(kind).items()):
        if isinstance(value, dict):
            yield from _patched_table(f"{where}.{key}", value, module, scan)
        elif (strange := _strange_code(value, module, scan)) is not None:
            yield f"{where}.{key} is {strange}"
        elif (found := _swapped_method(key, value, module, kind)) is not None:
            yield f"{where}.{key} is {found.__module__}.{found.__qualname__}"


def _patched_table(where: str, table: dict[Any, Any], module: types.ModuleType, scan: _Scan) -> Iterator[str]:
    """Look at a table of functions or classes, such as that of attention functions."""
    if where.endswith("__"):
        return
    # As a plain dict: the items() of a lazy mapping would import what they name.
    for key, value in list(dict.items(table)):
        if not callable(value):
            continue
        if (strange := _strange_code(value, module, scan)) is not None:
            yield f"{where}[{key!r}] is {strange}"
        elif where.endswith("._global_mapping") and isinstance(value, types.FunctionType):
            entry = rf"[\"']{re.escape(str(key))}[\"']\s*:\s*{value.__name__}\b"
            if not re.search(entry, _source(module)):
                yield f"{where}[{key!r}] is {value.__module__}.{value.__qualname__}"


def _registered() -> Iterator[str]:
    """Name the classes that the session registered with transformers' auto classes."""
    for name, module in list(sys.modules.items()):
        for key, mapping in list(vars(module).items()) if _AUTO.match(name) else ():
            extra = vars(mapping).get("_extra_content") if hasattr(mapping, "__dict__") else None
            for kinds in list(extra.values()) if isinstance(extra, dict) else ():
                for kind in kinds if isinstance(kinds, tuple) else (kinds,):
                    if kind is not None and not str(getattr(kind, "__module__", "")).startswith(_CHECKPOINTS):
                        yield f"{getattr(kind, '__name__', kind)} is registered in {name}.{key}"


def _modes(torch: Any) -> Iterator[str]:
    """Name hooks on all modules, active modes, and operators that Python code of the user's implements anew."""
    everywhere = sys.modules.get("torch.nn.modules.module")
    for key, value in list(vars(everywhere).items()) if everywhere else ():
        if key.startswith("_global_") and isinstance(value, dict) and value:
            yield f"torch.nn.modules.module.{key} holds a hook on all modules"
    overrides, dispatch = (sys.modules.get(f"torch.{each}") for each in ("overrides", "utils._python_dispatch"))
    functions = getattr(overrides, "_get_current_function_mode_stack", list)
    for mode in [*functions(), *getattr(dispatch, "_get_current_dispatch_mode_stack", list)()]:
        if type(mode).__name__ != "DeviceContext":  # of torch.set_default_device
            yield f"the mode {type(mode).__module__}.{type(mode).__name__} is active"
    for each in sorted(getattr(sys.modules.get("torch.library"), "_impls", ())):
        space, name, key = (*str(each).split("/"), "", "")[:3]
        if space == "aten" and key != "Meta":
            with_files = re.findall(r"registered at (\S+\.py):\d+", _registrations(torch, f"aten::{name}"))
            yield from (f"aten::{name} is implemented in {file}" for file in with_files if not home_of_file(file))


def _registrations(torch: Any, operator: str) -> str:
    try:
        return str(torch._C._dispatch_dump(operator))
    except RuntimeError:  # an operator that is gone
        return ""


def _swapped_operators(torch: Any) -> Iterator[str]:
    """Name operators in C that stand under another operator's name, as after ``torch.bmm = torch.baddbmm``."""
    tables = (torch._C._VariableFunctions, torch._C._nn)
    for module in filter(None, (torch, sys.modules.get("torch.nn.functional"))):
        for key, value in list(vars(module).items()):
            if isinstance(value, types.BuiltinFunctionType):
                named = [getattr(table, key) for table in tables if hasattr(table, key)]
                if named and value not in named:
                    yield f"{module.__name__}.{key} is {value.__name__}"


def _strange_code(value: Any, module: types.ModuleType, scan: _Scan) -> str | None:
    """Name the code within a callable that is neither Python's nor a library's and that `module` does not import."""
    kind = type(value)
    if kind in _PLAIN:
        return None
    if kind is types.FunctionType and value.__closure__ is None:
        if _is_librarys(value):
            return None
        strangers = [value]
    elif isinstance(value, type):
        home = str(value.__module__).partition(".")[0]
        known = is_library(home) or home == "builtins" or _is_imported(value, module, home)
        return None if known else f"{value.__module__}.{value.__qualname__}"
    elif (found := scan.get(id(value))) is not None:
        strangers = found
    else:
        strangers = scan[id(value)] = [each for each in _functions_in(value) if not _is_librarys(each)]
    for function in strangers:
        package = home_of_file(function.__code__.co_filename)
        if package is None or not _is_imported(value, module, package):
            return f"{function.__globals__.get('__name__')}.{function.__code__.co_name}"
    return None


def _is_librarys(function: types.FunctionType) -> bool:
    file, space = function.__code__.co_filename, function.__globals__
    if (home := home_of_file(file)) is not None:
        return home == STANDARD_LIBRARY or is_library(home)
    # Python and the libraries write some functions at run time, such as the methods of dataclasses.
    name = str(space.get("__name__"))
    made_here = is_library(name) and getattr(sys.modules.get(name), "__dict__", None) is space
    return file.startswith("<attrs generated ") or (file[0] == "<" and (made_here or name.startswith("namedtuple_")))


def _functions_in(value: Any) -> Iterator[types.FunctionType]:
    """Yield the functions within a callable: what a decorator, a partial function or an object wraps too."""
    waiting = [value] if _may_call(value) else []
    seen: set[int] = set()
    while waiting and len(seen) < _DEEP:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, types.FunctionType):
            yield each
            held = [inner for cell in each.__closure__ or () for inner in gc.get_referents(cell)]
        else:
            held = [vars(type(each)).get("__call__"), *gc.get_referents(each)]
            held += [inner for one in held if type(one) in (dict, tuple) for inner in gc.get_referents(one)]
        waiting += filter(_may_call, held)


def _may_call(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN or isinstance(value, type):
        return False
    return kind is types.FunctionType or isinstance(value, _WRAPPERS) or callable(value)


def _is_swapped(key: str, value: Any, module: types.ModuleType) -> bool:
    """Return whether the source of `module` defines `key`, and `value` was defined elsewhere or under another name."""
    if isinstance(value, types.FunctionType):
        if _is_defined_as(value, key, module):
            return False
    elif not isinstance(value, type) or (value.__module__, value.__name__) == (module.__name__, key):
        return False
    if (homes := vars(module).get("_class_to_module")) is not None:  # a lazy module: it takes its names from others
        home = sys.modules.get(f"{module.__name__}.{homes.get(key)}")
        return home is not None and vars(home).get(key, value) is not value
    return str(value.__module__).partition(".")[0] in LIBRARIES and key in _definitions(module)


def _swapped_method(key: str, value: Any, module: types.ModuleType, kind: type) -> types.FunctionType | None:
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    function = function.fget if isinstance(function, property) else function
    if type(function) is not types.FunctionType or _is_defined_as(function, f"{kind.__qualname__}.{key}", module):
        return None
    file = function.__code__.co_filename
    # transformers copies the methods of auto_factory.py into the auto classes.
    if home_of_file(file) not in LIBRARIES or file.endswith("auto_factory.py"):
        return None
    return function if f"\n    def {key}(" in _body(module, kind.__name__) else None


def _is_defined_as(function: Any, name: str, module: types.ModuleType) -> bool:
    """Return whether a function's code, or the code that it wraps, comes from `module` under a qualified name."""
    file = getattr(module, "__file__", None)
    for _ in range(_DEEP):
        code = getattr(function, "__code__", None)
        if isinstance(code, types.CodeType) and (code.co_filename, code.co_name) == (file, name.rpartition(".")[2]):
            return getattr(code, "co_qualname", name) == name  # Python 3.10 has none
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return False
    return False


@functools.cache
def _text(file: str | None) -> str:
    try:
        return "\n" + Path(file or "").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _source(module: types.ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return _text(file if isinstance(file, str) and file.endswith(".py") else None)


@functools.cache
def _definitions(module: types.ModuleType) -> frozenset[str]:
    """Return the names of the functions and classes that a module's source defines, outside all blocks."""
    parts = [part for word in ("\ndef ", "\nclass ") for part in _source(module).split(word)[1:]]
    return frozenset(re.split(r"\W", part, maxsplit=1)[0] for part in parts)


@functools.cache
def _body(module: types.ModuleType, name: str) -> str:
    """Return the source of a class's body, down to the next line that is not indented."""
    _, found, rest = _source(module).partition(f"\nclass {name}")
    return re.split(r"\n(?=[^\s#)])", rest, maxsplit=1)[0] if found else ""


def _is_imported(value: Any, module: types.ModuleType, home: str) -> bool:
    """Return whether a library's module imports an object of another package, or takes it from a module that does."""
    if _imports(module, home):
        return True
    library = module.__name__.partition(".")[0]
    others = [each for name, each in list(sys.modules.items()) if name.partition(".")[0] == library]
    return any(
        isinstance(each, types.ModuleType)
        and any(held is value for held in list(vars(each).values()))
        and _imports(each, home)
        for each in others
    )


@functools.cache
def _imports(module: types.ModuleType, home: str) -> bool:
    """Return whether a library's module imports a package by its own source, and so may hold the package's code."""
    return re.search(rf"^\s*(from|import)\s+{re.escape(home)}\b", _source(module), re.MULTILINE) is not None
