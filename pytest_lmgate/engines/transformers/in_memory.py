"""The identity of a model made in memory: its weights, classes, configs, plain attributes and tokenizer.

The user's own code (a class, a hook, a replaced method) has no content that we can hash, and neither has an object that
is no config and no plain data. `describe_pair` names these, and such a model is measured in each session and not kept.
"""

from __future__ import annotations

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

from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.identity.code import is_library

# These do not change what a module computes, or are read elsewhere.
_ELSEWHERE = frozenset(
    {"_backward_hooks", "_backward_pre_hooks", "_buffers", "_forward_hooks", "_forward_hooks_always_called",
     "_forward_hooks_with_kwargs", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_is_full_backward_hook",
     "_load_state_dict_post_hooks", "_load_state_dict_pre_hooks", "_modules", "_parameters", "_state_dict_hooks",
     "_state_dict_pre_hooks", "training"}
)  # fmt: skip
# The libraries' notes of where an object was loaded from and what they warned of. A tokenizer's vocabulary and rules
# are read, not its files; nothing here pads by its padding side.
_NOTES = frozenset(
    {"_commit_hash", "_is_hf_initialized", "_name_or_path", "_original_object_hash", "_tokenizer",
     "base_model_name_or_path", "deprecation_warnings", "files_loaded", "init_inputs", "init_kwargs", "merges_file",
     "name_or_path", "padding_side", "tokens_trie", "verbose", "vocab_file"}
)  # fmt: skip
_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType, PurePath, torch.dtype, torch.device, range, enum.Enum)
_DEEP = 50  # nested containers


def describe_pair(loaded: LoadedModel) -> tuple[dict[str, str], list[str]]:
    """Return the ingredients of a model in memory, and the reasons why they do not cover it, if any."""
    model, reader = loaded.model, _Reader(loaded.model)
    # A state dict also has what a module adds to its parameters when it is saved, as quantized ones do.
    tensors = dict(model.named_buffers(remove_duplicate=False))
    tensors |= dict(model.named_parameters(remove_duplicate=False)) | dict(model.state_dict())
    parts = {
        "memory.weights": {name: reader.value(tensor, name) for name, tensor in tensors.items()},
        "memory.modules": {name: reader.module(module, name or "the model") for name, module in model.named_modules()},
        "memory.tokenizer": reader.tokenizer(loaded.tokenizer),
    }
    digests = {
        name: hashlib.sha256(json.dumps(part, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
        for name, part in parts.items()
    }
    return digests, list(dict.fromkeys(reader.unknown))


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
        # Without the padding and truncation of the last call.
        rules = None if backend is None else {**json.loads(backend.to_str()), "truncation": None, "padding": None}
        special = sorted((key, repr(token)) for key, token in tokenizer.special_tokens_map.items())
        return [kind, rules, special, self._attributes(tokenizer, vars(tokenizer), "the tokenizer")]

    def value(self, value: Any, where: str, depth: int = 0) -> Any:
        """Return an attribute as JSON."""
        kind = type(value)
        if depth > _DEEP:
            return self._note(f"{where} contains itself")
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
        if kind.__module__ == "tokenizers":  # in Rust; its text has its content
            return [named, repr(value)]
        if named and (hasattr(value, "to_dict") or dataclasses.is_dataclass(value)):  # to_dict omits the attention
            return [named, self._attributes(value, vars(value), where)]
        return self._note(f"{where} is a {kind.__module__}.{kind.__qualname__}, whose content cannot be hashed")

    def _tensor(self, tensor: Tensor, where: str) -> Any:
        found = [self._named(type(tensor), where), str(tensor.dtype), list(tensor.shape)]
        found.append(self._attributes(tensor, vars(tensor), where))
        if hasattr(tensor, "__tensor_flatten__"):  # a wrapper around other tensors, as torchao's
            names, context = tensor.__tensor_flatten__()
            inner = [self._tensor(getattr(tensor, name), f"{where}.{name}") for name in names]
            return [*found, inner, self.value(context, where)]
        try:
            plain = tensor.dequantize() if tensor.is_quantized else tensor
            plain = plain.to_dense() if plain.layout != torch.strided else plain
            plain = plain.detach().as_subclass(Tensor).cpu().contiguous().flatten().view(torch.uint8)
            return [*found, hashlib.sha256(plain.numpy().data).hexdigest()]
        except (RuntimeError, TypeError):  # on no device, or of a kind without bytes of its own
            return self._note(f"{where} is a tensor without content")

    def _attributes(self, owner: Any, held: Mapping[str, Any], where: str) -> Any:
        found = {}
        for key in sorted(held.keys() - _NOTES):
            if callable(held[key]) and not isinstance(held[key], nn.Module) and hasattr(type(owner), key):
                self._note(f"{where} has a replaced method {key}")
            else:
                found[key] = self.value(held[key], f"{where}.{key}")
        return found

    def _named(self, thing: Any, where: str) -> str | None:
        """Return the name of a class or function, if a library really defines it."""
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
