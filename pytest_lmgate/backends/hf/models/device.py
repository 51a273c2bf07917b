"""Which device a model runs on, found without importing torch, so that a cached run never loads it."""

from __future__ import annotations

__all__ = ["device_class", "require_device", "resolve_device", "share_processors"]

import ctypes
import importlib.util
import os
import platform
import re
import sys
from functools import cache
from pathlib import Path

from pytest_lmgate.errors import ModelError


def resolve_device(wanted: str, worker: int | None = None) -> str:
    """Return `wanted`, or for ``auto`` the best device there is: ``cuda``, else ``mps``, else ``cpu``.

    Args:
        wanted: The device asked for. ``cuda:1`` is that one device, ``cuda`` any GPU.
        worker: The number of this worker of xdist, None without xdist. Where there are several GPUs, each worker takes
            its own in place of ``cuda``, the first worker the first; workers beyond the last GPU begin at the first.
    """
    if wanted not in ("auto", "cuda") or (wanted == "cuda" and worker is None):
        return wanted
    devices = _cuda_devices() if _torch_has_cuda() else 0
    if devices > 1 and worker is not None:
        return f"cuda:{worker % devices}"
    if devices or wanted == "cuda":
        return "cuda"
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "mps"
    return "cpu"


def device_class(device: str) -> str:
    """Return what of a device is in an address: ``cuda:1`` and ``cuda:0`` compute the same."""
    return device.partition(":")[0]


def require_device(device: str, *, model: str) -> None:
    """Refuse a device, such as ``cuda:1``, that this machine does not have; a cached measurement needs none.

    Raises:
        ModelError: torch cannot use the device.
    """
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(
            f"model {model!r}: the device {device!r} cannot be used on this machine: {reason.rstrip('.')}; "
            "say device: cpu, or --lmgate-device cpu"
        ) from error


@cache
def share_processors(workers: int) -> None:
    """Give each of several processes its share of the processors, once, unless OMP_NUM_THREADS decides.

    More threads than processors wait for each other in every operation: two workers of two threads each on two
    processors were seen to take 30 times as long as one.
    """
    if workers > 1 and "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(max(1, torch.get_num_threads() // workers))


@cache
def _torch_has_cuda() -> bool:
    """Read torch's own version file as text: a CPU build says ``cuda: ... = None``."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return True  # an unusual build: let the driver decide
    return re.search(r"^(cuda|hip)\b[^=]*=\s*['\"]", text, flags=re.MULTILINE) is not None


@cache
def _cuda_devices() -> int:
    """Ask the driver itself; it honours CUDA_VISIBLE_DEVICES."""
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
