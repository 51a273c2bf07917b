"""The one loop over what a model is asked: sorted, batched, halved where memory runs out, reported, kept and resumed.

What a batch holds depends on the requests, the model and the device alone, also where an interrupted run goes on, so
that the rounding of half precision is the same each time. A batch is halved only where memory does not suffice.
"""

from __future__ import annotations

__all__ = ["SAVE_SECONDS", "Job", "Progress", "explained", "prepared", "run_batches"]

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.backends.base import Batching, Company, OutOfMemory
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.errors import EngineError, LmgateError

Ints = NDArray[np.int64]
# Seconds between two times that partial results are kept.
SAVE_SECONDS = 10.0


@dataclass(frozen=True)
class Progress:
    """How far a measurement is.

    Attributes:
        model: Name of the model.
        dataset: Name of the dataset.
        done: Targets or texts so far, those of an earlier, interrupted run included.
        of: Targets or texts of the whole measurement.
        tokens: Tokens read or generated in this run.
        seconds: Time since this run began.
        so_far: The result so far, in words.
        total: Sum of the results so far.
        resumed: Targets or texts of the earlier run.
    """

    model: str
    dataset: str
    done: int
    of: int
    tokens: int
    seconds: float
    so_far: str = ""
    total: float = 0.0
    resumed: int = 0

    @property
    def line(self) -> str:
        """In words, for people who wait: what is done, speed, time left."""
        speed = self.tokens / self.seconds if self.seconds > 0 else 0.0
        fresh = self.done - self.resumed
        left = round(self.seconds * (self.of - self.done) / fresh) if fresh else 0
        return f"{self.model} on {self.dataset}: {self.so_far}, {speed:,.0f} tokens/s, {timedelta(seconds=left)} left"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One measurement that runs.

    Attributes:
        model: Name of the model, for messages.
        dataset: Name of the dataset, for messages.
        batch_size: Requests per batch, or ``auto`` for as many tokens as the runner takes.
        partial: Results of an interrupted run; None to begin afresh.
        keep: Called with partial results now and then; None where nothing is kept.
        report: Called after each batch.
        note: Called with a sentence that is worth saying at once.
        remark: Called with a sentence for the session's summary.
        stop_when: Called after each batch with the sum so far; the measurement ends where it returns True.
    """

    model: str
    dataset: str
    batch_size: int | str = "auto"
    partial: Entry | None = None
    keep: Callable[[Entry], None] | None = None
    report: Callable[[Progress], None] = field(default=lambda _: None)
    note: Callable[[str], None] = field(default=lambda _: None)
    remark: Callable[[str], None] = field(default=lambda _: None)
    stop_when: Callable[[float], bool] = field(default=lambda _: False)

    def say_resumed(self, done: int, of: int) -> None:
        """Say that a measurement goes on where an earlier run was interrupted, if it does."""
        if self.partial is not None and done:
            self.note(f"{self.model} on {self.dataset}: resumed at {_percent(done, of)}")


class Items(Protocol):
    """The requests or prompts to run, by number; see `data.requests.Requests`."""

    @property
    def lengths(self) -> Ints: ...
    @property
    def order(self) -> Ints: ...
    @property
    def may_pad(self) -> bool: ...
    @property
    def describe(self) -> Callable[[Sequence[int]], str]: ...


class Board(Protocol):
    """Results as they come in.

    Attributes:
        done: Targets or texts so far.
        of: Targets or texts of the whole measurement.
        tokens: Tokens read or generated.
        total: The sum so far, for `Job.stop_when`.
        so_far: The result so far, in words.
        entry: What is kept of an unfinished measurement.
    """

    of: int
    tokens: int

    @property
    def done(self) -> int: ...
    @property
    def total(self) -> float: ...
    @property
    def so_far(self) -> str: ...
    @property
    def entry(self) -> Entry: ...

    def is_done(self, item: int) -> bool:
        """Return whether an item need not be run."""

    def put(self, items: Sequence[int], results: Sequence[Any]) -> None:
        """Take the results of some items, or raise NonFiniteError where one is NaN or infinite."""


def run_batches(
    items: Items, run: Callable[[Sequence[int]], Sequence[Any]], board: Board, batching: Batching, job: Job
) -> bool:
    """Run all items that the board does not have yet.

    Args:
        items: What to run.
        run: Returns the results of some items.
        board: Takes the results.
        batching: How the runner wants its requests.
        job: The measurement.

    Returns:
        Whether all items were run; False where `Job.stop_when` ended the measurement.

    Raises:
        EngineError: Memory does not suffice for a single item, or the model failed.
        LmgateError: Whatever else `run` and `board` raise of this package.
    """
    try:
        return _run_batches(items, run, board, batching, job)
    except KeyboardInterrupt:
        if job.keep is not None and board.done:
            job.keep(board.entry)
            at = f"interrupted at {_percent(board.done, board.of)}, which is kept"
            job.note(f"{job.model} on {job.dataset}: {at}; the next run goes on from there")
        raise


def _run_batches(
    items: Items, run: Callable[[Sequence[int]], Sequence[Any]], board: Board, batching: Batching, job: Job
) -> bool:
    resumed, started = board.done, time.monotonic()
    saved, keep = started, job.keep or (lambda _: None)
    batches = _Batches(items, batching, job.batch_size)
    for batch in batches:
        todo = [item for item in batch if not board.is_done(item)]
        if not todo:
            continue
        board.put(todo, _halved(todo, run, items, batches, job.model))
        done, of, now = board.done, board.of, time.monotonic()
        seconds, so_far = now - started, board.so_far
        job.report(Progress(job.model, job.dataset, done, of, board.tokens, seconds, so_far, board.total, resumed))
        if done == of:
            continue
        if job.stop_when(board.total):
            keep(board.entry)
            return False
        if now - saved >= SAVE_SECONDS:
            keep(board.entry)
            saved = now
    return True


def _percent(done: int, of: int) -> str:
    """A share in whole percent, rounded down: 100 % is all of it."""
    return f"{100 * done // of} %"


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
            f"model {model!r}: running {what()} failed: {type(error).__name__}: {error}; an input beyond the model's "
            "context fails like this"
        ) from error


def prepared(model: str, items: Items, prepare: Callable[[], Batching], job: Job) -> Batching:
    """Return how a runner wants its requests, which it tries out on the longest, and pass its remark on.

    Raises:
        EngineError: The model failed, or ran out of memory.
    """
    with explained(model, lambda: items.describe(items.order[:1].tolist())):
        batching = prepare()
    if batching.remark:
        job.remark(batching.remark)
    return batching


class _Batches:
    """Items of like length together, as many as the budget of tokens holds, which may shrink on the way."""

    def __init__(self, items: Items, batching: Batching, batch_size: int | str) -> None:
        self._items, self._company = items, batching.company
        self._most = batch_size if isinstance(batch_size, int) else None
        # Items that the user counts are run however long they are.
        self._budget = batching.tokens if self._most is None else self._most * max(1, int(items.lengths.max()))

    def shrink(self, batch: Sequence[int], count: int) -> None:
        """Learn that of these items only so many fit."""
        self._budget = max(1, min(self._budget, count * int(self._items.lengths[list(batch)].max())))

    def __iter__(self) -> Iterator[list[int]]:
        lengths, order = self._items.lengths, self._items.order
        # The longest first, so that a batch that does not fit is met early. Models that count by the length of what
        # they read keep the longest so far in mind: theirs come last.
        if self._company is not Company.ANY:
            order = order[::-1]
        begin = 0
        while begin < len(order):
            size = min(self._most or self._budget, max(1, self._budget // max(1, int(lengths[order[begin]]))))
            batch = order[begin : begin + (1 if self._company is Company.ALONE else size)]
            if self._company is Company.EQUAL or not self._items.may_pad:
                batch = batch[lengths[batch] == lengths[batch[0]]]
            begin += len(batch)
            yield batch.tolist()


def _halved(
    batch: Sequence[int], run: Callable[[Sequence[int]], Sequence[Any]], items: Items, batches: _Batches, model: str
) -> list[Any]:
    """Run a batch; where memory runs out, in parts half as long, and once halved, the parts stay so."""
    results: list[Any] = []
    size = len(batch)
    while len(results) < len(batch):
        part = batch[len(results) : len(results) + size]
        with explained(model, functools.partial(items.describe, part)):
            try:
                found = run(part)
            except OutOfMemory:
                if len(part) == 1:
                    raise
                size = len(part) // 2
                batches.shrink(batch, size)
                continue
            if len(found) != len(part):
                raise EngineError(
                    f"model {model!r}: expected a result for each of {len(part)} requests, got {len(found)}"
                )
            results += found
    return results
