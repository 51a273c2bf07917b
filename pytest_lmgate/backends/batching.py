"""What may go to a model at once: which requests share a batch, how many tokens, and an error for too many."""

from __future__ import annotations

__all__ = ["Batching", "Company", "OutOfMemory"]

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class OutOfMemory(Exception):
    """Raised by a runner where the device `where` has no memory for a batch, which is then halved; see `details`."""

    def __init__(self, where: str, details: str = "") -> None:
        super().__init__(where, details)
        self.where, self.details = where, details


class Company(enum.Enum):
    """Which requests may share a batch with a request without changing its numbers."""

    ANY = "rows of any length"
    EQUAL = "rows of its own length"
    ALONE = "no other row"

    @classmethod
    def strictest(cls, companies: Iterable[Company]) -> Company:
        """Return the company that suits all of several models."""
        return max(companies, key=list(cls).index)


@dataclass(frozen=True)
class Batching:
    """How a runner wants its requests.

    Attributes:
        tokens: Tokens that a batch may hold, padding included.
        company: Which requests may share a batch.
        remark: A sentence about that for the session's summary; empty for none.
        is_double: Whether the model computes in float64; then its numbers are kept in float64 too.
        at_once: Batches that it takes at the same time, each from a thread of its own.
        is_ahead: Whether a batch is begun before the results of the one before are waited for; see `Runner.begin`.
        reads_once: Whether requests that read the same may come joined to one, whose targets then share positions.
    """

    tokens: int = 16384
    company: Company = Company.ANY
    remark: str = ""
    is_double: bool = False
    at_once: int = 1
    is_ahead: bool = False
    reads_once: bool = False
