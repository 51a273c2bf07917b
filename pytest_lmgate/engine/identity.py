"""A digest of what is in an object: a tensor's bytes, a function's code and what it refers to, an object's attributes.

For models and tokenizers made in memory, which have no files. What a library defines is identified by its name, since
the libraries' versions stand beside it in an address. What cannot be identified gets a digest that is never seen
again: a measurement may then be repeated, but never mistaken for another.
"""

from __future__ import annotations

__all__ = ["LIBRARIES", "digest", "is_library", "is_plain", "replaced"]

import enum
import functools
import hashlib
import sys
import types
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Their code is identified by version: whoever makes an address of a digest puts their versions beside it.
LIBRARIES = frozenset({"accelerate", "bitsandbytes", "numpy", "peft", "tokenizers", "torch", "torchao", "transformers"})
_BENEATH = frozenset({"huggingface_hub", "typing_extensions"})  # decorate functions of theirs, compute nothing
_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType, PurePath, torch.dtype, torch.device)
# What Python itself or a library notes on a class, and what does not take part in its behaviour.
_NOISE = frozenset(
    {"__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__dict__", "__doc__",
     "__firstlineno__", "__module__", "__qualname__", "__slotnames__", "__static_attributes__", "__weakref__",
     "_abc_impl", "_can_set_experts_implementation_cached_value"}
)  # fmt: skip


def digest(value: object) -> str:
    """Return the SHA-256 of the content of `value`."""
    reader = _Reader()
    reader.read(value)
    return reader.hexdigest()


def is_library(module: str | None) -> bool:
    """Whether a module, by its name, is Python's or one of the libraries whose versions are in an address."""
    package = str(module).partition(".")[0]
    return package in LIBRARIES or package in _BENEATH or package in sys.stdlib_module_names


def is_plain(value: object) -> bool:
    """Whether a value is a number, a text or the like, or a collection of such."""
    if isinstance(value, Mapping):
        return all(is_plain(key) and is_plain(each) for key, each in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_plain, value))
    return isinstance(value, _PLAIN)


def replaced(owner: type | types.ModuleType) -> dict[str, types.FunctionType]:
    """Return the functions in a library's class or module that are not the library's, by name."""
    functions = {name: each for name, each in vars(owner).items() if isinstance(each, types.FunctionType)}
    return {name: each for name, each in functions.items() if not _is_librarys(each)}


def _is_librarys(function: types.FunctionType) -> bool:
    """Whether a library wrote a function. ``functools.wraps`` takes over the module's name, but not the globals."""
    return is_library(function.__module__) and is_library(function.__globals__.get("__name__"))


class _Reader:
    """Feeds content to a hash; remembers what it has read, since objects may refer to each other."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._read: dict[int, tuple[int, object]] = {}

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def read(self, value: Any) -> None:
        if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
            self._say(type(value).__name__, repr(value))
            return
        if id(value) in self._read:
            self._say("again", self._read[id(value)][0])
            return
        self._read[id(value)] = len(self._read), value  # the value is kept, or its id could be given to another
        self._say(type(value).__module__, type(value).__qualname__)
        if isinstance(value, Tensor | np.ndarray):
            self._tensor(torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value)
        elif isinstance(value, Mapping):
            self._mapping(value)
        elif isinstance(value, set | frozenset):
            self._all(sorted(value, key=repr))
        elif isinstance(value, list | tuple):
            self._all(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        else:
            self._object(value)

    def _say(self, *words: object) -> None:
        line = " ".join(map(str, words))
        self._hash.update(f"{len(line)} {line}\n".encode("utf-8", "surrogatepass"))

    def _all(self, values: Iterable[Any]) -> None:
        listed = list(values)
        self._say(len(listed))
        for each in listed:
            self.read(each)

    def _mapping(self, mapping: Mapping[Any, Any]) -> None:
        self._all(each for key in sorted(mapping, key=repr) if key not in _NOISE for each in (key, mapping[key]))

    def _tensor(self, tensor: Tensor) -> None:
        self._say(tensor.dtype, tuple(tensor.shape))
        if hasattr(tensor, "__tensor_flatten__"):  # a wrapper around other tensors, as torchao's
            names, context = tensor.__tensor_flatten__()
            self._mapping({name: getattr(tensor, name) for name in names})
            self.read(repr(context))
            return
        try:
            self._hash.update(_content(tensor))
        except (RuntimeError, TypeError):  # on no device, or of a kind without bytes of its own
            self._unknown()

    def _class(self, kind: type) -> None:
        self._say(kind.__module__, kind.__qualname__)
        if not is_library(kind.__module__):
            self._all(kind.__bases__)
            self._mapping(vars(kind))
            return
        for base in kind.__mro__:  # a library's class, with methods that are not the library's
            self._mapping(replaced(base) if is_library(base.__module__) else {})
        if (module := sys.modules.get(kind.__module__)) and kind.__module__.partition(".")[0] in LIBRARIES:
            self._mapping(replaced(module))  # what its methods call

    def _function(self, function: types.FunctionType) -> None:
        self._say(function.__module__, function.__qualname__)
        cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
        if _is_librarys(function):  # it may still wrap one that is not
            self._all(each for each in cells if isinstance(each, types.FunctionType))
            return
        names = self._code(function.__code__)
        self._all([function.__defaults__, function.__kwdefaults__])
        self._all(cells)
        self._mapping({name: function.__globals__[name] for name in names & function.__globals__.keys()})

    def _code(self, code: types.CodeType) -> set[str]:
        """Read a function's instructions and constants; return the names that it and those within it look up."""
        self._say(code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars)
        names = set(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                names |= self._code(constant)
            else:
                self.read(constant)
        return names

    def _object(self, value: Any) -> None:
        if isinstance(value, types.ModuleType):
            self._module(value)
        elif isinstance(value, types.MethodType):
            self._all([value.__func__, value.__self__])
        elif isinstance(value, functools.partial):
            self._all([value.func, value.args, value.keywords])
        elif isinstance(value, property | staticmethod | classmethod | functools.cached_property):
            self._all(getattr(value, name, None) for name in ("fget", "__func__", "func"))
        elif isinstance(value, enum.Enum):
            self._say(value.name)
        elif is_library(type(value).__module__) and not isinstance(value, torch.nn.Module):
            self._say(getattr(value, "__qualname__", ""))
        elif hasattr(value, "__dict__"):
            self.read(type(value))
            self._mapping(vars(value))
        else:
            self._unknown()

    def _module(self, module: types.ModuleType) -> None:
        self._say(module.__name__)
        if not is_library(module.__name__):
            file = Path(module.__file__ or "")
            self.read(file.read_bytes() if file.is_file() else uuid.uuid4().hex)

    def _unknown(self) -> None:
        self._say(uuid.uuid4().hex)


def _content(tensor: Tensor) -> memoryview:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    plain = tensor.detach().as_subclass(Tensor).cpu().contiguous()
    return plain.flatten().view(torch.uint8).numpy().data
