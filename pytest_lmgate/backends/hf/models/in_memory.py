"""What a model made in memory is: its weights, configs, attributes and tokenizer, where libraries define its classes.

Objects of the user's own classes, hooks and replaced methods run code that no digest here reads. `describe_pair` names
them, so that such a model is measured in each session and not kept.
"""

from __future__ import annotations

__all__ = ["describe_pair"]

import enum
import functools
import hashlib
import json
import logging
import re
import sys
import types
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pytest_lmgate.backends.hf.models.loading import LoadedModel
from pytest_lmgate.identity.libraries import is_library

# These take no part in what a module computes forward, or have a place of their own.
_ELSEWHERE = frozenset(
    {"_backward_hooks", "_backward_pre_hooks", "_buffers", "_forward_hooks", "_forward_hooks_always_called",
     "_forward_hooks_with_kwargs", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_is_full_backward_hook",
     "_load_state_dict_post_hooks", "_load_state_dict_pre_hooks", "_modules", "_parameters", "_state_dict_hooks",
     "_state_dict_pre_hooks", "training"}
)  # fmt: skip
# The libraries note here where an object was loaded from and what they warned of. The files of a tokenizer do not
# matter, since its vocabulary and rules are read; its padding side does not, since nothing here pads by it.
_NOTES = frozenset(
    {"_commit_hash", "_is_hf_initialized", "_name_or_path", "_original_object_hash", "_tokenizer",
     "base_model_name_or_path", "deprecation_warnings", "files_loaded", "init_inputs", "init_kwargs", "merges_file",
     "name_or_path", "padding_side", "verbose", "vocab_file"}
)  # fmt: skip
_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType, types.EllipsisType, PurePath, torch.dtype,
          torch.device, torch.layout, torch.memory_format, range, slice)  # fmt: skip
_DESCRIPTORS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def describe_pair(loaded: LoadedModel) -> tuple[dict[str, str], list[str]]:
    """Return the ingredients of a model in memory, and why they do not tell all of it; empty where they do.

    Every parameter and buffer is read once, in its own dtype.
    """
    model, reader = loaded.model, _Reader(loaded.model)
    weights = {name: reader.tensor(tensor, name) for name, tensor in _tensors(model).items()}
    modules = {name: reader.module(module, name or "the model") for name, module in model.named_modules()}
    tokenizer = reader.tokenizer(loaded.tokenizer)
    parts = {"memory.weights": weights, "memory.modules": modules, "memory.tokenizer": tokenizer}
    return {name: _digest(part) for name, part in parts.items()}, list(dict.fromkeys(reader.unknown))


def _tensors(model: nn.Module) -> dict[str, Any]:
    """Return parameters and buffers by name, and what a module adds to them when it is saved, as quantized ones do."""
    buffers = dict(model.named_buffers(remove_duplicate=False))
    return buffers | dict(model.named_parameters(remove_duplicate=False)) | dict(model.state_dict())


