"""What an object consists of: one table of how each kind is taken apart.

What is not in the table is known by its attributes and by what pickle would rebuild it from; that is asked for, but
nothing is pickled. What cannot be pickled may hold what no attribute tells, and counts as unknown.
"""

from __future__ import annotations

__all__ = ["attributes", "parts"]

import collections
import copyreg
import functools
import gc
import json
import logging
import re
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from pytest_lmgate.engine.libraries import CACHED, cached_function, is_library

# What the libraries note on their objects and do not compute by, by the module of the class: where something was loaded
# from, what is another in every process, and copies of the weights that are made when a model first runs.
_INERT = {
    "bitsandbytes.autograd._functions": frozenset({"CB", "SCB", "is_training"}),
    "peft.config": frozenset({"base_model_name_or_path", "revision"}),
    "torch._dynamo.eval_frame": frozenset({"_torchdynamo_wrapper_id"}),
    "transformers.configuration_utils": frozenset({"_commit_hash", "_name_or_path", "name_or_path"}),
    "transformers.generation.configuration_utils": frozenset({"_commit_hash", "_original_object_hash"}),
}
# Attributes of a tokenizer that do not take part in what it makes of a text. The content of its files is read instead.
_OF_NO_CALL = frozenset(
    {"_tokenizer", "deprecation_warnings", "files_loaded", "init_inputs", "init_kwargs", "merges_file", "name_or_path",
     "verbose", "vocab_file"}
)  # fmt: skip


def attributes(value: object) -> dict[str, Any]:
    """Return what is in an object's ``__dict__`` and slots, less what the libraries do not compute by."""
    if type(value) in _WITHOUT_ATTRIBUTES:
        return {}
    found = dict(getattr(value, "__dict__", {}))
    skipped: set[str] = set()
    for base in type(value).__mro__:
        skipped |= _INERT.get(base.__module__, frozenset())
        slots = [each for each in vars(base).values() if isinstance(each, types.MemberDescriptorType)]
        found |= {f"{base.__qualname__}.{slot.__name__}": held for slot in slots for held in _in_slot(slot, value)}
    if _is_tokenizer(value):
        skipped |= _OF_NO_CALL
        if is_library(type(value).__module__):  # a pipeline sets it; nothing of ours pads by a tokenizer
            skipped.add("padding_side")
    if isinstance(value, logging.Logger):
        return {}
    return {name: each for name, each in found.items() if name not in skipped}


def parts(value: object) -> list[Any] | None:
    """Return the parts of an object, beside its attributes; None where nothing tells them all.

    Raises:
        Exception: Whatever the object raises that is asked.
    """
    for kinds, taken_apart in _PARTS:
        if isinstance(value, kinds):
            return list(taken_apart(value))
    if _is_tokenizer(value):
        return _tokenizer(value)
    if _is_module(value):
        return []
    reduce = copyreg.dispatch_table.get(type(value))
    reduced = reduce(value) if reduce is not None else value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return [reduced] if _is_librarys_own(value, reduced) else None
    constructor, arguments, *rest = reduced
    state, items, pairs = (*rest, None, None, None)[:3]
    if all(getattr(type(value), name, None) is getattr(object, name, None) for name in _PICKLED):
        state = None  # the attributes
    return [constructor, arguments, state, list(items or ()), list(pairs or ())]


def _in_slot(slot: types.MemberDescriptorType, value: object) -> list[Any]:
    if slot.__name__.endswith("offset__"):  # an address, which Python notes on some of its own
        return []
    try:
        return [slot.__get__(value)]
    except AttributeError:  # nothing in it
        return []


def _is_librarys_own(value: object, name: str) -> bool:
    """Whether an object that pickle knows by its name only is what a library has under that name."""
    module = str(getattr(value, "__module__", None) or type(value).__module__)
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value and is_library(module)


def _is_tokenizer(value: object) -> bool:
    return any(base.__module__ == "transformers.tokenization_utils_base" for base in type(value).__mro__) and hasattr(
        value, "special_tokens_map"
    )


