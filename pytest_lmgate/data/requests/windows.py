"""Which tokens each window reads and scores: pure planning, no model and no text.

A window is ``(begin, end, first)`` in the token stream of one document: the model reads ``t[begin:end]``, after a
prefix token where `prefix` is set, and the targets ``t[first:end]`` are scored. The last token is only a target, so it
need not be fed. Which windows a protocol has is in `pytest_lmgate.data.protocols`.
"""

from __future__ import annotations

__all__ = ["WindowPlan", "plan_windows", "window_requests"]

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Ints
from pytest_lmgate.data.protocols.base import NO_WINDOWS
from pytest_lmgate.data.protocols.windowing import Windowing
from pytest_lmgate.data.requests.requests import Request, Requests
from pytest_lmgate.data.tokenization.tokens import Streams


@dataclass(frozen=True)
class WindowPlan:
    """Windows in the order of the text; every array has the shape ``[windows]``.

    Attributes:
        document: Index of the stream that the window reads.
        begin: First token read.
        end: One past the last token scored.
        first: First token scored.
        prefix: Whether a prefix token (BOS) is read before `begin`.
        reads_last: Whether the protocol's own program reads the last target too; see `Request.follows`.
    """

    document: Ints
    begin: Ints
    end: Ints
    first: Ints
    prefix: NDArray[np.bool_]
    reads_last: bool = False

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def targets(self) -> Ints:
        """Targets scored in each window."""
        return self.end - self.first

    @property
    def reads(self) -> Ints:
        """Tokens fed in each window: prefix included, the last target not."""
        return self.end - 1 - self.begin + self.prefix


def plan_windows(windowing: Windowing, lengths: Sequence[int], *, adds_bos: bool = True) -> WindowPlan:
    """Plan the windows of each document.

    Args:
        windowing: Protocol with its numbers.
        lengths: Tokens in each document's stream.
        adds_bos: Whether the tokenizer adds a BOS. For some protocols the stream then starts with one, which is not
            part of `lengths`.

    Returns:
        The windows that score at least one target, in the order of the text.
    """
    parts = [windowing.convention.windows(int(length), windowing, adds_bos) for length in lengths]
    document = np.repeat(np.arange(len(parts), dtype=np.int64), [len(part.begin) for part in parts])
    begin, end, first, prefix = (np.concatenate([part[i] for part in parts] or [NO_WINDOWS]) for i in range(4))
    kept = end > first
    reads_last = windowing.convention.reads_last
    return WindowPlan(document[kept], begin[kept], end[kept], first[kept], prefix[kept].astype(bool), reads_last)


def window_requests(streams: Streams, plan: WindowPlan, dataset: str) -> Requests:
    """Return the requests of planned windows.

    Args:
        streams: Token streams that the plan refers to.
        plan: Windows.
        dataset: Name of the dataset, for messages.
    """
    lengths, counts = plan.reads, plan.targets

    def within(window: int, begin: int, end: int) -> Ints:
        ids: Ints = streams.ids[plan.document[window]][begin:end]
        return ids.astype(np.int64, copy=False)

    def read(window: int) -> Ints:
        ids = within(window, plan.begin[window], plan.end[window] - 1)
        return np.concatenate([[streams.prefix], ids]).astype(np.int64) if plan.prefix[window] else ids

    def targets(window: int) -> Ints:
        return within(window, plan.first[window], plan.end[window])

    def make(window: int) -> Request:
        # The last target needs no state of its own, and the state at a position predicts the next token.
        at = np.arange(lengths[window] - counts[window], lengths[window])
        scored = targets(window)
        return Request(read(window), at, scored, follows=int(scored[-1]) if plan.reads_last else None)

    def key(window: int) -> tuple[Hashable, Hashable]:
        return _digest(read(window)), _digest(targets(window))

    return Requests(
        lengths=lengths,
        counts=counts,
        highest=max([streams.prefix or 0, *(int(ids.max()) for ids in streams.ids if len(ids))]),
        make=make,
        key=key,
        describe=lambda some: f"a window of {lengths[list(some)].max():,} tokens",
        where=lambda window, target: (
            f"token {int(plan.first[window]) + target:,} in document {plan.document[window]} of {dataset!r}"
        ),
    )


def _digest(ids: Ints) -> bytes:
    return hashlib.blake2b(ids.tobytes(), digest_size=16).digest()
