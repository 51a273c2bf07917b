"""What the tools use of other packages that these keep private: a module's own tables, and ggml's table of types.

Tried with torch 2.13, and with llama-cpp-python 0.3.36, whose ``ggml_type_traits`` is in ggml.h.
"""

from __future__ import annotations

import copy
import ctypes

import numpy as np
from numpy.typing import NDArray
from torch import nn


def shallow_copy(module: nn.Module) -> nn.Module:
    """Copy a module that shares its tensors and submodules, and may get other submodules and hooks of its own."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    other._forward_pre_hooks = copy.copy(module._forward_pre_hooks)
    other._forward_pre_hooks_with_kwargs = copy.copy(module._forward_pre_hooks_with_kwargs)
    return other


class _Traits(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


def dequantized(stored: NDArray[np.uint8], kind: int, count: int) -> NDArray[np.float32]:
    """Return so many numbers that are stored as a ggml_type."""
    numbers = np.empty(count, np.float32)
    if kind == 0:
        numbers[:] = stored[: 4 * count].view(np.float32)
        return numbers
    from llama_cpp._ggml import libggml

    find = libggml.ggml_get_type_traits
    find.restype, find.argtypes = ctypes.POINTER(_Traits), [ctypes.c_int]
    traits = find(kind).contents
    if not traits.to_float or count % traits.block or stored.nbytes < count // traits.block * traits.size:
        raise ValueError(f"expected {count:,} numbers of a type that ggml can read, got {traits.name!r}")
    traits.to_float(np.ascontiguousarray(stored).ctypes.data, numbers.ctypes.data, count)
    return numbers
