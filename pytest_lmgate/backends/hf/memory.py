"""How much fits: token budgets, telling an out-of-memory error from others, and giving memory back."""

from __future__ import annotations

__all__ = ["is_out_of_memory", "release", "token_budget", "within_memory"]

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from pytest_lmgate.backends.base import OutOfMemory

T = TypeVar("T")

_CPU_TOKENS = 2048
_ACCELERATOR_TOKENS = 16384
_PLAIN_LOGIT_BYTES = 2**28
_PHRASES = (
    "out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "std::bad_alloc",
    "alloc_failed",
)  # fmt: skip


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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch's CPU allocator raises a plain RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in _PHRASES)


def release(device: torch.device) -> None:
    """Give unused memory back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def within_memory(device: torch.device, compute: Callable[[], T]) -> T:
    """Compute something on a device.

    Raises:
        OutOfMemory: Memory ran out; what was unused by then has been given back.
    """
    try:
        return compute()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        details = str(error)
    # Outside the handler: the traceback would keep the failed batch's tensors alive.
    release(device)
    raise OutOfMemory(str(device), details)
