"""Which engine a model's entry means: the one that it names, of its path's suffix, of a server, else transformers."""

from __future__ import annotations

__all__ = ["BACKENDS", "backend_of", "collected_backends", "described"]

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pytest_lmgate.backends.base import Backend, Entry, Model
from pytest_lmgate.backends.raised import raised
from pytest_lmgate.config.specs import ModelSpec
from pytest_lmgate.errors import ConfigError, LmgateError, ModelError, nearest

_DEFAULT, _SERVER = "transformers", "server"
# The engines of this package: where each stands, and the suffixes of paths that are its own. None is imported before
# a model needs it.
BACKENDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    _DEFAULT: ("pytest_lmgate.backends.hf.backend:Transformers", ()),
    "llama.cpp": ("pytest_lmgate.backends.llamacpp.backend:LlamaCpp", (".gguf",)),
    "onnx": ("pytest_lmgate.backends.onnx.backend:Onnx", (".onnx",)),
    "vllm": ("pytest_lmgate.backends.vllm.backend:Vllm", ()),
    _SERVER: ("pytest_lmgate.backends.server.backend:Server", ()),
}
# Keys of an entry that only a server has, or an engine of the user's own.
_OF_SERVERS = ("server", "model", "key")


def backend_of(spec: ModelSpec, name: str, users: Mapping[str, Backend]) -> Backend:
    """Return the engine of a model's entry, one of this package or one that a user registered under its name.

    Raises:
        ConfigError: The entry names an unknown engine, or has a server's keys for another engine.
    """
    wanted = spec.backend or (_SERVER if spec.server else None)
    if wanted is None:
        suffixes = {each: own for own, (_, several) in BACKENDS.items() for each in several}
        suffixes |= {each: own for own, backend in users.items() for each in backend.suffixes}
        path = spec.path or ""
        wanted = next((own for each, own in suffixes.items() if path.endswith(each)), _DEFAULT)
    if wanted in users:
        return users[wanted]
    if wanted not in BACKENDS:
        known = [*BACKENDS, *users]
        hint = nearest(wanted, known)
        if not users and not hint:
            hint = "; an engine of your own is registered in a conftest.py, which only pytest reads"
        raise ConfigError(f"models.{name}.backend: expected one of {', '.join(known)}; got {wanted!r}{hint}")
    for key in _OF_SERVERS:
        if wanted != _SERVER and getattr(spec, key) is not None:
            raise ConfigError(
                f"models.{name}.{key}: the engine {wanted} does not take it: it is for a model of server:"
            )
    module, _, attribute = BACKENDS[wanted][0].partition(":")
    found: Backend = getattr(importlib.import_module(module), attribute)()
    return found


def described(backend: Backend, entry: Entry) -> Model:
    """Have an engine describe a model; its name is part of what can change a number.

    Raises:
        ModelError: It cannot, or gives something else.
    """
    try:
        model = backend.describe(entry)
    except LmgateError:
        raise
    except Exception as error:  # whatever an engine raises
        raise ModelError(
            f"model {entry.name!r}: the engine {backend.name} cannot describe it: {raised(error)}"
        ) from error
    if not isinstance(model, Model):
        kind = type(model).__name__
        raise ModelError(f"model {entry.name!r}: expected the engine {backend.name} to describe a Model, got {kind}")
    if model.context is not None and not (type(model.context) is int and model.context > 0):
        raise ModelError(
            f"model {entry.name!r}: expected the engine {backend.name} to give a context of 1 token or more, or None "
            f"for no limit; got {model.context!r}"
        )
    if backend.name == _DEFAULT:
        return model
    return replace(model, runtime={**model.runtime, "backend": backend.name})  # two engines may describe one file alike


def collected_backends(given: Iterable[Any]) -> dict[str, Backend]:
    """Return the engines that users registered, by name.

    Raises:
        ConfigError: One of them is none, or has a name that is taken.
    """
    found: dict[str, Backend] = {}
    for backend in given:
        name = getattr(backend, "name", None)
        if not isinstance(name, str) or not callable(getattr(backend, "describe", None)):
            raise ConfigError(f"expected a Backend with a name and describe(entry), got {type(backend).__name__}")
        if name in BACKENDS or name in found:
            raise ConfigError(f"there are two backends of the name {name!r}; give one of them another name")
        found[name] = backend
    return found
