"""Running a candidate and its reference over the same requests: side by side, or one after the other through the disk.

Where both fit in memory, each batch is read by the one and then by the other. Where they do not, the reference reads
first and its hidden states wait in a `Spool`, of which only its head must stay; a long text takes several rounds of
that. Either way no logits are stored, and the numbers are the same.
"""

from __future__ import annotations

__all__ = ["Elsewhere", "ModelPair", "compare", "compared", "strictest"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.backends.base import COLUMNS, Batching, Company, Distributions, Runner
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.data.requests.requests import Request, Requests, by_request
from pytest_lmgate.engine.batches import eager, explained
from pytest_lmgate.engine.loop import Job, prepared, run_batches
from pytest_lmgate.engine.scoring import TargetBoard, require_finite
from pytest_lmgate.engine.trials import prepared_to_score, require_ids
from pytest_lmgate.errors import ModelError, NonFiniteError

if TYPE_CHECKING:
    from pytest_lmgate.backends.spool import Spool

# Returns the distributions that predict the targets of some requests.
Read = Callable[[Sequence[int]], Distributions]


@dataclass(frozen=True)
class ModelPair:
    """Two models that are compared.

    Attributes:
        names: Names of the reference and of the candidate, for messages.
        reference: Returns p, loading it if need be.
        candidate: Returns q, loading it if need be, and refuses it where its tokens are not the reference's.
        side_by_side: Whether both are to be in memory at once.
        folder: Where hidden states are kept otherwise; None for the system's folder of temporary files.
    """

    names: tuple[str, str]
    reference: Callable[[], Runner]
    candidate: Callable[[], Runner]
    side_by_side: bool = True
    folder: Path | None = None


class Elsewhere(Runner):
    """A runner whose model is in another process, where it is tried out and compared with another model there."""

    is_tried = True

    def beside(
        self, candidate: Runner, requests: Requests
    ) -> tuple[Callable[[], Batching], Callable[[Sequence[Request]], Sequence[Floats]]]:
        """Return what prepares a comparison with a candidate, and what makes it of some requests, as `compared` does.

        Raises:
            ModelError: The candidate is not there.
        """
        raise NotImplementedError


def compare(pair: ModelPair, requests: Requests, job: Job) -> Floats:
    """Compare two models at every target; requests that read and score the same are run once.

    Returns:
        Shape ``[targets, 5]``: the `COLUMNS`.

    Raises:
        ModelError: A model is not causal, or the vocabularies are not of one size.
        NonFiniteError: A log-likelihood or a divergence is NaN or infinite.
        EngineError: Out of memory with a single request, a model or the disk failed.
    """
    board = TargetBoard(
        requests,
        job,
        lambda index, values: _check(values, requests, index, pair.names),
        columns=len(COLUMNS),
        passes=2,
        show=lambda mean: f"KL {mean:.4g}",
    )
    if pair.side_by_side:
        reference = pair.reference()
        if isinstance(reference, Elsewhere):
            prepare, run = reference.beside(pair.candidate(), requests)
            batching = prepared(job.model, requests, prepare, job)
            made = eager(lambda some: run([requests.make(item) for item in some]))
            run_batches(requests, made, board, batching, job)
            return board.values
        with reference.measuring():
            batching = _prepared(reference, requests, pair.names[0], job)
            _compare(pair, requests, board, job, lambda some: _read(reference, requests, some, pair.names[0]), batching)
        return board.values
    from pytest_lmgate.backends.spool import Spool  # imports torch

    while True:
        with Spool(pair.folder) as spool:
            states = _States(requests, spool, board)
            read = _spool(pair, requests, states, job)
            board.only = states.rows
            _compare(pair, requests, board, job, read)
        if board.done == board.of:
            return board.values
        board.only = None


def compared(
    reference: Distributions, candidate: Distributions, requests: Sequence[Request], names: tuple[str, str]
) -> list[Floats]:
    """Compare two models that have read the same requests.

    Returns:
        For each request, shape ``[targets, 5]``: the `COLUMNS`.

    Raises:
        ModelError: The vocabularies are not of one size.
        OutOfMemory: Fewer requests may fit.
    """
    sizes = reference.vocabulary_size, candidate.vocabulary_size
    if sizes[0] != sizes[1]:
        raise ModelError(
            f"model {names[1]!r} has {sizes[1]:,} entries in its vocabulary, its reference {names[0]!r} {sizes[0]:,}: "
            "a divergence is defined over one vocabulary only; compare their bits per byte (bpb_max)"
        )
    targets = np.concatenate([each.targets for each in requests])
    return by_request(reference.against(candidate, targets), requests)


def strictest(batchings: Sequence[Batching]) -> Batching:
    """Return how several models that read the same batches want them."""
    return Batching(min(each.tokens for each in batchings), Company.strictest(each.company for each in batchings))


def _spool(pair: ModelPair, requests: Requests, states: _States, job: Job) -> Read:
    """Write the reference's states for as many requests as there is room for; return what reads them again."""
    from pytest_lmgate.backends.spool import room

    reference, name, allowed = pair.reference(), pair.names[0], room(pair.folder)
    with reference.measuring():
        batching = _prepared(reference, requests, name, job)

        def run(some: Sequence[int]) -> list[Any]:
            found = _read(reference, requests, some, name)
            stored = found.stored()
            states.head = found.restored([stored[:0]])
            return list(stored.split(requests.counts[list(some)].tolist()))

        quietly = Job(
            model=name, dataset=job.dataset, batch_size=job.batch_size, stop_when=lambda held: held >= allowed
        )
        run_batches(requests, eager(run), states, batching, quietly)
    return states.distributions


class _States:
    """The reference's states on disk, as a board of the loop: `rows` has the first row of each request."""

    so_far, entry, tokens = "", Entry({}), 0

    def __init__(self, requests: Requests, spool: Spool, board: TargetBoard) -> None:
        self._requests, self._spool, self._board = requests, spool, board
        self.rows: dict[int, int] = {}
        self.head: Distributions | None = None
        self.of = sum(not board.is_done(item) for item in requests.order.tolist())
        self.total, self._held = 0.0, 0

    @property
    def done(self) -> int:
        return len(self.rows)

    def is_done(self, item: int) -> bool:
        return self._board.is_done(item)

    def put(self, items: Sequence[int], results: Sequence[Any]) -> None:
        for item, states in zip(items, results, strict=True):
            self._spool.write(self._held, states)
            self.rows[item] = self._held
            self._held += len(states)
            self.total += float(states.numel() * states.element_size())

    def distributions(self, some: Sequence[int]) -> Distributions:
        assert self.head is not None
        counts = self._requests.counts
        return self.head.restored([self._spool.read(self.rows[item], int(counts[item])) for item in some])


def _compare(
    pair: ModelPair, requests: Requests, board: TargetBoard, job: Job, reference: Read, beside: Batching | None = None
) -> None:
    """Let the candidate read, and compare it with the reference, which is `beside` it in memory or on disk."""
    name = pair.names[1]
    candidate = pair.candidate()
    with candidate.measuring():
        own = _prepared(candidate, requests, name, job)

        def run(some: Sequence[int]) -> list[Floats]:
            p, q = reference(some), _read(candidate, requests, some, name)
            return compared(p, q, [requests.make(item) for item in some], pair.names)

        run_batches(requests, eager(run), board, own if beside is None else strictest([own, beside]), job)


def _prepared(runner: Runner, requests: Requests, name: str, job: Job) -> Batching:
    return prepared(name, requests, lambda: prepared_to_score(runner, requests, name, compare=True), job)


def _read(runner: Runner, requests: Requests, some: Sequence[int], name: str) -> Distributions:
    with explained(name, lambda: requests.describe(some), halves=True):
        made = [requests.make(item) for item in some]
        require_ids((ids for each in made for ids in (each.ids, each.targets)), name)
        return runner.distributions(made)


def _check(values: Floats, requests: Requests, index: int, names: tuple[str, str]) -> None:
    for name, column in zip(names, ("nll_p", "nll_q"), strict=True):
        require_finite(values[:, COLUMNS.index(column)], requests, index, name)
    bad = np.flatnonzero(~np.isfinite(values).all(1))
    if len(bad):
        raise NonFiniteError(
            f"model {names[1]!r}: infinite divergence from {names[0]!r} at {requests.where(index, int(bad[0]))} "
            f"({len(bad)} of {len(values)} targets there): it rules out a token that the reference does not"
        )