def _is_module(value: object) -> bool:
    """Whether it is a module of torch in Python, which is its attributes; some refuse to be pickled."""
    homes = {base.__module__ for base in type(value).__mro__}
    return "torch.nn.modules.module" in homes and not any(each.startswith("torch.jit") for each in homes)


def _tokenizer(tokenizer: Any) -> list[Any]:
    special = sorted((key, repr(token)) for key, token in tokenizer.special_tokens_map.items())
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return [_backend(backend), special]
    # One in Python has its vocabulary in attributes, or in an object of another library that these hold.
    added = {index: repr(token) for index, token in sorted(tokenizer.added_tokens_decoder.items())}
    return [sorted(tokenizer.get_vocab().items()), added, special]


def _backend(backend: Any) -> str:
    """A fast tokenizer's state, less what the last call asked of it."""
    state = json.loads(backend.to_str())
    return json.dumps({**state, "truncation": None, "padding": None}, sort_keys=True)


def _items(mapping: dict[Any, Any]) -> list[Any]:
    """Keys and values as they lie there: transformers' lazy mappings would import what they name."""
    keys = collections.OrderedDict.__iter__ if isinstance(mapping, collections.OrderedDict) else dict.__iter__
    return [(key, dict.__getitem__(mapping, key)) for key in keys(mapping)]


def _builtin(function: Any) -> list[Any]:
    # `__self__` is the module of a function, the object of a method. What is no library's is in a file of its module's.
    return [function.__qualname__, function.__self__, sys.modules.get(str(function.__module__))]


def _descriptor(descriptor: Any) -> list[Any]:
    owner = descriptor.__objclass__
    return [owner, descriptor.__name__, sys.modules.get(owner.__module__)]


_CONTAINERS = (dict, list, tuple, set, frozenset)
_WITHOUT_ATTRIBUTES = {
    *_CONTAINERS,
    bytearray,
    range,
    slice,
    re.Pattern,
    types.MappingProxyType,
    types.MethodType,
    functools.cached_property,
}
_HINTS = (types.UnionType, types.GenericAlias, typing.TypeVar, *map(type, (typing.Type[int], typing.Optional[int])))  # noqa: UP006, UP045
_PICKLED = ("__getstate__", "__reduce__", "__reduce_ex__")
_Parts = Callable[[Any], Iterable[Any]]
# The first that fits counts; an object of a derived class has its attributes besides.
_PARTS: tuple[tuple[type | tuple[type, ...], _Parts], ...] = (
    (dict, _items),
    (list, list.__iter__),
    (tuple, tuple.__iter__),
    (set, lambda value: sorted(set.__iter__(value), key=repr)),
    (frozenset, lambda value: sorted(frozenset.__iter__(value), key=repr)),
    (types.MappingProxyType, lambda value: [dict(value)]),
    ((range, slice), lambda value: [value.start, value.stop, value.step]),
    (re.Pattern, lambda value: [value.pattern, value.flags]),
    (logging.Logger, lambda value: [value.name]),  # computes nothing
    (types.MethodType, lambda value: [value.__func__, value.__self__]),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _builtin),
    ((types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType), _descriptor),
    ((types.GetSetDescriptorType, types.MemberDescriptorType), lambda value: [value.__objclass__, value.__name__]),
    (functools.partial, lambda value: [value.func, value.args, value.keywords]),
    (functools.partialmethod, lambda value: [value.func, value.args, value.keywords]),
    (functools.cached_property, lambda value: [value.func, value.attrname]),
    (property, lambda value: [value.fget, value.fset, value.fdel]),
    ((staticmethod, classmethod), lambda value: [value.__func__]),
    (CACHED, lambda value: [cached_function(value)]),  # without what it remembers, which the function said
    (types.CellType, lambda value: gc.get_referents(value)),
    (weakref.ref, lambda value: [value()]),
    (_HINTS, lambda value: [repr(value)]),  # which no code goes by
)
