"""``disjoint``: windows that do not overlap; "chunked" in Hugging Face's "Perplexity of fixed-length models"."""

from __future__ import annotations

__all__ = ["DISJOINT"]

from pytest_lmgate.data.protocols.base import Convention

DISJOINT = Convention(name="disjoint", averages=("token", "window"))
