"""Which requests are read as several sequences of one batch: many of one length, where that changes no bit.

A short window does not fill llama.cpp's batch, and its threads wait for each other as often as for a full one. So
windows of the length that most requests have are read several at a time, each with a cache of keys and values of its
own. Whether a row's numbers depend on the rows beside it is up to the kernels that llama.cpp chooses for the weights,
the length and the processor. So the first batch is proven: its first and its last row are read alone too. Unless all
numbers are the same bits, every row is read alone. Fewer rows than the batch that was proven are read alone.
"""

from __future__ import annotations

__all__ = ["Together", "planned"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.data.requests.requests import Request

# Tokens whose keys and values there is room for, as many as llama-perplexity has; a sequence's room is rounded up.
_ROOM, _ROUNDED = 2048, 256
# The proof reads two rows more. Of fewer batches it would take what they save.
_BATCHES = 4


@dataclass
class Together:
    """How rows share a batch.

    Attributes:
        tokens: Tokens of the requests that may share one.
        rows: Rows of a batch; 1 where each is read alone.
        is_proven: Whether the trial has been made.
    """

    tokens: int
    rows: int
    is_proven: bool = False

    def read(
        self,
        requests: Sequence[Request],
        alone: Callable[[Request], Floats],
        together: Callable[[Sequence[Request]], Sequence[Floats]],
    ) -> list[Floats]:
        """Return the numbers of each request; `alone` reads one, and `together` several of one length."""
        found: dict[int, Floats] = {}
        fitting = [number for number, request in enumerate(requests) if self._fits(request)]
        while 1 < self.rows <= len(fitting):
            batch, fitting = fitting[: self.rows], fitting[self.rows :]
            some = dict(zip(batch, together([requests[number] for number in batch]), strict=True))
            if not self.is_proven:
                tried = {number: alone(requests[number]) for number in (batch[0], batch[-1])}
                self.is_proven = True
                if not all(np.array_equal(some[number], tried[number], equal_nan=True) for number in tried):
                    self.rows, some = 1, tried
            found |= some
        return [found[number] if number in found else alone(request) for number, request in enumerate(requests)]

    def budget(self, most: int) -> int:
        """Return as many tokens of at most so many as leave no row over."""
        whole = self.rows * self.tokens
        return most // whole * whole if self.rows > 1 else most

    def _fits(self, request: Request) -> bool:
        # A row is read up to its last target, and the rows of a batch have to be as long as each other.
        return len(request.ids) == self.tokens == int(request.at.max(initial=0)) + 1


def planned(lengths: Ints, batch: int) -> Together:
    """Return which requests may be read together.

    A row of one token is read alone, since llama.cpp multiplies a single one otherwise than several.

    Args:
        lengths: Tokens of each request, shape ``[requests]``.
        batch: Tokens of a batch.
    """
    values, counts = np.unique(lengths[lengths > 1], return_counts=True)
    if not len(values):
        return Together(0, 1)
    tokens, count = int(values[counts.argmax()]), int(counts.max())
    room = -(-int(lengths.max()) // _ROUNDED) * _ROUNDED
    rows = min(batch // tokens, _ROOM // room)
    return Together(tokens, rows if rows > 1 and count >= _BATCHES * rows else 1)
