"""``sliding``: overlapping windows over one text, as in Hugging Face's "Perplexity of fixed-length models"."""

from __future__ import annotations

__all__ = ["SLIDING"]

from pytest_lmgate.data.protocols.base import Convention
from pytest_lmgate.data.protocols.disjoint import DISJOINT

SLIDING = Convention(name="sliding", has_stride=True, without_overlap=DISJOINT.name, averages=("token", "window"))
