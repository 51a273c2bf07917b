"""What a model is asked to score: one request for each window, choice, masked copy or pair, made when it is needed."""

from __future__ import annotations

__all__ = ["Request", "Requests", "by_request"]

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.data.requests.repeats import repeats


@dataclass(frozen=True)
class Request:
    """What a model reads at once, and the targets that are scored there.

    Attributes:
        ids: Token ids that the model reads, shape ``[tokens]``. Where there is a source, they are the text that the
            decoder has to write; the engine puts the token that its decoder begins with before them.
        at: Position in `ids` whose state predicts each target, shape ``[targets]``. Where there is a source, the state
            there is the one after the source and the ids before that position.
        targets: Token ids, shape ``[targets]``.
        source: What an encoder reads, shape ``[source tokens]``; None without an encoder.
        follows: The last target, where the protocol's own program reads it too. It changes a number only in models
            whose tokens share a scale, as those with int8 activations.
    """

    ids: Ints
    at: Ints
    targets: Ints
    source: Ints | None = None
    follows: int | None = None


def by_request(values: Floats, requests: Sequence[Request]) -> list[Floats]:
    """Split the values of all targets, shape ``[targets, ...]``, into those of each request."""
    return np.split(values, np.cumsum([len(each.targets) for each in requests])[:-1])


@dataclass(frozen=True, kw_only=True)
class Requests:
    """The requests of one measurement, in its order.

    Attributes:
        lengths: Tokens that each request reads, its source included, shape ``[requests]``.
        counts: Targets of each request, shape ``[requests]``.
        highest: The highest token id of all.
        make: Makes the request of a number.
        key: Identifies what a request reads, and what is scored there. Equal requests are scored once; an engine may
            read once what several read.
        describe: Says in words what some requests are, as in ``a window of 512 tokens``.
        where: Says where a target is, given its request and its number there, as in ``token 7 in document 3 of 'd'``.
        may_pad: Whether requests of different lengths may go together.
    """

    lengths: Ints
    counts: Ints
    highest: int
    make: Callable[[int], Request]
    key: Callable[[int], tuple[Hashable, Hashable]]
    describe: Callable[[Sequence[int]], str]
    where: Callable[[int, int], str]
    may_pad: bool = True

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def repeats(self) -> dict[int, list[int]]:
        """The number of the first of each set of equal requests, with the numbers of all of the set."""
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
        reads, first = np.empty(len(self), dtype=np.int64), dict[Hashable, int]()

        def keys() -> Iterator[Hashable]:
            for request in range(len(self)):
                read, scored = self.key(request)
                reads[request] = first.setdefault(read, request)
                yield read, scored

        return repeats(keys()), reads
