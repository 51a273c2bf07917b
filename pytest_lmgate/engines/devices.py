"""Devices: which one a model runs on, its free memory, and errors that say that memory ran out.

torch is imported lazily: a session whose measurements are all cached never loads it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import os
import platform
import re
import sys
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_lmgate.engines.base import OutOfMemory
from pytest_lmgate.errors import ModelError

if TYPE_CHECKING:
    import torch

# Of torch, CUDA, onnxruntime, vLLM and the C++ library.
_PHRASES = (
    "out of memory", "outofmemory", "allocate memory", "failed to allocate", "not enough memory", "bad_alloc",
    "bad allocation", "alloc_failed",
)  # fmt: skip


def available_bytes(device: str) -> int:
    """Return the free memory of a GPU, as in ``cuda:1``, or of the host."""
    if device.startswith("cuda"):
        import torch

        try:
            return torch.cuda.mem_get_info(device)[0]
        except (RuntimeError, AssertionError):
            return sys.maxsize  # there is no such device, and the engine says so when it opens the model
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - not a file of the user's
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 2**32


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out; torch's CPU allocator raises a plain RuntimeError."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and says_out_of_memory(str(error))


def says_out_of_memory(message: str) -> bool:
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
    """Send a tensor of the host to a device; a GPU copies it from pinned memory, and the host does not wait."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def wide(device: torch.device) -> torch.dtype:
    """Return the dtype for sums on a device: float64, but float32 on Apple's GPUs, which have no float64."""
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


@contextlib.contextmanager
def within_memory(device: torch.device) -> Iterator[None]:
    """Turn an error of memory into `OutOfMemory`, after unused memory was released."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        # The frames of what failed hold the tensors of its batch.
        traceback.clear_frames(error.__traceback__)
        release(device)
        raise OutOfMemory(str(device), str(error)) from None


def resolve_device(wanted: str, worker: int | None = None) -> str:
    """Return `wanted`, or for ``auto`` the best device there is: ``cuda``, else ``mps``, else ``cpu``.

    ``cuda`` is any GPU. If there are several, xdist workers, which have numbers, take turns.
    """
    if wanted not in ("auto", "cuda") or (wanted == "cuda" and worker is None):
        return wanted
    devices = cuda_devices() if _torch_build() else 0
    if devices > 1 and worker is not None:
        return f"cuda:{worker % devices}"
    if devices or wanted == "cuda":
        return "cuda"
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "mps"
    return "cpu"


def device_class(device: str) -> str:
    """Return the part of a device that an address has: ``cuda:1`` and ``cuda:0`` compute the same."""
    return device.partition(":")[0]


def require_device(device: str, *, model: str) -> None:
    """Refuse a device, such as ``cuda:1``, that this machine does not have; a cached measurement needs none."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(
            f"model {model!r}: the device {device!r} cannot be used on this machine: {reason.rstrip('.')}; use device: "
            "cpu, or --lmgate-device cpu"
        ) from error


@cache
def share_processors(workers: int) -> None:
    """Give each of several processes its share of the processors, once, unless OMP_NUM_THREADS decides.

    Too many threads wait for each other in every operation: two workers of two threads each on two processors took 30
    times as long as one.
    """
    if workers > 1 and "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(max(1, torch.get_num_threads() // workers))


@cache
def _torch_build() -> str:
    """Return the platform that torch was built for, by its version file: ``cuda``, ``hip`` (AMD's GPUs) or nothing."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return "cuda"  # an unusual build: let the driver decide
    built = re.search(r"^(cuda|hip)\b[^=]*=\s*['\"]", text, flags=re.MULTILINE)
    return "" if built is None else built[1]


@cache
def cuda_devices() -> int:
    """Return the number of GPUs that CUDA_VISIBLE_DEVICES, or HIP's own variables, leave: by the driver itself.

    Only torch knows where the library of AMD's driver is, which comes with it.
    """
    if _torch_build() == "hip":
        import torch

        return torch.cuda.device_count()
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1", "NoDevFiles"):
        return 0
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
        count = ctypes.c_int(0)
        if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return 0
    except (OSError, AttributeError):
        return 0
    return count.value
