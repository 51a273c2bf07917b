"""`Windowing`: a protocol with every number filled in, which is all of it that a measurement's address holds."""

from __future__ import annotations

__all__ = ["Windowing"]

from dataclasses import dataclass

from pytest_lmgate.config.signature import Signature
from pytest_lmgate.data.protocols.base import Convention
from pytest_lmgate.data.protocols.table import PROTOCOLS


@dataclass(frozen=True)
class Windowing:
    """A protocol with its numbers.

    Attributes:
        protocol: Name; ``disjoint`` is ``sliding`` with stride equal to `max_length`, and is called so.
        max_length: L, tokens a window reads at most.
        stride: S, tokens between two windows' beginnings; equal to L where the protocol has no stride.
        add_bos_token: Where the protocol has the option: which special tokens a text gets; None is the tokenizer's
            own default.
    """

    protocol: str
    max_length: int
    stride: int
    add_bos_token: bool | None = False

    @property
    def convention(self) -> Convention:
        """What the protocol's name stands for."""
        return PROTOCOLS[self.protocol]

    @property
    def by_document(self) -> bool:
        """Whether each row is read on its own."""
        return self.convention.by_document

    @property
    def average(self) -> str:
        """The average the protocol's own figure is taken with."""
        return self.convention.averages[0]

    @property
    def signature(self) -> Signature:
        """The windows in one line, ``protocol:sliding|max_length:512|stride:256``."""
        found = Signature([("protocol", self.protocol), ("max_length", str(self.max_length))])
        if self.convention.has_stride:
            found = found.plus(("stride", str(self.stride)))
        if self.convention.has_add_bos_token:
            found = found.plus(("add_bos_token", str(self.add_bos_token).lower()))
        return found
