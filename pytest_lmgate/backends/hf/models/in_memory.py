"""What a model made in memory is: weights, configs, plain attributes and tokenizer, if libraries define its classes.

Code of the user's own (a class, a hook, a replaced method) has no content that can be hashed. `describe_pair` names it,
so that such a model is measured in each session and not kept; so is one that holds an object which is neither a config
nor plain data.
"""

from __future__ import annotations

__all__ = ["describe_pair"]

import dataclasses
import enum
import functools
import hashlib
import json
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

# These take no part in what a module computes forward, or are read by themselves.
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
     "name_or_path", "padding_side", "tokens_trie", "verbose", "vocab_file"}
)  # fmt: skip
_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType, PurePath, torch.dtype, torch.device, range, enum.Enum)
_DEEP = 50  # containers within one another


def describe_pair(loaded: LoadedModel) -> tuple[dict[str, str], list[str]]:
    """Return the ingredients of a model in memory, and why they do not tell all of it; empty where they do.

    Every parameter and buffer is read once, in its own dtype.
    """
    model, reader = loaded.model, _Reader(loaded.model)
    # A state dict also has what a module adds to its parameters when it is saved, as quantized ones do.
    tensors = dict(model.named_buffers(remove_duplicate=False))
    tensors |= dict(model.named_parameters(remove_duplicate=False)) | dict(model.state_dict())
    parts = {
        "memory.weights": {name: reader.value(tensor, name) for name, tensor in tensors.items()},
        "memory.modules": {name: reader.module(module, name or "the model") for name, module in model.named_modules()},
        "memory.tokenizer": reader.tokenizer(loaded.tokenizer),
    }
    return {name: _digest(part) for name, part in parts.items()}, list(dict.fromkeys(reader.unknown))


class _Reader:
    """Turns what a model holds into JSON; notes what runs code that no library defines."""

    def __init__(self, model: nn.Module) -> None:
        self.unknown: list[str] = []
        self._names = {id(module): name for name, module in model.named_modules()}

    def module(self, module: nn.Module, where: str) -> Any:
        if any(vars(module).get(kind) for kind in ("_forward_hooks", "_forward_pre_hooks")):
            self.unknown.append(f"{where} has forward hooks")
        held = {key: value for key, value in vars(module).items() if key not in _ELSEWHERE}
        return [self._named(type(module), where), self._attributes(module, held, where)]

    def tokenizer(self, tokenizer: Any) -> Any:
        kind = self._named(type(tokenizer), "the tokenizer")
        if kind is None:
            return None
        backend = getattr(tokenizer, "backend_tokenizer", None)
        # The last call's padding and truncation are no part of it.
        rules = None if backend is None else {**json.loads(backend.to_str()), "truncation": None, "padding": None}
        special = sorted((key, repr(token)) for key, token in tokenizer.special_tokens_map.items())
        return [kind, rules, special, self._attributes(tokenizer, vars(tokenizer), "the tokenizer")]

    def value(self, value: Any, where: str, depth: int = 0) -> Any:
        """Return what an attribute is, as JSON."""
        kind = type(value)
        if depth > _DEEP:
            return self._note(f"{where} holds itself")
        if isinstance(value, _PLAIN):
            return [kind.__name__, repr(value)]
        if isinstance(value, Tensor):
            return self._tensor(value, where)
        if isinstance(value, nn.Module):
            return ["module", self._names.get(id(value)) or self.module(value, where)]
        if isinstance(value, re.Pattern):
            return [repr(value.pattern), value.flags]
        if isinstance(value, np.ndarray | np.generic):
            return [str(value.dtype), value.shape, self.value(value.tolist(), where, depth + 1)]
        if isinstance(value, dict):  # as a plain dict: transformers' lazy mappings would import what they name
            items = [(repr(key), self.value(item, f"{where}[{key!r}]", depth + 1)) for key, item in dict.items(value)]
            return [self._named(kind, where), items]
        if isinstance(value, list | tuple | set | frozenset):
            read = [self.value(item, where, depth + 1) for item in value]
            return [self._named(kind, where), sorted(read, key=repr) if isinstance(value, set | frozenset) else read]
        if isinstance(value, functools.partial):
            return ["partial", self.value([value.func, value.args, value.keywords], where, depth + 1)]
        owner = getattr(value, "__self__", None)
        if isinstance(value, types.MethodType | types.BuiltinFunctionType) and not isinstance(owner, types.ModuleType):
            function = getattr(value, "__func__", None)
            return [value.__name__, function and self._named(function, where), self.value(owner, where, depth + 1)]
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return self._named(value, where)
        named = self._named(kind, where)
        if kind.__module__ == "tokenizers":  # in Rust; what it holds is in its text
            return [named, repr(value)]
        if named and (hasattr(value, "to_dict") or dataclasses.is_dataclass(value)):
            # A config, whose to_dict leaves out how it attends.
            return [named, self._attributes(value, vars(value), where)]
        return self._note(f"{where} is a {kind.__module__}.{kind.__qualname__}, whose content cannot be read")

    def _tensor(self, tensor: Tensor, where: str) -> Any:
        found = [self._named(type(tensor), where), str(tensor.dtype), list(tensor.shape)]
        found.append(self._attributes(tensor, vars(tensor), where))
        if hasattr(tensor, "__tensor_flatten__"):  # a wrapper around other tensors, as torchao's
            names, context = tensor.__tensor_flatten__()
            inner = [self._tensor(getattr(tensor, name), f"{where}.{name}") for name in names]
            return [*found, inner, self.value(context, where)]
        try:
            return [*found, hashlib.sha256(_content(tensor)).hexdigest()]
        except (RuntimeError, TypeError):  # on no device, or of a kind without bytes of its own
            return self._note(f"{where} is a tensor without content")

    def _attributes(self, owner: Any, held: Mapping[str, Any], where: str) -> Any:
        found = {}
        for key in sorted(held.keys() - _NOTES):
            if callable(held[key]) and not isinstance(held[key], nn.Module) and hasattr(type(owner), key):
                self._note(f"{where} has its method {key} replaced")
            else:
                found[key] = self.value(held[key], f"{where}.{key}")
        return found

    def _named(self, thing: Any, where: str) -> str | None:
        """Return the name of a class or function that a library defines; anyone can give theirs a library's name."""
        name = f"{thing.__module__}.{thing.__qualname__}"
        found: Any = sys.modules.get(str(thing.__module__))
        for part in thing.__qualname__.split("."):
            found = getattr(found, part, None)
        if is_library(thing.__module__) and (found is thing or thing.__module__ == "builtins"):
            return name
        self._note(f"{where} is {name}, which no installed library defines")
        return None

    def _note(self, reason: str) -> None:
        self.unknown.append(reason)


def _digest(part: Any) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def _content(tensor: Tensor) -> memoryview:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    plain = tensor.detach().as_subclass(Tensor).cpu().contiguous()
    return plain.flatten().view(torch.uint8).numpy().data
