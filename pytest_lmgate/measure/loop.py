"""The one loop over what a model is asked: sorted, batched, halved where memory runs out, reported, kept and resumed.

What a batch holds depends on the requests, the model and the device alone, also where an interrupted run goes on, so
that the rounding of half precision is the same each time. A batch is halved only where memory does not suffice.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.cache.store import StoredResult
from pytest_lmgate.engines.base import Batching, BatchPolicy, OutOfMemory, Runner, checked
from pytest_lmgate.errors import EngineError, NonFiniteError, UnreliableError
from pytest_lmgate.measure.trials import explained, prepared_to_score, require_ids, reread
from pytest_lmgate.windows.requests import Requests, read_once

# Seconds between two times that partial results are kept.
SAVE_SECONDS = 10.0
_LOWEST = -1e-3  # rounding may put the NLL of a certain token below 0
# Begins to run some items, and returns what waits for their results.
Begin = Callable[[Sequence[int]], Callable[[], Sequence[Any]]]
_Items = Sequence[int]
_Begun = tuple[_Items, Callable[[], Sequence[Any]]]  # a batch, and what waits for its results


def about(seconds: float) -> str:
    """Return a time in the unit in which people would tell it: ``45 s``, ``6 min``, ``1.5 h``."""
    if seconds < 90:
        return f"{max(1, math.ceil(seconds))} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Progress:
    """How far a measurement is."""

    model: str
    dataset: str
    done: int  # targets or texts so far, those of an earlier, interrupted run included
    of: int  # targets or texts of the whole measurement
    tokens: int  # tokens of the requests scored in this run, or generated; shared inputs count for each request
    seconds: float  # time since this run began
    so_far: str = ""  # the result so far, in words; `total` is its sum
    total: float = 0.0
    resumed: int = 0  # targets or texts of the earlier run
    search: str = ""  # of one of many measurements: how far all of them are, in words

    @property
    def line(self) -> str:
        """In words, for people who wait: share, speed, time left."""
        if self.search:
            return self.search
        speed = self.tokens / self.seconds if self.seconds > 0 else 0.0
        fresh = self.done - self.resumed
        left = round(self.seconds * (self.of - self.done) / fresh) if fresh else 0
        return f"{self.model} on {self.dataset}: {self.so_far}, {speed:,.0f} tokens/s, {timedelta(seconds=left)} left"


@dataclass(frozen=True)
class Log:
    """Who is told what happens while a session measures."""

    progress: Callable[[Progress], None] = lambda _: None  # called after each batch
    # called with a sentence that is worth saying at once, such as waiting for another process
    note: Callable[[str], None] = lambda _: None
    remark: Callable[[str], None] = lambda _: None  # called with a sentence for the session's summary
    warn: Callable[[str], None] = lambda _: None  # called with a sentence that says what is wrong with the cache


@dataclass(frozen=True, kw_only=True)
class Job:
    """One measurement that runs."""

    model: str
    dataset: str
    metric: str = ""  # for which it is measured; others may use it too
    batch_size: int | str = "auto"  # requests per batch, or ``auto`` for as many tokens as the runner takes
    partial: StoredResult | None = None  # results of an interrupted run, if any
    # called with partial results now and then; None if they are not kept
    keep: Callable[[StoredResult], None] | None = None
    log: Log = Log()
    # called after each batch with the sum so far; the measurement ends if it returns True
    stop_when: Callable[[float], bool] = lambda _: False
    shuffle: int | None = None  # seed of another order of the requests than the longest first; None for that order
    # how many ``tokens`` the latest loop has read or written in how many ``seconds``
    speed: dict[str, float] = field(default_factory=dict)

    def note(self, what: str) -> None:
        self.log.note(f"{self.model} on {self.dataset}: {what}")

    def say_resumed(self, done: int, of: int) -> None:
        """Say that an interrupted measurement resumes, if it does."""
        if self.partial is not None and done:
            self.note(f"resumed at {_percent(done, of)}")


class Items(Protocol):
    """The requests or prompts to run, by number; see `windows.requests.Requests`."""

    @property
    def lengths(self) -> Ints: ...  # tokens of each
    @property
    def order(self) -> Ints: ...  # those to run, the longest first
    @property
    def reads(self) -> Ints: ...  # equal numbers for items with the same input, which are adjacent in `order`
    @property
    def may_pad(self) -> bool: ...  # whether items of different lengths may share a batch
    @property
    def describe(self) -> Callable[[Sequence[int]], str]: ...  # says in words what some items are


class Batches:
    """Batches of items of similar length within a budget of tokens, which may shrink."""

    def __init__(self, items: Items, batching: Batching, batch_size: int | str, shuffle: int | None = None) -> None:
        self._items, self._policy, self._dedup_reads = items, batching.policy, batching.dedup_reads
        self._order, self._longest = batching.order, int(items.lengths.max(initial=1))
        if shuffle is not None and batching.order is None:
            self._order = self._shuffled(np.random.default_rng(shuffle))
        self._most = batch_size if isinstance(batch_size, int) else None
        # Items that the user counts are run however long they are.
        self._budget = batching.tokens if self._most is None else self._most * max(1, int(items.lengths.max()))

    def shrink(self, batch: Sequence[int], count: int) -> None:
        """Note that only so many of these items fit."""
        rows = len(np.unique(self._reads(batch[:count])))
        self._budget = max(1, min(self._budget, rows * int(self._items.lengths[list(batch)].max())))

    def __iter__(self) -> Iterator[list[int]]:
        lengths, order = self._items.lengths, self._items.order if self._order is None else self._order
        # The longest first, so that a batch that does not fit is met early. Models that count by the length of what
        # they read keep the longest so far in mind: theirs come last.
        if self._policy is not BatchPolicy.ANY_LENGTH:
            order = order[::-1]
        begin, reads = 0, self._reads(order)
        rows = np.cumsum(np.diff(reads, prepend=reads[:1]) != 0)
        while begin < len(order):
            longest = int(lengths[order[begin]]) if self._order is None else self._longest
            size = min(self._most or self._budget, max(1, self._budget // max(1, longest)))
            end = np.searchsorted(rows, rows[begin] + (1 if self._policy is BatchPolicy.SINGLE else size))
            batch = order[begin:end]
            if self._policy is BatchPolicy.SAME_LENGTH or not self._items.may_pad:
                batch = batch[lengths[batch] == lengths[batch[0]]]
            begin += len(batch)
            yield batch.tolist()

    def _shuffled(self, generator: np.random.Generator) -> Ints:
        """Return the items in a random order: equal reads stay together, and lengths sorted where batches need it."""
        order = self._items.order
        groups = np.unique(self._items.reads[order], return_inverse=True)[1].reshape(-1)
        ranks = generator.permutation(len(order))[groups]
        free = self._policy is BatchPolicy.ANY_LENGTH and self._items.may_pad
        lengths = np.zeros_like(order) if free else -self._items.lengths[order]
        found: Ints = order[np.lexsort((ranks, lengths))]
        return found

    def _reads(self, some: Sequence[int] | Ints) -> Ints:
        """Equal numbers for items that count as one."""
        items = np.asarray(some, dtype=np.int64)
        return self._items.reads[items] if self._dedup_reads else items


def eager(run: Callable[[Sequence[int]], Sequence[Any]]) -> Begin:
    """Return a function that runs items at once, with nothing left to wait for."""

    def begin(some: Sequence[int]) -> Callable[[], Sequence[Any]]:
        found = run(some)
        return lambda: found

    return begin


def halved(batch: _Items, begin: Begin, items: Items, batches: Batches, model: str) -> _Begun:
    """Begin a batch; if memory runs out, in parts half as long from then on."""
    results: list[Any] = []
    begun: list[_Begun] = []
    done, size = 0, len(batch)

    def finish() -> list[Any]:
        for part, wait_for in begun:
            with explained(model, functools.partial(items.describe, part)):
                found = wait_for()
            if len(found) != len(part):
                raise EngineError(
                    f"model {model!r}: expected a result for each of {len(part)} requests, got {len(found)}"
                )
            results.extend(found)
        begun.clear()
        return results

    while done < len(batch):
        part = batch[done : done + size]
        with explained(model, functools.partial(items.describe, part)):
            try:
                begun.append((part, begin(part)))
            except OutOfMemory:
                if begun:  # parts that hold memory until their results are there
                    finish()
                    continue
                if len(part) == 1:
                    raise
                size = len(part) // 2
                batches.shrink(batch, size)
                continue
        done += len(part)
    return batch, finish


@contextlib.contextmanager
def discarded_if_unreliable(job: Job) -> Iterator[None]:
    """Keep no part of a measurement that an `UnreliableError` ends: nobody knows which of its results are right."""
    try:
        yield
    except UnreliableError:
        if job.keep is not None:
            job.keep(StoredResult({}))
        raise


class ResultSink(Protocol):
    """Takes results as they come in; `of` and `tokens` are those of `Progress`."""

    of: int
    tokens: int

    @property
    def done(self) -> int: ...  # targets or texts so far
    @property
    def total(self) -> float: ...  # the sum so far, for `Job.stop_when`
    @property
    def so_far(self) -> str: ...  # the result so far, in words
    @property
    def entry(self) -> StoredResult: ...  # partial results to keep
    def is_done(self, item: int) -> bool: ...  # whether an item need not be run

    def put(self, items: Sequence[int], results: Sequence[Any]) -> None:
        """Take the results of some items; raise NonFiniteError for NaN or infinity."""


def run_batches(items: Items, begin: Begin, sink: ResultSink, batching: Batching, job: Job) -> bool:
    """Run all items that the sink does not have yet; return False if `Job.stop_when` ended the measurement.

    If the model fails, what was measured is kept.
    """
    resumed, started = sink.done, time.monotonic()
    saved, keep = started, job.keep or (lambda _: None)
    batches = Batches(items, batching, job.batch_size, job.shuffle)
    waiting = (todo for batch in batches if (todo := [item for item in batch if not sink.is_done(item)]))
    begin_batch = functools.partial(halved, begin=begin, items=items, batches=batches, model=job.model)
    begun: Iterator[_Begun] = map(begin_batch, waiting)
    if batching.max_concurrency > 1:
        begun = _in_threads(waiting, begin_batch, batching.max_concurrency)
    elif batching.dispatch_async:  # the next batch is begun before the results of one are waited for
        begun = (one for one, _ in itertools.pairwise(itertools.chain(begun, [None])) if one)
    try:
        for these, wait_for in begun:
            sink.put(these, wait_for())
            done, of, now = sink.done, sink.of, time.monotonic()
            seconds, so_far = now - started, sink.so_far
            job.speed.update(tokens=sink.tokens, seconds=seconds)
            job.log.progress(
                Progress(job.model, job.dataset, done, of, sink.tokens, seconds, so_far, sink.total, resumed)
            )
            if done == of:
                continue
            if job.stop_when(sink.total):
                keep(sink.entry)
                return False
            if now - saved >= SAVE_SECONDS:
                keep(sink.entry)
                saved = now
    except (KeyboardInterrupt, EngineError) as error:
        if job.keep is not None and sink.done and not isinstance(error, UnreliableError):
            job.keep(sink.entry)
            how = "failed" if isinstance(error, EngineError) else "interrupted"
            at = f"{how} at {_percent(sink.done, sink.of)}"
            job.note(f"{at}; this part is kept, and the next run resumes it")
        raise
    return True


def _in_threads(waiting: Iterator[_Items], begin: Callable[[_Items], _Begun], at_once: int) -> Iterator[_Begun]:
    """Yield batches whose results are there, in the order in which these come."""
    pool = ThreadPoolExecutor(at_once)
    try:
        running: dict[Future[Sequence[Any]], _Items] = {}
        while True:
            for batch in itertools.islice(waiting, at_once - len(running)):
                running[pool.submit(lambda some: begin(some)[1](), batch)] = batch
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _percent(done: int, of: int) -> str:
    """A share in whole percent, rounded down: 100% is complete."""
    return f"{100 * done // of}%"


def prepared(model: str, items: Items, prepare: Callable[[], Batching], job: Job) -> Batching:
    """Have a runner test its batching on the longest items, and pass its remark on."""
    with explained(model, lambda: items.describe(items.order[:1].tolist())):
        batching = prepare()
    if batching.remark:
        job.log.remark(batching.remark)
    return batching


class ScoringResult(NamedTuple):
    """The NLLs of a measurement."""

    nll: Floats  # in nats, shape ``[targets]``, float64
    is_double: bool  # whether the model computed in float64
    # whether each target is the most likely token, shape ``[targets]``; None if the requests do not ask
    greedy: NDArray[np.bool_] | None = None


def score_requests(runner: Runner, requests: Requests, job: Job) -> ScoringResult:
    """Score every target; requests that read and score the same are run once."""
    columns = 2 if requests.greedy else 1

    def check(index: int, values: Floats) -> None:
        require_finite(values if columns == 1 else values[:, 0], requests, index, job.model)

    sink = TargetSink(requests, job, check, columns=columns)

    def begin(some: Sequence[int]) -> Callable[[], list[Floats]]:
        made = [requests.make(each) for each in some]
        require_ids((ids for each in made for ids in (each.ids, each.targets)), job.model)
        joined, parted = read_once(made) if batching.dedup_reads else (made, list)
        wait = runner.begin(joined)
        if batching.dispatch_async:
            return lambda: parted(checked(wait(), job.model))
        found = parted(checked(wait(), job.model))
        return lambda: found

    with discarded_if_unreliable(job), runner.measuring():
        batching = prepared(job.model, requests, lambda: prepared_to_score(runner, requests, job.model), job)
        with reread(runner, requests, job.model):
            run_batches(requests, begin, sink, batching, job)
    if columns == 1:
        return ScoringResult(sink.values, batching.is_double)
    return ScoringResult(sink.values[:, 0], batching.is_double, sink.values[:, 1] == 1)


class TargetSink:
    """The numbers of each target as they come in, NaN before; a request is done completely or not at all.

    `check` raises if the results of a request, given by number, are not finite. Each token is read in so many `passes`.
    The mean of the first of the `columns` is said in words by `show`, by default as what `Job.metric` makes of NLLs.
    """

    def __init__(
        self,
        requests: Requests,
        job: Job,
        check: Callable[[int, Floats], None],
        *,
        columns: int = 1,
        passes: int = 1,
        show: Callable[[float], str] | None = None,
    ) -> None:
        self._requests, self._model, self._check, self._passes = requests, job.model, check, passes
        self._show = show or functools.partial(_loss_words, job.metric)
        self.only: Container[int] | None = None  # the requests that can be run now, where not all can
        self.of, self.tokens = int(requests.counts.sum()), 0
        table: Floats = np.full((self.of, columns), np.nan)
        self._first = table[:, 0]
        self.values = self._first if columns == 1 else table
        known = None if job.partial is None else job.partial.arrays.get("measured")
        if known is not None and known.shape == self.values.shape:
            finite = np.isfinite(known.reshape(table.shape)).all(1)
            kept = np.repeat(np.logical_and.reduceat(finite, requests.offsets[:-1]), requests.counts)
            self.values[kept] = known[kept]
            for item, begin in enumerate(requests.offsets[:-1].tolist()):
                if kept[begin]:
                    check(item, self.values[begin : begin + requests.counts[item]])
        self.done = int(np.isfinite(self._first).sum())
        job.say_resumed(self.done, self.of)
        self.total = float(np.nansum(self._first, dtype=np.float64)) if self.done else 0.0

    @property
    def so_far(self) -> str:
        return f"{self.done / self.of:.0%}, {self._show(self.total / self.done)} so far"

    @property
    def entry(self) -> StoredResult:
        return StoredResult({"measured": self.values})

    def is_done(self, item: int) -> bool:
        can_run = self.only is None or item in self.only
        return not can_run or bool(np.isfinite(self._first[self._requests.offsets[item]]))

    def put(self, items: Sequence[int], results: Sequence[Floats]) -> None:
        """Take the results of some requests, and of all equal ones."""
        offsets = self._requests.offsets
        for item, values in zip(items, results, strict=True):
            if values.shape != self.values[: self._requests.counts[item]].shape:
                raise EngineError(
                    f"model {self._model!r}: expected {self._requests.counts[item]:,} numbers of "
                    f"{self._requests.describe([item])}, got an array of shape {list(values.shape)}"
                )
            self._check(item, values)
            for equal in self._requests.repeats[item]:
                self.values[offsets[equal] : offsets[equal + 1]] = values
                self.done += len(values)
                self.total += float(values.reshape(len(values), -1)[:, 0].sum(dtype=np.float64))
            self.tokens += self._passes * int(self._requests.lengths[item])


def _loss_words(metric: str, mean: float) -> str:
    return f"{metric} {math.exp(min(700.0, mean)):.4g}" if metric in ("ppl", "pppl") else f"loss {mean:.4g}"


def require_finite(values: Floats, requests: Requests, index: int, model: str) -> None:
    """Refuse NLLs that are NaN, infinite or negative."""
    if (lowest := float(values.min(initial=0.0))) < _LOWEST:
        raise EngineError(
            f"model {model!r}: a negative log-likelihood of {lowest:.4g} nats in {requests.describe([index])}: "
            "expected 0 or more, since a probability is at most 1; does its engine give log-likelihoods?"
        )
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        kind = "NaN" if np.isnan(values[bad[0]]) else "infinite"
        raise NonFiniteError(
            f"model {model!r}: {kind} log-likelihood of {requests.where(index, int(bad[0]))} ({len(bad)} of "
            f"{len(values)} targets there); the weights are damaged, or the dtype overflows (try dtype: float32)"
        )
