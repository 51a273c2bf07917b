"""Counts of things, and of bytes, as people read them."""

from __future__ import annotations

__all__ = ["byte_size", "counted"]


def counted(count: int, what: str) -> str:
    """Return ``1 entry`` or ``2 entries``."""
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"


def byte_size(number: float) -> str:
    """Return a number of bytes as in ``1.2 MB``; M is a million."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
