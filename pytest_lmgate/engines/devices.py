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
from collections.abc import Iterator, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

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


class Card(NamedTuple):
    """A GPU."""

    name: str  # as in ``NVIDIA H200``
    capability: str  # compute capability, as in ``9.0``; of AMD's the architecture, as in ``gfx942``

    def __str__(self) -> str:
        return f"{self.name}, {self.capability}"


Alike = Literal["equal"] | Sequence[str]
"""The names of cards that count as one, or all cards. A machine without a card looks for the numbers of these."""
_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG")
# Settings of torch's products that code of the session may change, and their defaults; older torch has the second kind.
_SETTINGS = {
    "cuda.matmul.fp32_precision": ("none", "ieee"),
    "mkldnn.matmul.fp32_precision": ("none", "ieee"),
    "cudnn.conv.fp32_precision": ("tf32", "none"),
    "cuda.matmul.allow_fp16_reduced_precision_reduction": (True,),
    "cuda.matmul.allow_bf16_reduced_precision_reduction": (True,),
}
_OLD_SETTINGS = {"cuda.matmul.allow_tf32": (False,), "cudnn.allow_tf32": (True,)}


def device_ingredients(device: str, alike: Alike = ()) -> dict[str, str]:
    """Return what of a device, besides its class, can change a number, as ingredients of an address.

    Of a GPU: the card, the version of CUDA or ROCm that torch was built for, variables that choose kernels. Where no
    index is given, as in ``cuda``, the cards are those that are visible. Of any device: settings of torch's products
    that are not its defaults. Processors are not told apart: float32 moves by 1e-7 between them.
    """
    ingredients = _settings()
    if device_class(device) != "cuda":
        return ingredients
    names = sorted({_name_of(card, alike) for card in cards_of(device) or (Card("", ""),)})
    ingredients |= {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    return ingredients | {"card": "; ".join(names), "built for": " ".join(_torch_build())}


def cards_of(device: str) -> tuple[Card, ...]:
    """Return the card of a device such as ``cuda:1``; for ``cuda`` all that are visible."""
    number = device.partition(":")[2]
    return cards()[int(number) : int(number) + 1] if number else cards()


def device_label(device: str, hardware: str, alike: Alike = ()) -> str:
    """Return what numbers that may be compared with a committed one have in common: a GPU's name, else the class."""
    if device_class(device) != "cuda" or alike == "equal":
        return device_class(device)
    return " or ".join(sorted(alike)) if alike and hardware in (*alike, "") else hardware or "cuda"


def hardware_of(device: str) -> str:
    """Return the names of a device's cards or of this machine's processor, for reports."""
    if device_class(device) == "cuda":
        return ", ".join(sorted({card.name for card in cards_of(device)}))
    return processor() if device in ("cpu", "") else ""


@cache
def processor() -> str:
    """Return the processor's model, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _name_of(card: Card, alike: Alike) -> str:
    if alike == "equal":
        return "any"
    return f"one of {', '.join(sorted(alike))}" if alike and card.name in (*alike, "") else str(card)


def _settings() -> dict[str, str]:
    """Return settings of torch's products that are not its defaults; torch that is not loaded has its defaults."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "backends"):
        return {}
    is_old = not hasattr(torch.backends.cuda.matmul, "fp32_precision")
    values = {}
    for name, defaults in (_SETTINGS | _OLD_SETTINGS if is_old else _SETTINGS).items():
        with contextlib.suppress(AttributeError):  # torch of another age
            value = reduce(getattr, name.split("."), torch.backends)
            if value not in defaults:
                values[f"torch.backends.{name}"] = str(value)
    return values


@cache
def _torch_build() -> tuple[str, ...]:
    """Return what torch was built for, by its version file: ``cuda`` or ``hip`` (AMD's GPUs) and its version."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ()
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ("cuda",)  # an unusual build: let the driver decide
    built = re.search(r"^(cuda|hip)\b[^=]*=\s*['\"]([^'\"]*)", text, flags=re.MULTILINE)
    return () if built is None else built.groups()


def cuda_devices() -> int:
    """Return the number of GPUs that CUDA_VISIBLE_DEVICES, or HIP's own variables, leave."""
    return len(cards())


@cache
def cards() -> tuple[Card, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES, or HIP's own variables, leave: by the driver itself.

    Only torch knows where the library of AMD's driver is, which comes with it.
    """
    if _torch_build()[:1] == ("hip",):
        import torch

        known = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        return tuple(Card(each.name, getattr(each, "gcnArchName", "")) for each in known)
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1", "NoDevFiles"):
        return ()
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
        count = ctypes.c_int(0)
        if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return ()
        return tuple(_card(driver, number) for number in range(count.value))
    except (OSError, AttributeError):
        return ()


def _card(driver: ctypes.CDLL, number: int) -> Card:
    handle, name, value = ctypes.c_int(0), ctypes.create_string_buffer(256), ctypes.c_int(0)
    driver.cuDeviceGet(ctypes.byref(handle), number)
    driver.cuDeviceGetName(name, len(name), handle)
    capability = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and MINOR
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        capability.append(str(value.value))
    return Card(name.value.decode(errors="replace"), ".".join(capability))