class _Reader:
    """Turns what a model holds into JSON; notes the objects whose content or code it cannot know."""

    def __init__(self, model: nn.Module) -> None:
        self.unknown: list[str] = []
        self._names = {id(module): name for name, module in model.named_modules()}
        self._read: dict[int, tuple[int, object]] = {}

    def module(self, module: nn.Module, where: str) -> Any:
        if any(vars(module).get(kind) for kind in ("_forward_hooks", "_forward_pre_hooks")):
            self.unknown.append(f"{where} has forward hooks")
        held = {key: value for key, value in vars(module).items() if key not in _ELSEWHERE}
        return [self._class(type(module), where), self._attributes(module, held, where)]

    def tokenizer(self, tokenizer: Any) -> Any:
        where = "the tokenizer"
        kind = self._class(type(tokenizer), where)
        if kind is None:
            return None
        backend = getattr(tokenizer, "backend_tokenizer", None)
        # The last call's padding and truncation are no part of it.
        rules = None if backend is None else {**json.loads(backend.to_str()), "truncation": None, "padding": None}
        special = sorted((key, repr(token)) for key, token in tokenizer.special_tokens_map.items())
        return [kind, rules, special, self._attributes(tokenizer, vars(tokenizer), where)]

    def tensor(self, tensor: Any, where: str) -> Any:
        if not isinstance(tensor, Tensor):  # a state dict may hold other things
            return self.value(tensor, where)
        found = [str(tensor.dtype), list(tensor.shape), self.value(vars(tensor), where)]
        self._class(type(tensor), where)
        if hasattr(tensor, "__tensor_flatten__"):  # a wrapper around other tensors, as torchao's
            names, context = tensor.__tensor_flatten__()
            inner = [self.tensor(getattr(tensor, name), f"{where}.{name}") for name in names]
            return [*found, inner, self.value(context, where)]
        try:
            return [*found, hashlib.sha256(_content(tensor)).hexdigest()]
        except (RuntimeError, TypeError):  # on no device, or of a kind without bytes of its own
            return self._note(f"{where} is a tensor without content")

    def value(self, value: Any, where: str) -> Any:
        """Return what an attribute is, as JSON."""
        kind = type(value)
        if kind in _PLAIN or issubclass(kind, PurePath):
            return [kind.__name__, repr(value)]
        if id(value) in self._names:
            return ["module", self._names[id(value)]]
        if id(value) in self._read:
            return ["again", self._read[id(value)][0]]
        if kind is not tuple:
            self._read[id(value)] = len(self._read), value  # kept, or its id could be given to another
        if isinstance(value, Tensor):
            return self.tensor(value, where)
        if isinstance(value, type):
            return self._class(value, where)
        if isinstance(value, _DESCRIPTORS):
            return self._function(value, where)
        if isinstance(value, types.MethodType):
            return [self.value(value.__func__, where), self.value(value.__self__, where)]
        return self._object(value, kind, where)

    def _object(self, value: Any, kind: type, where: str) -> Any:
        named = self._class(kind, where)
        if named is None:
            return None
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            return [named, str(array.dtype), array.shape, self.value(array.tolist(), where)]
        if isinstance(value, re.Pattern):
            return [named, self.value(value.pattern, where), value.flags]
        if isinstance(value, enum.Enum | logging.Logger):
            return [named, value.name]
        if isinstance(value, functools.partial):
            return [named, self.value([value.func, value.args, value.keywords], where)]
        if kind.__module__ == "tokenizers":  # in Rust; what it holds is in its text
            return [named, repr(value)]
        items: list[Any] = []
        if isinstance(value, dict):  # as a plain dict: transformers' lazy mappings would import what they name
            items = [(self.value(key, where), self.value(item, f"{where}[{key!r}]")) for key, item in dict.items(value)]
        elif isinstance(value, list | tuple):
            items = [self.value(item, where) for item in value]
        elif isinstance(value, set | frozenset):
            items = sorted((self.value(item, where) for item in value), key=repr)
        elif not hasattr(value, "__dict__") or _is_opaque(kind):
            return self._note(f"{where} is a {kind.__module__}.{kind.__qualname__}, whose content cannot be read")
        return [named, items, self._attributes(value, getattr(value, "__dict__", {}), where)]

    def _attributes(self, owner: Any, held: Mapping[str, Any], where: str) -> Any:
        found = {}
        for key in sorted(held.keys() - _NOTES):
            if callable(held[key]) and not isinstance(held[key], nn.Module) and hasattr(type(owner), key):
                self.unknown.append(f"{where} has its method {key} replaced")
                continue
            found[key] = self.value(held[key], f"{where}.{key}")
        return found

    def _class(self, kind: type, where: str) -> str | None:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if is_library(kind.__module__) and (kind.__module__ == "builtins" or _is_found(kind)):
            return name
        self._note(f"{where} is of the class {name}, which no installed library defines")
        return None

    def _function(self, function: Any, where: str) -> Any:
        owner = getattr(function, "__objclass__", None)
        module = str(function.__module__ if owner is None else owner.__module__)
        if isinstance(function, types.BuiltinFunctionType):  # its owner is a module, a class, or the object of a method
            owner = function.__self__
            if not isinstance(owner, types.ModuleType | type):
                return [function.__qualname__, self.value(owner, where)]
            module = owner.__name__ if isinstance(owner, types.ModuleType) else owner.__module__
        if is_library(module) and (not isinstance(function, types.FunctionType) or _is_found(function)):
            return [module, function.__qualname__]
        return self._note(f"{where} is the function {module}.{function.__qualname__}, which no library defines")

    def _note(self, reason: str) -> None:
        self.unknown.append(reason)


def _is_found(thing: Any) -> bool:
    """Return whether a class or function is where it says it is: anyone can give theirs the name of a library's."""
    found: Any = sys.modules.get(thing.__module__)
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is thing


def _is_opaque(kind: type) -> bool:
    """Return whether objects of a class hold something beside their attributes, as those of a class written in C do."""
    creators = (vars(base).get("__new__") for base in kind.__mro__ if base not in (object, types.SimpleNamespace))
    return any(isinstance(each, types.BuiltinFunctionType) for each in creators)


def _digest(part: Any) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def _content(tensor: Tensor) -> memoryview:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    plain = tensor.detach().as_subclass(Tensor).cpu().contiguous()
    return plain.flatten().view(torch.uint8).numpy().data
