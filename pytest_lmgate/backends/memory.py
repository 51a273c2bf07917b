"""What devices have: free memory, an error that says it ran out, a way for tensors to get there, float64 or not.

torch is imported where a function needs it, since a session whose measurements are all cached asks for free memory.
"""

from __future__ import annotations

__all__ = ["available_bytes", "is_out_of_memory", "release", "says_out_of_memory", "sent", "wide", "within_memory"]

import gc
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pytest_lmgate.backends.base import OutOfMemory

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

# As torch, CUDA, onnxruntime, vLLM and the C++ library say it.
_PHRASES = (
    "out of memory", "outofmemory", "allocate memory", "failed to allocate", "not enough memory", "bad_alloc",
    "bad allocation", "alloc_failed",
)  # fmt: skip


def available_bytes(device: str) -> int:
    """Return the free memory of a device: of the host, unless it is ``cuda`` or one of several, as ``cuda:1``."""
    if device.startswith("cuda"):
        import torch

        try:
            return torch.cuda.mem_get_info(device)[0]
        except (RuntimeError, AssertionError):
            return sys.maxsize  # there is no such device, and the engine says so when it opens the model
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - not a file of the user's
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 2**32


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch's CPU allocator raises a plain RuntimeError."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and says_out_of_memory(str(error))


def says_out_of_memory(message: str) -> bool:
    """Whether a library's message says that memory ran out."""
    return any(phrase in message.lower() for phrase in _PHRASES)


def release(device: torch.device) -> None:
    """Give unused memory back to the device."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of the host on a device; a GPU copies it from pinned memory, and the host does not wait."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def wide(device: torch.device) -> torch.dtype:
    """Return the dtype for sums on a device: float64, but float32 on Apple's GPUs, which have no float64."""
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


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
