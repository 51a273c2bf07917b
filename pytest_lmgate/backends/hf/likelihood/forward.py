"""One forward pass of a causal model: what it is given, what is required of what it gives back.

No attention mask is passed and batches are right-padded, which is right for a model whose states do not depend on what
comes after them, and for no other: `causality.require_causal` proves that on the model at hand. A model that draws
random numbers while it reads is run twice: the same tokens must give the same numbers.
"""

from __future__ import annotations

__all__ = ["evaluation_mode", "logits_of", "not_deterministic", "repeatable", "run"]

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pytest_lmgate.errors import EngineError, ModelError

_ROUNDINGS = 8
_FLOAT32_ROUNDING = 1e-5


def run(model: Any, ids: Tensor) -> Any:
    """Run `model` on token ids of shape ``[batch, tokens]`` without keeping anything for later steps."""
    options = {"use_cache": False} if _takes_use_cache(model) else {}
    return model(input_ids=ids, **options)


def logits_of(model: Any, ids: Tensor) -> Tensor:
    """Return the logits after each token, shape ``[batch, tokens, vocabulary]``.

    Raises:
        EngineError: The model gives back anything else.
    """
    output = run(model, ids)
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
    """Switch dropout and the like off, and back on after: a model made in memory may be in the midst of training."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _takes_use_cache(model: Any) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return "use_cache" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def repeatable(compute: Callable[[], Tensor], *, name: str) -> Tensor:
    """Run a model on some tokens by `compute`; where that took random numbers from torch, run it again and compare.

    Raises:
        ModelError: The second run gives other numbers, beyond rounding.
    """
    before = _random_states()
    found = compute()
    if all(torch.equal(one, other) for one, other in zip(before, _random_states(), strict=True)):
        return found
    again = compute()
    if not _agree(found, again):
        raise not_deterministic(name)
    return found


def not_deterministic(name: str) -> ModelError:
    """Return what to raise where a model gave two numbers for the same row."""
    return ModelError(
        f"model {name!r} is not deterministic: it gave two different likelihoods for the same row, but a gate needs "
        "the same number twice; switch off what is random in it, such as dropout that ignores evaluation mode, or "
        "Reformer's attention by random hashes (hash_seed in config.json)"
    )


def _random_states() -> list[Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states += [torch.cuda.get_rng_state(device) for device in range(torch.cuda.device_count())]
    return states


def _agree(found: Tensor, again: Tensor) -> bool:
    """Whether two results differ by rounding only; NaN is another error, which is raised where it is met."""
    tolerance = max(_ROUNDINGS * torch.finfo(found.dtype).eps, _FLOAT32_ROUNDING)
    found, again = found.cpu().double().nan_to_num(), again.cpu().double().nan_to_num()
    return bool((found - again).abs().mean() <= tolerance * found.abs().mean())
