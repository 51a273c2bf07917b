"""One forward pass of a model.

Batches are right-padded, without an attention mask: right for models whose states do not depend on later tokens, which
a trial proves. A model that draws random numbers is run twice: the same tokens must give the same numbers.

The rotary frequencies ``longrope`` and ``dynamic`` of transformers follow the length: beyond the trained length, the
longest row of a batch chooses those of all rows. ``dynamic`` also keeps those of the longest row so far, until it reads
a row within the trained length.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pytest_lmgate.errors import EngineError, ModelError

_ROUNDINGS = 8
_FLOAT32_ROUNDING = 1e-5


def inputs_of(model: Any, ids: Tensor, cache: Any = None) -> dict[str, Any]:
    """Return the arguments to read token ids, shape ``[batch, tokens]``, that follow what a cache holds."""
    if cache is not None:
        return {"input_ids": ids, "past_key_values": cache, "use_cache": True}
    parameters = inspect.signature(model.forward).parameters
    takes_use_cache = "use_cache" in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )
    return {"input_ids": ids, **({"use_cache": False} if takes_use_cache else {})}


def logits_of(model: Any, ids: Tensor) -> Tensor:
    """Return the logits after each token, shape ``[batch, tokens, vocabulary]``."""
    output = model(**inputs_of(model, ids))
    first = output[0] if isinstance(output, tuple) else output
    logits = first if isinstance(first, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise EngineError(f"expected logits of {type(model).__name__}, got {type(output).__name__} without them")
    if logits.ndim != 3 or logits.shape[0] != ids.shape[0] or logits.shape[1] < ids.shape[1]:
        raise EngineError(
            f"expected logits of shape [{ids.shape[0]}, {ids.shape[1]}, vocabulary] of {type(model).__name__}, got "
            f"{list(logits.shape)}"
        )
    # A prompt-tuning adapter reads its virtual tokens before the text and gives logits for them too.
    return logits[:, -ids.shape[1] :]


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch off dropout and the like, and on again afterwards: a model in memory may be in training."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def not_deterministic(name: str) -> ModelError:
    return ModelError(
        f"model {name!r} is not deterministic: it gave two different likelihoods for the same row, but a gate needs "
        "the same number twice; switch off its randomness, such as dropout that ignores evaluation mode, or "
        "Reformer's attention by random hashes (hash_seed in config.json)"
    )


def random_states() -> list[Tensor]:
    """Return the states of torch's random numbers; a model that draws some changes them."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states += [torch.cuda.get_rng_state(device) for device in range(torch.cuda.device_count())]
    return states


def differ_by_rounding(result: Tensor, again: Tensor) -> bool:
    """Return whether two results of a model differ by rounding only; NaN is an error elsewhere."""
    tolerance = max(_ROUNDINGS * torch.finfo(result.dtype).eps, _FLOAT32_ROUNDING)
    result, again = result.cpu().double().nan_to_num(), again.cpu().double().nan_to_num()
    return bool((result - again).abs().mean() <= tolerance * result.abs().mean())


def follows_length(model: Any, tokens: int) -> bool:
    """Return whether the longest row of a batch, of so many tokens, chooses the frequencies of the other rows."""
    return _has(model, ("dynamic", "longrope"), tokens)


def forget_lengths(model: Any, ids: Tensor, tokens: int | None = None) -> None:
    """Reset frequencies that a model keeps from earlier, longer rows.

    `ids` are the next batch, shape ``[batch, tokens]``; `tokens` is the length of a row with the text that it writes.
    """
    # A row of exactly the trained length does not reset them.
    if _has(model, ("dynamic",), (tokens or ids.shape[1]) + 1):
        model(input_ids=ids[:, :2])


def _has(model: Any, kinds: tuple[str, ...], tokens: int) -> bool:
    return any(
        rope.get("rope_type", rope.get("type")) in kinds and tokens > _trained(config, rope)
        for config in _configs(getattr(model, "config", None))
        for rope in _declared(config)
    )


def _configs(config: Any) -> Iterator[Any]:
    """Yield a config and its parts, such as the text config of a multimodal model."""
    yield config
    for value in getattr(config, "__dict__", {}).values():
        if hasattr(value, "model_type"):
            yield from _configs(value)


def _declared(config: Any) -> Iterator[dict[Any, Any]]:
    """Yield a config's settings of its frequencies; some have one for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if isinstance(rope, dict):
        yield rope
        yield from (value for value in rope.values() if isinstance(value, dict))


def _trained(config: Any, declared: dict[Any, Any]) -> float:
    """Return the length that the model was trained to read; 0 if unknown."""
    original = "original_max_position_embeddings"
    lengths = declared.get(original), *(getattr(config, name, None) for name in (original, "max_position_embeddings"))
    return min((length for length in lengths if isinstance(length, int | float)), default=0)
