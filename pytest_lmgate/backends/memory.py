"""Free memory of a device."""

from __future__ import annotations

__all__ = ["available_bytes"]

import os
import sys


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
