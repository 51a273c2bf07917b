"""Code of the session that takes part in a model from files, though no file of the checkpoint tells of it.

Classes that the session registered with transformers' auto classes, and functions that it put in the place of those of
transformers' models. Looked up without importing anything: what was registered or replaced had to be imported for it.
"""

from __future__ import annotations

__all__ = ["session_code"]

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

_AUTO = tuple(f"transformers.models.auto.{part}_auto" for part in ("configuration", "modeling", "tokenization"))


def session_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of such code, as an ingredient of an address; empty where there is none.

    Args:
        config: The model's config, as in config.json.
    """
    registered = _registered(config.get("model_type"))
    modules = [name for name in sys.modules if name.startswith("transformers.models.") and ".modeling_" in name]
    if not registered and not modules:
        return {}
    from pytest_lmgate.engine.identity import digest, replaced

    own: dict[str, Any] = {}
    for name in sorted(modules):
        module = sys.modules[name]
        owners: list[type | ModuleType] = [module]
        owners += [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == name]
        own |= {f"{owner.__name__}.{key}": each for owner in owners for key, each in replaced(owner).items()}
    return {"session code": digest([registered, own])} if registered or own else {}


def _registered(model_type: object) -> dict[str, Any]:
    """Classes registered for a model type, by the mapping that holds them; its keys are types or config classes."""
    found = {}
    for module in _AUTO:
        for name, mapping in list(vars(sys.modules[module]).items()) if module in sys.modules else ():
            extra = getattr(mapping, "_extra_content", None)
            for key, kind in extra.items() if isinstance(extra, dict) else ():
                if getattr(key, "model_type", key) == model_type:
                    found[f"{module}.{name}"] = kind
    return found
