"""One forward pass of a causal model: what it is given, what is required of what it gives back.

No attention mask is passed and batches are right-padded, which is right for a model whose states do not depend on what
comes after them, and for no other: `require_causal` proves that on the model at hand.
"""

from __future__ import annotations

__all__ = ["evaluation_mode", "logits_of", "require_causal", "run"]

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pytest_lmgate.errors import EngineError, ModelError

_PROOF_TOKENS = 12


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


def require_causal(model: Any, ids: Tensor, *, name: str) -> None:
    """Refuse a model whose likelihood of a token depends on the tokens after it.

    Such a model (BERT without ``is_decoder``, XLNet) sees the very token it is asked for, and padding changes its
    numbers. The earlier half of a few tokens is read with another later half, and the other way round: in a causal
    model only the second matters. Quantized activations and rounding let a little through, hence the comparison.

    Args:
        model: In evaluation mode.
        ids: Token ids on the model's device, shape ``[tokens]``; a few are enough.
        name: The model's name, for messages.

    Raises:
        ModelError: It is not causal.
    """
    ids = ids[:_PROOF_TOKENS]
    half = len(ids) // 2
    if half == 0:
        return
    # Its neighbour in the vocabulary: always another token, always a valid one.
    other = (ids - 1).abs()
    batch = torch.stack([ids, torch.cat([ids[:half], other[half:]]), torch.cat([other[:half], ids[half:]])])
    # Some models forbid tokens with an infinite or a huge negative logit, which says nothing here.
    logits = logits_of(model, batch).float().nan_to_num().clamp(-1e4, 1e4)
    later_matters = (logits[1] - logits[0])[:half].abs().mean()
    earlier_matters = (logits[2] - logits[0])[half:].abs().mean()
    rounding = max(torch.finfo(getattr(model, "dtype", torch.float32)).eps, 1e-5) * logits.abs().mean()
    if later_matters > rounding and later_matters > earlier_matters / 4:
        raise ModelError(
            f"perplexity is undefined for the model {name!r} ({type(model).__name__}): its likelihood of a token "
            "depends on the tokens after it, but a causal model was expected; if it was trained as one, its config may "
            "lack is_decoder: true"
        )


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
