"""A digest of what is in an object: a tensor's bytes, a function's code and what it refers to, an object's content.

For models and tokenizers made in memory, which have no files. What a library defines is identified by its name, since
the libraries' versions stand beside it in an address; what it holds is read as anything else. What cannot be identified
gets a digest that is never seen again: a measurement may then be repeated, but never mistaken for another.
"""

from __future__ import annotations

__all__ = ["digest", "is_plain"]

import collections
import gc
import hashlib
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pytest_lmgate.engine.contents import attributes, parts
from pytest_lmgate.engine.imports import Import, imports_of, loaded_as, sources
from pytest_lmgate.engine.libraries import LIBRARIES, is_library, is_own

# Whose repr says all: of these types exactly, since a derived class may hold more.
_PLAIN = frozenset(
    {bool, int, float, complex, str, bytes, types.NoneType, types.EllipsisType, types.NotImplementedType, PosixPath,
     PurePosixPath, PureWindowsPath, WindowsPath, torch.dtype, torch.device, torch.layout, torch.memory_format}
)  # fmt: skip
# What Python itself or a library notes on a class, a function or a tensor, and what takes no part in its behaviour.
_NOISE = frozenset(
    {"__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__dict__", "__doc__",
     "__firstlineno__", "__module__", "__orig_bases__", "__parameters__", "__qualname__", "__slotnames__",
     "__static_attributes__", "__type_params__", "__weakref__", "_abc_impl",
     "_can_set_experts_implementation_cached_value", "_is_hf_initialized"}
)  # fmt: skip

_MADE_BY_CODE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def digest(value: object, known: Mapping[str, object] | None = None) -> str:
    """Return the SHA-256 of the content of `value`.

    Args:
        value: Anything.
        known: Objects that are not to be read where they are found within, since another digest has them; by names.
    """
    reader = _Reader(known or {})
    try:
        reader.read(value)
    except Exception:  # whatever the objects within raise when they are looked at, or that they are nested too deeply
        return _never_again()
    return reader.hexdigest()


def is_plain(value: object) -> bool:
    """Whether a value is a number, a text or the like, or a collection of such."""
    try:
        return _is_plain(value)
    except RecursionError:  # a collection that holds itself
        return False


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in (dict, collections.OrderedDict):
        return all(_is_plain(key) and _is_plain(each) for key, each in value.items())
    if kind in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    return kind in _PLAIN


def _never_again() -> str:
    return hashlib.sha256(uuid.uuid4().bytes).hexdigest()


