"""Code of the session that takes part in a model from files, though no file of the checkpoint tells of it.

Classes that the session registered with transformers' auto classes, and functions, methods and classes that stand where
the libraries that run a model had their own. Looked up without importing anything: what was registered or replaced had
to be imported for it.
"""

from __future__ import annotations

__all__ = ["session_code"]

import functools
import re
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_lmgate.engine.libraries import home, library_versions

_AUTO = tuple(f"transformers.models.auto.{part}_auto" for part in ("configuration", "modeling", "tokenization"))
_SCANNED = re.compile(r"(transformers|peft|torch\.nn)(\.|$)")
# Where transformers puts the code that comes with a checkpoint, which is hashed with its files.
_CHECKPOINTS = "transformers_modules."


def session_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of such code, as an ingredient of an address; empty where there is none.

    Args:
        config: The model's config, as in config.json.
    """
    registered = _registered(config.get("model_type"))
    # No model's code is there to be replaced before torch is; importing it only to find nothing would take seconds.
    replaced = _replaced() if sys.modules.get("torch") is not None else {}
    if not registered and not replaced:
        return {}
    from pytest_lmgate.engine.identity import digest

    return {"session code": digest([registered, replaced, library_versions()])}


def _registered(model_type: object) -> dict[str, Any]:
    """Classes registered for a model type, and all tokenizers, since these are looked up by their class's name too."""
    found: dict[str, Any] = {}
    for module in (sys.modules[name] for name in _AUTO if name in sys.modules):
        is_tokenization = module.__name__ == _AUTO[-1]
        for name, mapping in list(vars(module).items()):
            extra = getattr(mapping, "_extra_content", None)
            for key, kind in list(extra.items()) if isinstance(extra, dict) else ():
                if (is_tokenization or getattr(key, "model_type", key) == model_type) and not _is_checkpoints(kind):
                    found[f"{module.__name__}.{name} {getattr(key, '__name__', key)}"] = kind
    return found


def _is_checkpoints(kind: Any) -> bool:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return any(str(getattr(each, "__module__", "")).startswith(_CHECKPOINTS) for each in kinds)


def _replaced() -> dict[str, Any]:
    """What stands in the libraries' modules and classes and was neither written nor imported by them."""
    homes: dict[int, str | None] = {}  # by id: most of what a module holds is held by others too
    found: list[tuple[str, types.ModuleType, Any]] = []
    for module in [module for name, module in sorted(sys.modules.items()) if _SCANNED.match(name)]:
        for path, value in _named(module) if isinstance(module, types.ModuleType) else ():
            if id(value) not in homes:
                homes[id(value)] = home(value)
            if homes[id(value)] is not None:
                found.append((".".join(path), module, value))
    imported = {id(value) for _, module, value in found if _imports(module, str(homes[id(value)]))}
    return {path: value for path, _, value in found if id(value) not in imported}


def _named(module: types.ModuleType) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what a module, its classes and their tables (such as that of attention functions) hold, with its names."""
    members = list(vars(module).items())
    owners: list[tuple[tuple[str, ...], list[tuple[str, Any]]]] = [((module.__name__,), members)]
    owners += [
        ((module.__name__, name), list(vars(each).items()))
        for name, each in members
        if isinstance(each, type) and each.__module__ == module.__name__
    ]
    for owner, inner in owners:
        for name, value in inner:
            if name == "__new__":  # of a named tuple, which Python writes
                continue
            yield (*owner, name), value
            if isinstance(value, dict) and not name.startswith("__"):
                # As a plain dict: the items() of transformers' lazy mappings would import what they name.
                table = list(dict.items(value))
                yield from (((*owner, name, repr(key)), each) for key, each in table if callable(each))


def _imports(module: types.ModuleType, home: str) -> bool:
    """Whether a library's module imports a package by its own source, and so may hold what that defines."""
    pattern = rf"^\s*(from|import)\s+{re.escape(home.partition('.')[0])}\b"
    return re.search(pattern, _source(getattr(module, "__file__", None)), re.MULTILINE) is not None


@functools.cache
def _source(file: str | None) -> str:
    try:
        return Path(file or "").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
