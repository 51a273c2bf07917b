"""The identity of a model that the user made in memory: a digest of everything in it that can change a number."""

from __future__ import annotations

__all__ = ["digest_pair"]

import json
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from pytest_lmgate.engine.identity import digest, is_library, is_plain
from pytest_lmgate.engine.loading import LoadedModel, quiet

# Attributes of a module that do not take part in what it computes, or have a place of their own below.
_ELSEWHERE = frozenset(
    {"_buffers", "_modules", "_name_or_path", "_parameters", "config", "generation_config", "name_or_path", "training"}
)
# Attributes of a tokenizer in Python that do not take part in what it makes of a text.
_OF_NO_CALL = frozenset(
    {"chat_template", "deprecation_warnings", "files_loaded", "init_inputs", "init_kwargs", "name_or_path", "verbose"}
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def digest_pair(loaded: LoadedModel) -> dict[str, str]:
    """Return the ingredients of an in-memory model: weights, structure, config, code that is no library's, tokenizer.

    Every parameter and buffer is read once, in its own dtype.
    """
    model = loaded.model
    return {
        "model.weights": digest(_weights(model)),
        "model.structure": digest([repr(model), _numbers(model)]),
        "model.config": digest(_config(model)),
        "model.code": digest(_code(model)),
        "tokenizer": digest(_tokenizer(loaded.tokenizer)),
    }


def _weights(model: nn.Module) -> dict[str, Any]:
    """Parameters and buffers by name, and what a module adds to them when it is saved: a quantized one its scales."""
    named = dict(model.named_buffers(remove_duplicate=False))
    return named | dict(model.named_parameters(remove_duplicate=False)) | dict(model.state_dict())


def _numbers(model: nn.Module) -> dict[str, Any]:
    """The plain attributes of every module: scales, flags, the active adapter."""
    return {
        name: {key: value for key, value in vars(module).items() if key not in _ELSEWHERE and is_plain(value)}
        for name, module in model.named_modules()
    }


def _code(model: nn.Module) -> dict[str, Any]:
    """What no version accounts for: the user's own classes, replaced methods, hooks."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        own = not is_library(type(module).__module__)
        added = {
            key: value
            for key, value in vars(module).items()
            if key not in _ELSEWHERE and not is_plain(value) and (own or callable(value))
        }
        added |= {key: list(vars(module)[key].values()) for key in _HOOKS}
        if own or any(added.values()):
            found[name] = [type(module), added]
    # A library's classes too: their methods may have been replaced.
    kinds = {type(module) for module in model.modules()}
    return found | {"classes": sorted(kinds, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")}


def _config(model: nn.Module) -> str:
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        return repr(config)
    known = {key: value for key, value in config.to_dict().items() if key not in _ELSEWHERE}
    known["attention"] = getattr(config, "_attn_implementation", None)
    return json.dumps(known, sort_keys=True, default=str)


def _tokenizer(tokenizer: Any) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        # What the last call asked for, not what the tokenizer is.
        state.pop("truncation", None)
        state.pop("padding", None)
    elif hasattr(tokenizer, "save_vocabulary"):
        with tempfile.TemporaryDirectory() as folder, quiet():
            state = [Path(file).read_bytes() for file in sorted(tokenizer.save_vocabulary(folder))]
        # A tokenizer in Python keeps added tokens, and whatever else, beside its vocabulary's files.
        added = {index: repr(token) for index, token in tokenizer.added_tokens_decoder.items()}
        held = {key: value for key, value in vars(tokenizer).items() if key not in _OF_NO_CALL and is_plain(value)}
        state += [tokenizer.get_vocab(), added, held]
    else:
        return tokenizer
    special = {key: str(value) for key, value in tokenizer.special_tokens_map.items()}
    return [type(tokenizer), state, special, getattr(tokenizer, "split_special_tokens", None)]