class _Reader:
    """Feeds content to a hash; remembers what it has read, since objects may refer to each other."""

    def __init__(self, known: Mapping[str, object]) -> None:
        self._hash = hashlib.sha256()
        self._read: dict[int, tuple[int | str, object]] = {id(each): (name, each) for name, each in known.items()}
        self._looked: set[tuple[str, frozenset[str]]] = set()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def read(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self._say(kind.__name__, repr(value))
            return
        if kind not in (tuple, frozenset):  # of which equal ones may or may not be the same, as Python likes
            if id(value) in self._read:
                self._say("again", self._read[id(value)][0])
                return
            self._read[id(value)] = len(self._read), value  # kept, or its id could be given to another
        self._say(kind.__module__, kind.__qualname__)
        for kinds, read in _READERS:
            if isinstance(value, kinds):
                read(self, value)
                return
        self._object(value)

    def _say(self, *words: object) -> None:
        line = " ".join(map(str, words))
        self._hash.update(f"{len(line)} {line}\n".encode("utf-8", "surrogatepass"))

    def _all(self, values: Iterable[Any]) -> None:
        listed = list(values)
        self._say(len(listed))
        for each in listed:
            self.read(each)

    def _names(self, namespace: Mapping[str, Any]) -> None:
        """Read what a namespace holds, whose order does not matter."""
        names = sorted((name for name in namespace if name not in _NOISE), key=repr)
        self._all((name, namespace[name]) for name in names)

    def _unknown(self) -> None:
        self._say(_never_again())

    # Kinds of values.

    def _object(self, value: Any) -> None:
        if type(value).__module__ != "builtins":
            self.read(type(value))
        if held := attributes(value):
            self._names(held)
        try:
            found = parts(value)
        except Exception:  # what cannot be pickled, or raises whatever else when it is asked
            found = None
        if found is None:
            self._unknown()
        else:
            self._all(found)

    def _tensor(self, tensor: Tensor) -> None:
        self._say(tensor.dtype, tuple(tensor.shape))
        self._names(attributes(tensor))
        if hasattr(tensor, "__tensor_flatten__"):  # a wrapper around other tensors, as torchao's
            names, context = tensor.__tensor_flatten__()
            self._names({name: getattr(tensor, name) for name in names})
            self.read(context)
            return
        try:
            self._hash.update(_content(tensor))
        except (RuntimeError, TypeError):  # on no device, or of a kind without bytes of its own
            self._unknown()

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        self._say(array.dtype, array.shape)
        self._names(attributes(array))
        if array.dtype.hasobject:
            self.read(array.tolist())
        else:
            self._hash.update(np.ascontiguousarray(array).tobytes())

    def _class(self, kind: type) -> None:
        self._say(kind.__module__, kind.__qualname__)
        if not is_library(kind.__module__) or not _is_found(kind):
            self._all([type(kind), *kind.__bases__])
            self._names(vars(kind))
            return
        for base in kind.__mro__:  # a library's class, with methods that are not the library's
            self._names(_replaced(base) if is_library(base.__module__) else {})
        if (module := sys.modules.get(kind.__module__)) and kind.__module__.partition(".")[0] in LIBRARIES:
            self._names(_replaced(module))  # what its methods call

    def _function(self, function: types.FunctionType) -> None:
        self._say(function.__module__, function.__qualname__)
        space = function.__globals__
        # An empty cell refers to nothing.
        self._all(each for cell in function.__closure__ or () for each in (gc.get_referents(cell) or [None]))
        if is_library(function.__module__) and is_library(space.get("__name__")):
            return
        self._names(vars(function))
        self._all([function.__defaults__, function.__kwdefaults__])
        names = self._code(function.__code__)
        used = {name: space[name] for name in names & space.keys()}
        self._names(used)
        for each in used.values():
            self._look_into(each, names)
        package = space.get("__package__") or str(space.get("__name__")).rpartition(".")[0]
        for needed in imports_of(function.__code__, str(package)):
            self._imported(needed, names)

    def _code(self, code: types.CodeType) -> set[str]:
        """Read a function's instructions and constants; return the names that it and those within it look up."""
        self._say(code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self._say(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._say(getattr(code, "co_exceptiontable", b"").hex())
        names = set(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                names |= self._code(constant)
            else:
                self.read(constant)
        return names

    def _module(self, module: types.ModuleType) -> None:
        self._say(module.__name__)
        if not is_library(module.__name__):
            self._all(sorted(sources([Import(module.__name__, (), optional=False)]).items()))

    def _imported(self, needed: Import, names: set[str]) -> None:
        self._all(sorted(sources([needed]).items()))
        for module in loaded_as(needed):
            self._look_into(module, names)

    def _look_into(self, module: object, names: set[str]) -> None:
        """Read what code finds in a module by its names, as in ``module.submodule.function``."""
        if not isinstance(module, types.ModuleType) or (module.__name__, frozenset(names)) in self._looked:
            return
        self._looked.add((module.__name__, frozenset(names)))
        used = {name: vars(module)[name] for name in names & vars(module).keys()}
        library = is_library(module.__name__)
        self._names({name: each for name, each in used.items() if is_own(each) or not library})
        for _, each in sorted(used.items()):
            self._look_into(each, names)


_READERS: tuple[tuple[type | tuple[type, ...], Callable[[_Reader, Any], None]], ...] = (
    (type, _Reader._class),
    (types.FunctionType, _Reader._function),
    (types.ModuleType, _Reader._module),
    (Tensor, _Reader._tensor),
    (np.ndarray, _Reader._array),
)


def _replaced(owner: type | types.ModuleType) -> dict[str, Any]:
    """Return what in a library's class or module is code that no library wrote, by name."""
    return {name: each for name, each in vars(owner).items() if not isinstance(each, type) and is_own(each)}


def _is_found(kind: type) -> bool:
    """Whether a class is where it says it is: one made by ``exec``, or by a call, may take any module's name."""
    if not kind.__flags__ & _MADE_BY_CODE:
        return True
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def _content(tensor: Tensor) -> memoryview:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    plain = tensor.detach().as_subclass(Tensor).cpu().contiguous()
    return plain.flatten().view(torch.uint8).numpy().data
