"""Finds libraries that the session patched, so that nothing measured with them is kept.

A patch is found and named, never hashed. Only modules that are already loaded can be patched, so nothing is imported to
look. `patches` compares the functions and classes of a library with the library's source: the file that their code
comes from, and the name under which it was defined. docs/cache.md names the patches that this cannot find.
"""

from __future__ import annotations

__all__ = ["patches"]

import contextlib
import functools
import gc
import itertools
import operator
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_lmgate.identity.libraries import LIBRARIES, STANDARD_LIBRARY, home_of_file, is_library
from pytest_lmgate.identity.module_source import body, definitions, is_code_of, is_defined_as, is_entry, is_imported

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
_CODE = operator.attrgetter("__code__")
_NO_ENTRIES: dict[Any, Any] = {}
_Scan = dict[int, list[types.FunctionType]]  # code within callables that is no library's, by the callable's id


class _Held:
    """The objects of a module that `_patched_in` looks at, so that an unchanged module is not searched again."""

    def __init__(self, module: types.ModuleType) -> None:
        self._own = [*vars(module).values()]
        self._functions: list[types.FunctionType] = []
        kinds = [each for each in self._own if isinstance(each, type) and each.__module__ in _homes(module)]
        self._tables: list[Mapping[Any, Any]] = [vars(kind) for kind in kinds]
        for each in [*self._own, *itertools.chain.from_iterable(table.values() for table in self._tables)]:
            if (kind := type(each)) is types.FunctionType:
                self._functions.append(each)
            elif kind not in _PLAIN and kind is not type:
                table = each if isinstance(each, dict) else _own_entries(each)
                if table is not _NO_ENTRIES and "__name__" not in table:
                    self._tables.append(table)
        self._inner = [*self._inside()]

    def is_still_in(self, module: types.ModuleType) -> bool:
        """Return whether the module holds the same objects still, down to the code of its functions."""
        return _are_same(self._own, [*vars(module).values()]) and _are_same(self._inner, [*self._inside()])

    def _inside(self) -> Iterator[Any]:
        for table in self._tables:
            yield from dict.values(table) if isinstance(table, dict) else table.values()
        yield from map(_CODE, self._functions)


def _are_same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


# Modules without a patch, with what they held then.
_CLEAN: dict[str, _Held] = {}


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
        if (before := _CLEAN.get(name)) is not None and before.is_still_in(module):
            continue
        held = _Held(module)
        strange = [*_patched_in(module, scan)]
        found += strange
        if not strange:
            _CLEAN[name] = held
    return tuple(dict.fromkeys(found))


def _homes(module: types.ModuleType) -> tuple[str, str]:
    """Return where a module's classes may say that they come from: it, or the package that offers them."""
    return module.__name__, module.__name__.rpartition(".")[0]


def _own_entries(value: Any) -> dict[Any, Any]:
    """Return the entries that one of transformers' tables of functions has beside those that all tables share."""
    return vars(value).get("_local_mapping", _NO_ENTRIES) if hasattr(type(value), "_global_mapping") else _NO_ENTRIES


def _patched_in(module: types.ModuleType, scan: _Scan) -> Iterator[str]:
    file, homes = getattr(module, "__file__", None), _homes(module)
    file = file if file and home_of_file(file) in LIBRARIES else None
    for key, value in list(vars(module).items()):
        if not (isinstance(value, type) and value.__module__ in homes and value.__name__ == key):
            if type(value) not in _PLAIN and not _is_as_written(value, key, file):
                yield from _patched_value(key, value, module, scan)
        elif module.__name__ != "torch":  # generates its classes, or has them in C; torch._tensor has Tensor's methods
            for name, member in list(vars(value).items()):
                path = f"{value.__qualname__}.{name}"
                if type(member) not in _PLAIN and not _is_as_written(member, path, file):
                    yield from _patched_value(path, member, module, scan, value)


def _patched_value(
    path: str, value: Any, module: types.ModuleType, scan: _Scan, kind: type | None = None
) -> Iterator[str]:
    """Look at a value of a module, or of its class `kind`."""
    where = f"{module.__name__}.{path}"
    if isinstance(value, dict):
        if not where.endswith("__"):
            yield from _patched_table(where, value, module, scan)
    elif (strange := _strange_code(value, module, scan)) is not None:
        yield f"{where} is {strange}"
    elif (other := _swapped_method(path, value, module, kind) if kind else _swapped(path, value, module)) is not None:
        yield f"{where} is {other.__module__}.{other.__qualname__}"
    else:
        for key, function in _own_entries(value).items():
            home = sys.modules.get(str(getattr(function, "__module__", None)))
            if not home or not is_entry(key, function, home) or _strange_code(function, module, scan):
                yield f"{where}[{key!r}] is set"


