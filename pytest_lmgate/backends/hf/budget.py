"""How many tokens to read in a batch."""

from __future__ import annotations

__all__ = ["token_budget"]

import math

import torch

_CPU_TOKENS = 2048
_ACCELERATOR_TOKENS = 16384
_MOST_TOKENS = 65536
_PLAIN_LOGIT_BYTES = 2**28
# Beside the tiles of logits, so that a measurement takes less than 1 GiB over the model itself.
_ACTIVATION_BYTES = 2**29


def token_budget(device: torch.device, plain_vocabulary: int = 0, activation_bytes: float | None = None) -> int:
    """Return how many tokens to read in a batch.

    The free memory has no say, so that a measurement is batched the same on every run: what half precision rounds
    depends on the batch.

    Args:
        device: Where the model runs.
        plain_vocabulary: Logits per token where they are held whole; 0 where they are streamed.
        activation_bytes: Memory that the model takes for each token while it reads; None where that is not known.
    """
    budget = _CPU_TOKENS if device.type == "cpu" else _ACCELERATOR_TOKENS
    if activation_bytes:
        # A power of two: an allocator that rounds a little otherwise changes no batch.
        budget = 2 ** int(math.log2(max(1.0, min(_MOST_TOKENS, _ACTIVATION_BYTES / activation_bytes))))
    if plain_vocabulary:
        budget = min(budget, max(1, _PLAIN_LOGIT_BYTES // (4 * plain_vocabulary)))
    return budget
