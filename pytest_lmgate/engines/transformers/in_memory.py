"""The identity of a model made in memory: its weights, and what its modules, config and tokenizer hold.

The user's own code (a class, a hook, a replaced method) has no content that we can hash, and neither has an object that
cannot be pickled. `describe_pair` names these, and such a model is measured in each session and not kept.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import sys
import types
import uuid
from typing import Any

import torch
from torch import Tensor, nn

from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.identity.code import is_library

# Where an object was loaded from and what was warned of; nothing here trains, or pads by the tokenizer's padding side.
_NOTES = frozenset(
    {"_commit_hash", "_is_hf_initialized", "_name_or_path", "_original_object_hash", "base_model_name_or_path",
     "deprecation_warnings", "files_loaded", "init_inputs", "init_kwargs", "merges_file", "name_or_path",
     "padding_side", "tokens_trie", "training", "verbose", "vocab_file"}
)  # fmt: skip
_CODE = type | types.FunctionType | types.BuiltinFunctionType


def describe_pair(loaded: LoadedModel) -> tuple[dict[str, str], list[str]]:
    """Return the ingredients of a model in memory, and the reasons why they do not cover it, if any."""
    model, tokenizer = _Content("the model"), _Content("the tokenizer")
    parts = {"memory.modules": model.written(loaded.model), "memory.tokenizer": tokenizer.written(loaded.tokenizer)}
    parts["memory.weights"] = "\n".join(model.tensors).encode()
    digests = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    return digests, list(dict.fromkeys(model.unknown + tokenizer.unknown))


class _Content(pickle.Pickler):
    """Writes an object's content, to be hashed and never read; notes parts that no library defines."""

    def __init__(self, where: str) -> None:
        self._file, self._where = io.BytesIO(), where
        super().__init__(self._file, protocol=4)
        self.fast = True  # equal texts are written alike, whether or not they are the same object
        self.tensors: list[str] = []
        self.unknown: list[str] = []
        self._seen: dict[int, tuple[int, object]] = {}  # with the object, so that no other gets its id

    def written(self, thing: object) -> bytes:
        try:
            self.dump(thing)
        except Exception as error:  # a tensor on no device, say; even a revision must not find it again
            self._note(type(thing), f"cannot be hashed: {error}")
            return uuid.uuid4().bytes
        return self._file.getvalue()

    def persistent_id(self, value: Any) -> Any:
        """Return the replacement that is written for an object; None if it is pickled as usual."""
        if isinstance(value, set | frozenset):
            return sorted(value, key=repr)
        if isinstance(value, types.MethodType):
            return [value.__func__, value.__self__]
        if isinstance(value, _CODE):
            attribute: Any = sys.modules.get(str(value.__module__))
            for part in value.__qualname__.split("."):
                attribute = getattr(attribute, part, None)
            if not is_library(value.__module__) or (attribute is not value and value.__module__ != "builtins"):
                self._note(value, "no installed library defines")
            return [value.__module__, value.__qualname__]
        if type(value).__module__ == "tokenizers" and hasattr(value, "to_str"):
            # without the padding and truncation of the last call
            return json.dumps({**json.loads(value.to_str()), "truncation": None, "padding": None}, sort_keys=True)
        if not isinstance(value, Tensor | nn.Module):
            return None
        if id(value) in self._seen:  # tied weights, or a module that holds its parent
            return self._seen[id(value)][0]
        self._seen[id(value)] = len(self._seen), value
        return [type(value), _facts(vars(value)), self._tensor(value) if isinstance(value, Tensor) else None]

    def reducer_override(self, value: Any) -> Any:
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:  # a lock, say
            self._note(type(value), f"cannot be hashed: {error}")
            return object, ()
        if isinstance(reduced, str) or not isinstance(state := (*reduced, {})[2], dict):
            return reduced
        # All attributes: some classes leave them out of their pickles.
        return (*reduced[:2], _facts(getattr(value, "__dict__", state)), *reduced[3:])

    def _tensor(self, tensor: Tensor) -> Any:
        facts = [str(tensor.dtype), *tensor.shape]
        if hasattr(tensor, "__tensor_flatten__"):  # a wrapper around other tensors, as torchao's
            names, context = tensor.__tensor_flatten__()
            return [facts, context, [getattr(tensor, name) for name in names]]
        plain = tensor.dequantize() if tensor.is_quantized else tensor
        plain = plain.to_dense() if plain.layout != torch.strided else plain
        plain = plain.detach().as_subclass(Tensor).cpu().contiguous().flatten().view(torch.uint8)
        self.tensors.append(f"{facts} {hashlib.sha256(plain.numpy().data).hexdigest()}")
        return len(self.tensors)

    def _note(self, thing: Any, why: str) -> None:
        self.unknown.append(f"{self._where} has {thing.__module__}.{thing.__qualname__}, which {why}")


def _facts(held: dict[str, Any]) -> dict[str, Any]:
    # Hooks have numbers that count up through the session.
    facts = {key: held[key] for key in sorted(held.keys() - _NOTES)}
    return {key: [*value.values()] if key.endswith("_hooks") else value for key, value in facts.items()}
