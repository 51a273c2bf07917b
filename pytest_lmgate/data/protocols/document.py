"""``document``: each row on its own, with sliding windows inside it; no row sees another."""

from __future__ import annotations

__all__ = ["DOCUMENT"]

from pytest_lmgate.data.protocols.base import Convention, read_rows

DOCUMENT = Convention(name="document", read=read_rows, has_stride=True, by_document=True, averages=("token", "window"))
