"""What goes to a model at once: items of like length together, halved where memory runs out."""

from __future__ import annotations

__all__ = ["Batches", "Begin", "Items", "eager", "explained", "halved"]

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from pytest_lmgate.arrays import Ints
from pytest_lmgate.backends.base import Batching, Company, OutOfMemory
from pytest_lmgate.backends.raised import raised
from pytest_lmgate.errors import EngineError, LmgateError

# Begins to run some items, and returns what waits for their results.
Begin = Callable[[Sequence[int]], Callable[[], Sequence[Any]]]


class Items(Protocol):
    """The requests or prompts to run, by number; see `data.requests.requests.Requests`."""

    @property
    def lengths(self) -> Ints:
        """Tokens of each."""

    @property
    def order(self) -> Ints:
        """Those to run, the longest first."""

    @property
    def reads(self) -> Ints:
        """Equal numbers for items that read the same, which follow each other in `order`."""

    @property
    def may_pad(self) -> bool:
        """Whether items of different lengths may go together."""

    @property
    def describe(self) -> Callable[[Sequence[int]], str]:
        """Says in words what some items are."""


class Batches:
    """Items of like length together, as many as the budget of tokens holds, which may shrink on the way."""

    def __init__(self, items: Items, batching: Batching, batch_size: int | str) -> None:
        self._items, self._company, self._reads_once = items, batching.company, batching.reads_once
        self._most = batch_size if isinstance(batch_size, int) else None
        # Items that the user counts are run however long they are.
        self._budget = batching.tokens if self._most is None else self._most * max(1, int(items.lengths.max()))

    def shrink(self, batch: Sequence[int], count: int) -> None:
        """Learn that of these items only so many fit."""
        rows = len(np.unique(self._reads(batch[:count])))
        self._budget = max(1, min(self._budget, rows * int(self._items.lengths[list(batch)].max())))

    def __iter__(self) -> Iterator[list[int]]:
        lengths, order = self._items.lengths, self._items.order
        # The longest first, so that a batch that does not fit is met early. Models that count by the length of what
        # they read keep the longest so far in mind: theirs come last.
        if self._company is not Company.ANY:
            order = order[::-1]
        begin, reads = 0, self._reads(order)
        rows = np.cumsum(np.diff(reads, prepend=reads[:1]) != 0)
        while begin < len(order):
            size = min(self._most or self._budget, max(1, self._budget // max(1, int(lengths[order[begin]]))))
            end = np.searchsorted(rows, rows[begin] + (1 if self._company is Company.ALONE else size))
            batch = order[begin:end]
            if self._company is Company.EQUAL or not self._items.may_pad:
                batch = batch[lengths[batch] == lengths[batch[0]]]
            begin += len(batch)
            yield batch.tolist()

    def _reads(self, some: Sequence[int] | Ints) -> Ints:
        """Equal numbers for items that count as one."""
        items = np.asarray(some, dtype=np.int64)
        return self._items.reads[items] if self._reads_once else items


def eager(run: Callable[[Sequence[int]], Sequence[Any]]) -> Begin:
    """Return what runs some items at once, so that nothing is left to wait for."""

    def begin(some: Sequence[int]) -> Callable[[], Sequence[Any]]:
        found = run(some)
        return lambda: found

    return begin


def halved(
    batch: Sequence[int], begin: Begin, items: Items, batches: Batches, model: str
) -> Callable[[], Sequence[Any]]:
    """Begin a batch; where memory runs out, in parts half as long, and once halved, the parts stay so."""
    begun: list[tuple[Sequence[int], Callable[[], Sequence[Any]]]] = []
    done, size = 0, len(batch)
    while done < len(batch):
        part = batch[done : done + size]
        with explained(model, functools.partial(items.describe, part)):
            try:
                begun.append((part, begin(part)))
            except OutOfMemory:
                if len(part) == 1:
                    raise
                size = len(part) // 2
                batches.shrink(batch, size)
                continue
        done += len(part)

    def wait() -> list[Any]:
        results: list[Any] = []
        for part, wait_for in begun:
            with explained(model, functools.partial(items.describe, part)):
                found = wait_for()
            if len(found) != len(part):
                raise EngineError(
                    f"model {model!r}: expected a result for each of {len(part)} requests, got {len(found)}"
                )
            results += found
        return results

    return wait


@contextlib.contextmanager
def explained(model: str, what: Callable[[], str], *, halves: bool = False) -> Iterator[None]:
    """Turn whatever a model raises into an error that names the model and its input.

    Args:
        model: Name of the model.
        what: Describes the input, as in ``a window of 512 tokens``.
        halves: Let `OutOfMemory` through, for a caller that tries again with less.

    Raises:
        EngineError: The model failed, or ran out of memory.
    """
    try:
        yield
    except LmgateError:
        raise
    except OutOfMemory as error:
        if halves:
            raise
        details = f" ({error.details})" if error.details else ""
        raise EngineError(
            f"model {model!r}: out of memory with {what()} alone on {error.where}; use shorter inputs (max_length), "
            f"dtype: bfloat16, or a device with more memory{details}"
        ) from error
    except Exception as error:
        raise EngineError(
            f"model {model!r}: running {what()} failed: {raised(error)}; an input beyond the model's "
            "context fails like this"
        ) from error
