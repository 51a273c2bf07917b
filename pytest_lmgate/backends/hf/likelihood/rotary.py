"""Rotary frequencies that follow the length of what is read: ``longrope`` and ``dynamic`` of transformers.

Beyond the trained length, the longest row of a batch chooses the frequencies of all its rows. ``dynamic`` also keeps
those of the longest row so far, until it reads a row within the trained length.
"""

from __future__ import annotations

__all__ = ["follows_length", "forget_lengths"]

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def follows_length(model: Any, tokens: int) -> bool:
    """Return whether the longest row of a batch, of so many tokens, chooses the frequencies of the other rows."""
    return _has(model, ("dynamic", "longrope"), tokens)


def forget_lengths(model: Any, ids: Tensor, tokens: int | None = None) -> None:
    """Let a model forget how long its earlier rows were, if it would read the next ones by that.

    Args:
        model: In evaluation mode.
        ids: What it is about to read, on its device, shape ``[batch, tokens]``.
        tokens: The length of a row with what the model writes behind it; None where it writes nothing.
    """
    # A row of just the trained length is not short enough for the model to forget by itself.
    if _has(model, ("dynamic",), (tokens or ids.shape[1]) + 1):
        model(input_ids=ids[:, :2])


def _has(model: Any, kinds: tuple[str, ...], tokens: int) -> bool:
    return any(
        each.get("rope_type", each.get("type")) in kinds and tokens > _trained(config, each)
        for config in _configs(getattr(model, "config", None))
        for each in _declared(config)
    )


def _configs(config: Any) -> Iterator[Any]:
    """Yield a config and those within it, such as that of the text in a model of images and text."""
    yield config
    for each in getattr(config, "__dict__", {}).values():
        if hasattr(each, "model_type"):
            yield from _configs(each)


def _declared(config: Any) -> Iterator[dict[Any, Any]]:
    """Yield what a config says of its frequencies; some say it for each type of layer."""
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if isinstance(found, dict):
        yield found
        yield from (each for each in found.values() if isinstance(each, dict))


def _trained(config: Any, declared: dict[Any, Any]) -> float:
    """Return how many tokens the model was trained to read; 0 where nothing says so."""
    original = "original_max_position_embeddings"
    said = (declared.get(original), getattr(config, original, None), getattr(config, "max_position_embeddings", None))
    return min((each for each in said if isinstance(each, int | float)), default=0)
