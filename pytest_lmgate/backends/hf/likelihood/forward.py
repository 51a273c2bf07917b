"""One forward pass of a causal model: what it is given, what is required of what it gives back.

No attention mask is passed and batches are right-padded, which is right for a model whose states do not depend on what
comes after them, and for no other: `causality.require_causal` proves that on the model at hand.
"""

from __future__ import annotations

__all__ = ["evaluation_mode", "logits_of", "run"]

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from pytest_lmgate.errors import EngineError


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
