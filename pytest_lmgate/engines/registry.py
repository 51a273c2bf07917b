"""The engines: this package's and the user's own, the choice of one for an entry, and what it raises and warns of."""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest_lmgate
from pytest_lmgate.engines.base import Backend, Model, ModelEntry
from pytest_lmgate.errors import ConfigError, LmgateError, ModelError, nearest
from pytest_lmgate.identity import home_of_file
from pytest_lmgate.settings.entries import ModelSpec

_DEFAULT, _SERVER, _COMMAND = "transformers", "server", "command"
# This package's engines: the class, and the suffixes of its paths. Imported lazily, when a model needs one.
BACKENDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    _DEFAULT: ("pytest_lmgate.engines.transformers:Transformers", ()),
    "llama.cpp": ("pytest_lmgate.engines.llamacpp:LlamaCpp", (".gguf",)),
    "onnx": ("pytest_lmgate.engines.onnx:Onnx", (".onnx",)),
    "vllm": ("pytest_lmgate.engines.vllm:Vllm", ()),
    _SERVER: ("pytest_lmgate.engines.server:Server", ()),
    _COMMAND: ("pytest_lmgate.engines.command:CommandBackend", ()),
}
# Keys for one engine, and for engines of the user's own.
_ONLY_OF = {
    _SERVER: ("server", "model", "key"),
    _COMMAND: ("command", "env", "content", "versions", "requires"),
}


def backend_name(name: str, spec: ModelSpec, users: Mapping[str, Backend]) -> str:
    """Return the engine that an entry names, else that of `server:`, `command:` or the path's suffix, or transformers.

    ConfigError for an engine that nobody has, and for keys that are for another engine only.
    """
    wanted = spec.backend or (_SERVER if spec.server else _COMMAND if spec.command else None)
    if wanted is None:
        suffixes = {suffix: backend for backend, (_, several) in BACKENDS.items() for suffix in several}
        suffixes |= {suffix: name for name, backend in users.items() for suffix in backend.suffixes}
        path = spec.path or ""
        wanted = next((name for suffix, name in suffixes.items() if path.endswith(suffix)), _DEFAULT)
    if wanted in users:
        return wanted
    if wanted not in BACKENDS:
        known = [*BACKENDS, *users]
        hint = nearest(wanted, known)
        if not users and not hint:
            hint = "; only pytest reads conftest.py, where your own engines are registered"
        raise ConfigError(f"models.{name}.backend: expected one of {', '.join(known)}; got {wanted!r}{hint}")
    for engine, keys in _ONLY_OF.items():
        for key in keys:
            if wanted != engine and getattr(spec, key) not in (None, {}, []):
                raise ConfigError(
                    f"models.{name}.{key}: the engine {wanted} does not support it: it is for a model with {engine}:"
                )
    return wanted


def backend_called(name: str, users: Mapping[str, Backend]) -> Backend:
    """Return the engine of a name that `backend_name` gave."""
    backend: Backend = users[name] if name in users else resolve_name(BACKENDS[name][0])()
    return backend


def described(backend: Backend, entry: ModelEntry) -> Model:
    """Describe a model by an engine, whose name becomes part of the address."""
    try:
        model = backend.describe(entry)
    except LmgateError:
        raise
    except Exception as error:  # an engine may raise anything
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
    """Return the engines that users registered, by name, or refuse them."""
    backends: dict[str, Backend] = {}
    for backend in given:
        name = getattr(backend, "name", None)
        if not isinstance(name, str) or not callable(getattr(backend, "describe", None)):
            raise ConfigError(f"expected a Backend with a name and describe(entry), got {type(backend).__name__}")
        if name in BACKENDS or name in backends:
            raise ConfigError(f"there are two backends with the name {name!r}; give one of them another name")
        backends[name] = backend
    return backends


def raised(error: Exception) -> str:
    """Return an exception's class and text, and the line of the user's own code that raised it, if any."""
    ours = Path(pytest_lmgate.__file__).parent
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")
        and not Path(frame.filename).is_relative_to(ours)
        and home_of_file(frame.filename) is None
    ]
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "transformers"):
        where = ": pip install torch transformers"
    return f"{type(error).__name__}: {error}{where}"


# transformers lists here which weights it did not use; `engines.transformers.loading` checks them one by one.
_LOAD_REPORT = re.compile(r"LOAD REPORT|^Some weights of ")
# These speak of code that calls a library, and never of the model.
_OF_CODE = (DeprecationWarning, FutureWarning, ImportWarning, PendingDeprecationWarning, ResourceWarning)


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if not _LOAD_REPORT.search(text := record.getMessage()):
            self._note(record.name.partition(".")[0], text)

    def show(self, message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any) -> None:
        """Stand in for `warnings.showwarning`."""
        if not issubclass(category, _OF_CODE):
            self._note(home_of_file(filename) or filename, str(message))

    def _note(self, library: str, text: str) -> None:
        self.texts[f"{library}: {' '.join(text.split())}"] = None


_listening: ContextVar[_Listener | None] = ContextVar("listening", default=None)


@contextlib.contextmanager
def library_warnings() -> Iterator[Mapping[str, None]]:
    """Collect the warnings that libraries log, and their Python warnings, each once; nothing is printed.

    Inside of another such context, the outer one collects, also from a library that was imported in between.
    """
    outer = _listening.get()
    listener, root = outer or _Listener(), logging.getLogger()
    with contextlib.ExitStack() as stack:
        if outer is None:
            stack.callback(_listening.reset, _listening.set(listener))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("always")
            warnings.showwarning = listener.show
            root.addHandler(listener)
            stack.callback(root.removeHandler, listener)
            # Else a second model of a session would not be warned of.
            getattr(getattr(logging.Logger, "warning_once", None), "cache_clear", lambda: None)()
        for logger in list(root.manager.loggerDict.values()):
            # transformers passes nothing on to the root, and prints by a handler of its own.
            if isinstance(logger, logging.Logger) and not logger.propagate and listener not in logger.handlers:
                stack.callback(setattr, logger, "handlers", logger.handlers)
                logger.handlers = [listener]
                if logger.level > logging.WARNING:  # to set a level empties a cache of every logger there is
                    stack.callback(logger.setLevel, logger.level)
                    logger.setLevel(logging.WARNING)
        yield listener.texts
