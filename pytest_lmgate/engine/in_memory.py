"""The identity of a model that the user made in memory: a digest of everything in it that can change a number."""

from __future__ import annotations

__all__ = ["digest_pair"]

from typing import Any

from torch import nn

from pytest_lmgate.engine.contents import attributes
from pytest_lmgate.engine.identity import digest, is_plain
from pytest_lmgate.engine.libraries import is_library
from pytest_lmgate.engine.loading import LoadedModel

# Attributes of a module that do not take part in what it computes forward, or have a place of their own below.
_ELSEWHERE = frozenset(
    {"_backward_hooks", "_backward_pre_hooks", "_buffers", "_is_full_backward_hook", "_load_state_dict_post_hooks",
     "_load_state_dict_pre_hooks", "_modules", "_name_or_path", "_parameters", "_state_dict_hooks",
     "_state_dict_pre_hooks", "config", "generation_config", "name_or_path", "training"}
)  # fmt: skip
# Hooks by the number that each got in its process, and the numbers of those that are called in another way.
_HOOKS = {
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
}
_HELD_ELSEWHERE = _ELSEWHERE | _HOOKS.keys() | {key for ways in _HOOKS.values() for key in ways}


def digest_pair(loaded: LoadedModel) -> dict[str, str]:
    """Return the ingredients of an in-memory model: weights, structure, config, code that is no library's, tokenizer.

    Every parameter and buffer is read once, in its own dtype.
    """
    model = loaded.model
    # Objects around a module may refer to it or to others, as a hook's or an adapter's do.
    known = {f"module {name}": module for name, module in model.named_modules()} | _tensors(model)
    return {
        "model.weights": digest(_weights(model)),
        "model.structure": digest([repr(model), _numbers(model)]),
        "model.config": digest(_configs(model)),
        "model.code": digest(_code(model), known),
        "tokenizer": digest(loaded.tokenizer),
    }


def _weights(model: nn.Module) -> dict[str, Any]:
    """Parameters and buffers by name, and what a module adds to them when it is saved: a quantized one its scales."""
    return _tensors(model) | dict(model.state_dict())


def _tensors(model: nn.Module) -> dict[str, Any]:
    named = dict(model.named_buffers(remove_duplicate=False))
    return named | dict(model.named_parameters(remove_duplicate=False))


def _numbers(model: nn.Module) -> dict[str, Any]:
    """The plain attributes of every module: scales, flags, the active adapter."""
    return {
        name: {key: value for key, value in _held(module).items() if is_plain(value)}
        for name, module in model.named_modules()
    }


def _code(model: nn.Module) -> dict[str, Any]:
    """What no version accounts for: the user's own classes, replaced methods, hooks, whatever else a module holds."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        added = {key: value for key, value in _held(module).items() if not is_plain(value)} | _hooks(module)
        if added or not is_library(type(module).__module__):
            found[name] = [type(module), added]
    # A library's classes too: their methods may have been replaced.
    kinds = {type(module) for module in model.modules()}
    return found | {"classes": sorted(kinds, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")}


def _held(module: nn.Module) -> dict[str, Any]:
    held = {key: value for key, value in attributes(module).items() if key not in _HELD_ELSEWHERE}
    return dict(sorted(held.items()))


def _hooks(module: nn.Module) -> dict[str, Any]:
    return {
        kind: [(hook, [key in vars(module).get(way, ()) for way in ways]) for key, hook in vars(module)[kind].items()]
        for kind, ways in _HOOKS.items()
        if vars(module)[kind]
    }


def _configs(model: nn.Module) -> dict[str, Any]:
    """The config of every module that has one of its own, as an inner model does."""
    configs = {name: vars(module)["config"] for name, module in model.named_modules() if "config" in vars(module)}
    outer = getattr(model, "config", None)
    return {name: each for name, each in configs.items() if each is not outer or not name} | {"": outer}