def _patched_table(where: str, table: dict[Any, Any], module: types.ModuleType, scan: _Scan) -> Iterator[str]:
    """Look at a table of functions or classes, such as that of attention functions."""
    shared = where.endswith("._global_mapping")
    # As a plain dict: the items() of a lazy mapping would import what they name.
    for key, value in list(dict.items(table)):
        if not callable(value):
            continue
        if (strange := _strange_code(value, module, scan)) is not None:
            yield f"{where}[{key!r}] is {strange}"
        elif shared and isinstance(value, types.FunctionType) and not is_entry(key, value, module):
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
            with contextlib.suppress(RuntimeError):  # an operator that is gone
                files = re.findall(r"registered at (\S+\.py):\d+", torch._C._dispatch_dump(f"aten::{name}"))
                yield from (f"aten::{name} is implemented in {file}" for file in files if not home_of_file(file))


def _swapped_operators(torch: Any) -> Iterator[str]:
    """Name operators in C that stand under another operator's name, as after ``torch.bmm = torch.baddbmm``."""
    tables = (torch._C._VariableFunctions, torch._C._nn)
    for module in filter(None, (torch, sys.modules.get("torch.nn.functional"))):
        for key, value in list(vars(module).items()):
            if isinstance(value, types.BuiltinFunctionType):
                named = [getattr(table, key) for table in tables if hasattr(table, key)]
                if named and value not in named:
                    yield f"{module.__name__}.{key} is {value.__name__}"


def _is_as_written(value: Any, path: str, file: str | None) -> bool:
    """Return whether a value is just a function of this path in a library's file: a quick look that spares the rest."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif type(value) is property and not (value.fset or value.fdel):
        value = value.fget
    if type(value) is not types.FunctionType or not is_code_of(value.__code__, path, file):
        return False
    return all(isinstance(held, type) for cell in value.__closure__ or () for held in gc.get_referents(cell))


def _strange_code(value: Any, module: types.ModuleType, scan: _Scan) -> str | None:
    """Name the code within a callable that is neither Python's nor a library's and that `module` does not import."""
    kind = type(value)
    if kind is types.FunctionType and value.__closure__ is None:
        if _is_librarys(value):
            return None
        strangers = [value]
    elif isinstance(value, type):
        home = str(value.__module__).partition(".")[0]
        known = is_library(home) or home == "builtins" or is_imported(value, module, home)
        # An exception computes nothing; safetensors 0.4 says of its own that they are of a module that does not exist.
        return None if known or issubclass(value, BaseException) else f"{value.__module__}.{value.__qualname__}"
    elif not _may_call(value):
        return None
    else:
        strangers = _strangers_in(value, scan)
    for function in strangers:
        package = home_of_file(function.__code__.co_filename)
        if package is None or not is_imported(value, module, package):
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


def _strangers_in(value: Any, scan: _Scan) -> list[types.FunctionType]:
    """Return the functions within a callable, such as a decorator's or a partial function's, that are no library's."""
    if (known := scan.get(id(value))) is not None:
        return known
    strangers: list[types.FunctionType] = []
    waiting, seen = [value], set[int]()
    while waiting and len(seen) < _DEEP:
        each = waiting.pop()
        if id(each) in seen or scan.get(id(each)) == []:
            continue
        seen.add(id(each))
        if isinstance(each, types.FunctionType):
            if not _is_librarys(each):
                strangers.append(each)
            held = [inner for cell in each.__closure__ or () for inner in gc.get_referents(cell)]
        else:
            held = [vars(type(each)).get("__call__"), *gc.get_referents(each)]
            held += [inner for one in held if type(one) in (dict, tuple) for inner in gc.get_referents(one)]
        waiting += filter(_may_call, held)
    if not strangers and not waiting:
        scan.update((each, []) for each in seen)  # these hold nothing strange either
    scan[id(value)] = strangers
    return strangers


def _may_call(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN or isinstance(value, type):
        return False
    return kind is types.FunctionType or isinstance(value, _WRAPPERS) or callable(value)


def _swapped(key: str, value: Any, module: types.ModuleType) -> Any:
    """Return a library's function or class that stands where the source of `module` defines another one."""
    if isinstance(value, types.FunctionType):
        if is_defined_as(value, key, module):
            return None
    elif not isinstance(value, type) or (value.__module__, value.__name__) == (module.__name__, key):
        return None
    if (homes := vars(module).get("_class_to_module")) is not None:  # a lazy module: it takes its names from others
        home = sys.modules.get(f"{module.__name__}.{homes.get(key)}")
        return value if home is not None and vars(home).get(key, value) is not value else None
    of_library = str(value.__module__).partition(".")[0] in LIBRARIES
    return value if of_library and key in definitions(module) else None


def _swapped_method(path: str, value: Any, module: types.ModuleType, kind: type) -> types.FunctionType | None:
    """Return a library's function that stands where the source of a class defines a method."""
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    function = function.fget if isinstance(function, property) else function
    if type(function) is not types.FunctionType or is_defined_as(function, path, module):
        return None
    file = function.__code__.co_filename
    # transformers copies the methods of auto_factory.py into the auto classes.
    if home_of_file(file) not in LIBRARIES or file.endswith("auto_factory.py"):
        return None
    return function if f"\n    def {path.rpartition('.')[2]}(" in body(module, kind.__name__) else None
