"""How many tokens to read in a batch."""

from __future__ import annotations

__all__ = ["token_budget"]

import torch

_CPU_TOKENS = 2048
_ACCELERATOR_TOKENS = 16384
_PLAIN_LOGIT_BYTES = 2**28


def token_budget(device: torch.device, plain_vocabulary: int = 0) -> int:
    """Return how many tokens to read in a batch.

    Args:
        device: Where the model runs.
        plain_vocabulary: Logits per token where they are held whole; 0 where they are streamed.
    """
    budget = _CPU_TOKENS if device.type == "cpu" else _ACCELERATOR_TOKENS
    if plain_vocabulary:
        budget = min(budget, max(1, _PLAIN_LOGIT_BYTES // (4 * plain_vocabulary)))
    return budget
