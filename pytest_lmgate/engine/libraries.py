"""Whose code something is: Python's and the libraries', which a version identifies, or someone else's.

Imports none of them.
"""

from __future__ import annotations

__all__ = ["CACHED", "LIBRARIES", "cached_function", "home", "is_library", "is_own", "library_versions"]

import contextlib
import functools
import gc
import platform
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# Their code is identified by version: whoever makes an address of a digest puts their versions beside it.
LIBRARIES = frozenset({"accelerate", "bitsandbytes", "numpy", "peft", "tokenizers", "torch", "torchao", "transformers"})
_BENEATH = frozenset({"huggingface_hub", "typing_extensions"})  # decorate functions of theirs, compute nothing
CACHED: type = type(functools.lru_cache(len))
_PACKAGES = LIBRARIES | _BENEATH | sys.stdlib_module_names


def is_library(module: object) -> bool:
    """Whether a module, by its name, is Python's or one of the libraries whose versions are in an address."""
    return str(module).partition(".")[0] in _PACKAGES


def library_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that are installed: what they define is known by its name."""
    found = {"python": platform.python_version()}
    for library in sorted(LIBRARIES):
        with contextlib.suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


def is_own(value: object) -> bool:
    """Whether a class or something that is called, or what it wraps, was written by neither Python nor a library."""
    return home(value) is not None


def home(value: object) -> str | None:
    """Return the module, no library's, that defines a class or something that is called; None where there is none."""
    return next((module for module in _homes(value, set()) if not is_library(module)), None)


def cached_function(cached: object) -> Any:
    """Return the function within one of ``functools.lru_cache``; anyone can write another to its ``__wrapped__``.

    Raises:
        ValueError: It is not where CPython has it.
    """
    held = gc.get_referents(cached)  # ..., the function, a mark, the type of links, ...
    links = [index for index, each in enumerate(held) if getattr(each, "__name__", "") == "_lru_list_elem"]
    function = held[links[-1] - 2] if links else None
    if not callable(function):
        raise ValueError(f"no function found within {cached!r}")
    return function


def _homes(value: Any, seen: set[int]) -> Iterator[str]:
    if id(value) in seen or len(seen) > 100:
        return
    seen.add(id(value))
    if isinstance(value, type):
        yield str(value.__module__)
        return
    if isinstance(value, types.FunctionType):
        # functools.wraps takes over the name of the module, but not the globals; a library's decorator has its own
        # globals, and what it decorates in its cells.
        yield str(value.__module__)
        yield str(value.__globals__.get("__name__"))
    elif type(value) in _WITHIN or callable(value):
        yield str(type(value).__module__)
    else:
        return
    for each in _within(value):
        if type(each) in _WITHIN or isinstance(each, types.FunctionType):
            yield from _homes(each, seen)


def _within(value: Any) -> Iterable[Any]:
    """What a function or an object that is called may call in its turn."""
    if (within := _WITHIN.get(type(value))) is not None:
        return within(value)
    return list(vars(value).values()) if hasattr(value, "__dict__") else ()


def _cells(function: types.FunctionType) -> list[Any]:
    return [each for cell in function.__closure__ or () for each in gc.get_referents(cell)]


# What lies within a callable, by its type.
_WITHIN: dict[type, Callable[[Any], Iterable[Any]]] = {
    types.FunctionType: _cells,
    types.MethodType: lambda value: [value.__func__],
    functools.partial: lambda value: [value.func, *value.args, *value.keywords.values()],
    functools.partialmethod: lambda value: [value.func],
    functools.cached_property: lambda value: [value.func],
    CACHED: lambda value: [cached_function(value)],
    staticmethod: lambda value: [value.__func__],
    classmethod: lambda value: [value.__func__],
    property: lambda value: [value.fget, value.fset, value.fdel],
}
