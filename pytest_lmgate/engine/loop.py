"""The one loop over what a model is asked: sorted, batched, halved where memory runs out, reported, kept and resumed.

What a batch holds depends on the requests, the model and the device alone, also where an interrupted run goes on, so
that the rounding of half precision is the same each time. A batch is halved only where memory does not suffice.
"""

from __future__ import annotations

__all__ = ["SAVE_SECONDS", "Job", "Progress", "prepared", "run_batches"]

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from pytest_lmgate.backends.base import Batching
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.engine.batches import Batches, Begin, Items, explained, halved
from pytest_lmgate.errors import EngineError, UnreliableError

_Begun = tuple[Sequence[int], Callable[[], Sequence[Any]]]
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
        tokens: Tokens of the requests scored in this run, or generated; what several requests read counts for each.
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


class Board(Protocol):
    """Results as they come in.

    Attributes:
        done: Targets or texts so far.
        of: Targets or texts of the whole measurement.
        tokens: As in `Progress`.
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


def run_batches(items: Items, begin: Begin, board: Board, batching: Batching, job: Job) -> bool:
    """Run all items that the board does not have yet.

    Args:
        items: What to run.
        begin: Begins to run some items, and returns what waits for their results.
        board: Takes the results.
        batching: How the runner wants its requests.
        job: The measurement.

    Returns:
        Whether all items were run; False where `Job.stop_when` ended the measurement.

    Raises:
        EngineError: Memory does not suffice for a single item, or the model failed; what was measured is kept.
        LmgateError: Whatever else `begin` and `board` raise of this package.
    """
    try:
        return _run_batches(items, begin, board, batching, job)
    except (KeyboardInterrupt, EngineError) as error:
        if job.keep is not None and board.done and not isinstance(error, UnreliableError):
            job.keep(board.entry)
            how = "failed" if isinstance(error, EngineError) else "interrupted"
            at = f"{how} at {_percent(board.done, board.of)}"
            job.note(f"{job.model} on {job.dataset}: {at}; this part is kept, and the next run goes on from there")
        raise


def _run_batches(items: Items, begin: Begin, board: Board, batching: Batching, job: Job) -> bool:
    resumed, started = board.done, time.monotonic()
    saved, keep = started, job.keep or (lambda _: None)
    batches = Batches(items, batching, job.batch_size)
    waiting = (todo for batch in batches if (todo := [item for item in batch if not board.is_done(item)]))
    for these, results in _as_they_come(waiting, lambda some: halved(some, begin, items, batches, job.model), batching):
        board.put(these, results)
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


def _as_they_come(
    batches: Iterable[Sequence[int]], begin: Begin, batching: Batching
) -> Iterator[tuple[Sequence[int], Sequence[Any]]]:
    """Yield batches with their results: one after the other, or several at once in threads and in any order."""
    if batching.at_once == 1:
        begun = ((batch, begin(batch)) for batch in batches)
        yield from ((batch, wait()) for batch, wait in (_one_ahead(begun) if batching.is_ahead else begun))
        return
    waiting = iter(batches)
    pool = ThreadPoolExecutor(batching.at_once)
    try:
        running: dict[Future[Sequence[Any]], Sequence[int]] = {}
        while True:
            for batch in itertools.islice(waiting, batching.at_once - len(running)):
                running[pool.submit(lambda some: begin(some)(), batch)] = batch
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _one_ahead(begun: Iterator[_Begun]) -> Iterator[_Begun]:
    """Yield each batch once the next has begun, so that a device works on that one while this one is waited for."""
    before = next(begun, None)
    while before is not None:
        after = next(begun, None)
        yield before
        before = after


def _percent(done: int, of: int) -> str:
    """A share in whole percent, rounded down: 100 % is all of it."""
    return f"{100 * done // of} %"


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
