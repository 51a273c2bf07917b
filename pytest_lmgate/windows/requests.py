"""What a model is asked to score: one request for each window, choice, masked copy or pair, made when it is needed."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.windows.protocols import WindowPlan
from pytest_lmgate.windows.tokens import Streams


@dataclass(frozen=True)
class Request:
    """What a model reads at once, and the targets that are scored there."""

    # Token ids that the model reads, shape ``[tokens]``. If there is a source, they are the text that the decoder has
    # to write; the engine puts the token that its decoder begins with before them.
    ids: Ints
    # Position in `ids` whose state predicts each target, shape ``[targets]``. If there is a source, the state there is
    # the one after the source and the ids before that position.
    at: Ints
    targets: Ints  # token ids, shape ``[targets]``
    source: Ints | None = None  # what an encoder reads, shape ``[source tokens]``; None without an encoder
    # The last target, where the protocol's own program reads it too. It changes a number only in models whose tokens
    # share a scale, as those with int8 activations.
    follows: int | None = None
    greedy: bool = False  # whether to tell of each target, too, if it is the most likely token


def by_request(values: Floats, requests: Sequence[Request]) -> list[Floats]:
    """Split the values of all targets, shape ``[targets, ...]``, into those of each request."""
    return np.split(values, np.cumsum([len(each.targets) for each in requests])[:-1])


@dataclass(frozen=True, kw_only=True)
class Requests:
    """The requests of one measurement, in its order."""

    lengths: Ints  # tokens that each request reads, its source included, shape ``[requests]``
    counts: Ints  # targets of each request, shape ``[requests]``
    highest: int  # the highest token id of all
    make: Callable[[int], Request]  # makes the request of a number
    # Identifies what a request reads, and what is scored there. Equal requests are scored once; an engine may read once
    # what several read.
    key: Callable[[int], tuple[Hashable, Hashable]]
    describe: Callable[[Sequence[int]], str]  # says in words what some requests are, as in ``a window of 512 tokens``
    # says where a target is, given its request and its number there, as in ``token 7 in document 3 of 'd'``
    where: Callable[[int, int], str]
    may_pad: bool = True  # whether requests of different lengths may go together
    greedy: bool = False  # whether the requests are `Request.greedy`
    has_all: bool = True  # whether each request can be made, rather than a few of them

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def repeats(self) -> dict[int, list[int]]:
        """See `repeats`."""
        return self._alike[0]

    @property
    def reads(self) -> Ints:
        """Equal numbers for requests that read the same, shape ``[requests]``."""
        return self._alike[1]

    @functools.cached_property
    def order(self) -> Ints:
        """The first of each set of equal requests, the longest first; those that read the same follow each other."""
        distinct = np.array(list(self.repeats), dtype=np.int64)
        return distinct[np.lexsort((self.reads[distinct], -self.lengths[distinct]))]

    @property
    def tokens(self) -> int:
        """Tokens that are read in all, of equal requests once."""
        return int(self.lengths[self.order].sum())

    @functools.cached_property
    def offsets(self) -> Ints:
        """Where each request's targets begin among all, and where the last ones end, shape ``[requests + 1]``."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    @functools.cached_property
    def _alike(self) -> tuple[dict[int, list[int]], Ints]:
        keys, first = list(map(self.key, range(len(self)))), dict[Hashable, int]()
        reads = [first.setdefault(read, request) for request, (read, _) in enumerate(keys)]
        return repeats(keys), np.array(reads, dtype=np.int64)


def repeats(requests: Iterable[Hashable]) -> dict[int, list[int]]:
    """Return the number of the first of each set of equal requests, with the numbers of all of the set, in order.

    Equal requests are scored once. Otherwise the rounding of their batches could give them different numbers, and
    decide between equal choices.
    """
    first: dict[Hashable, int] = {}
    found: dict[int, list[int]] = {}
    for number, request in enumerate(requests):
        found.setdefault(first.setdefault(request, number), []).append(number)
    return found


def read_once(requests: Sequence[Request]) -> tuple[list[Request], Callable[[Sequence[Floats]], list[Floats]]]:
    """Join requests that read the same tokens, such as a question whose choices are the letters A to D.

    Return the joined requests, each with the targets of all that it stands for, and what turns their NLLs into those of
    the requests given. Requests with a source stay as they are.
    """
    equal = repeats(each.ids.tobytes() if each.source is None else number for number, each in enumerate(requests))
    same = [[requests[number] for number in numbers] for numbers in equal.values()]

    def parted(nll: Sequence[Floats]) -> list[Floats]:
        found: list[Floats] = [np.empty(0)] * len(requests)
        for numbers, several, together in zip(equal.values(), same, nll, strict=True):
            for number, part in zip(numbers, by_request(together, several), strict=True):
                found[number] = part
        return found

    return [_joined(several) for several in same], parted


def _joined(same: Sequence[Request]) -> Request:
    if len(same) == 1:
        return same[0]
    return replace(
        same[0],
        at=np.concatenate([each.at for each in same]),
        targets=np.concatenate([each.targets for each in same]),
    )


def window_requests(streams: Streams, plan: WindowPlan, dataset: str, *, greedy: bool = False) -> Requests:
    """Return the requests of planned windows of `streams`."""
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
        return Request(read(window), at, scored, follows=int(scored[-1]) if plan.reads_last else None, greedy=greedy)

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
        greedy=greedy,
    )


def _digest(ids: Ints) -> bytes:
    return hashlib.blake2b(ids.tobytes(), digest_size=16).digest()


def row_targets(plan: WindowPlan, rows: Ints | None) -> Ints | None:
    """Return how many targets each row has, in the order of the plan, shape ``[rows]``; None where rows are unknown.

    The plan is of a single stream, and each window's targets are behind those of the window before. The row of each of
    the stream's tokens is in `rows`, shape ``[tokens]``, which do not decrease.
    """
    if rows is None:
        return None
    # The type of `rows`, which would else be copied.
    begins = np.searchsorted(rows, np.arange(int(rows[-1]) + 2, dtype=rows.dtype))
    # The targets before each row's first token: those of all windows that end there, and some of the next one's.
    window = np.minimum(np.searchsorted(plan.end, begins, side="right"), len(plan) - 1)
    whole = np.cumsum(plan.targets) - plan.targets
    before = whole[window] + np.clip(begins - plan.first[window], 0, plan.targets[window])
    counts: Ints = np.trim_zeros(np.diff(before), "b")
    return counts
