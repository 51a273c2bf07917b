"""``sliding``, ``disjoint`` and ``document``: the windows of Hugging Face's "Perplexity of fixed-length models".

``sliding`` has overlapping windows over one text; those of ``disjoint`` do not overlap ("chunked" on that page); under
``document`` each row is read on its own, with sliding windows inside it, and no row sees another.
"""

from __future__ import annotations

__all__ = ["DISJOINT", "DOCUMENT", "SLIDING"]

from pytest_lmgate.data.protocols.base import Convention, read_rows

_AVERAGES = ("token", "window")

DISJOINT = Convention(name="disjoint", averages=_AVERAGES)
SLIDING = Convention(name="sliding", has_stride=True, without_overlap=DISJOINT.name, averages=_AVERAGES)
DOCUMENT = Convention(name="document", read=read_rows, has_stride=True, by_document=True, averages=_AVERAGES)
