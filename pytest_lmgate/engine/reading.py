"""Planned windows as batches of token ids: what a model is fed, and which of its states predict which targets.

Windows are right-padded and of like length in a batch. Which go together depends on the plan, the model and the device
alone, also where an interrupted run goes on, so that the rounding of half precision is the same each time; a batch is
halved only where memory does not suffice, or counted by the user's `batch_size`.
"""

from __future__ import annotations

__all__ = ["Batch", "WindowReader", "where"]

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pytest_lmgate.data.repeats import repeats
from pytest_lmgate.data.tokens import Streams
from pytest_lmgate.data.windows import WindowPlan
from pytest_lmgate.engine.company import Company, find_company
from pytest_lmgate.engine.halving import failure
from pytest_lmgate.engine.loading import LoadedModel
from pytest_lmgate.engine.scoring import Scorer, check_ids
from pytest_lmgate.errors import LmgateError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Some windows, ready to be read.

    Attributes:
        ids: Token ids, shape ``[windows, tokens]``, padded on the right.
        rows: In which row each target is predicted, shape ``[targets]``, window after window.
        columns: From the state at which position, likewise.
        targets: Token ids, likewise.
    """

    ids: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor


class WindowReader:
    """The windows of a plan, in batches.

    Args:
        streams: Token streams that the plan refers to.
        plan: Windows.
        batch_size: Windows per batch, or ``auto`` for as many as `budget` holds.
    """

    def __init__(self, streams: Streams, plan: WindowPlan, batch_size: int | str) -> None:
        self._streams, self._plan = streams, plan
        self._most = batch_size if isinstance(batch_size, int) else None
        self.budget = 1  # tokens per batch, padding included
        self.company = Company.ANY  # which windows go together
        self._repeats = repeats(self._identity(window) for window in range(len(plan)))
        # The first of each set of equal windows.
        self.distinct = np.array(list(self._repeats), dtype=np.int64)

    @property
    def longest(self) -> Tensor:
        """Token ids of the longest window: it has the most to prove with."""
        return torch.from_numpy(self._read(int(self._plan.reads.argmax())))

    def equal(self, window: int) -> list[int]:
        """Return the windows that read and score the same as one that is yielded by `batches`, itself included."""
        return self._repeats[window]

    def find_company(self, loaded: LoadedModel, scorer: Scorer, budget: int, remark: Callable[[str], None]) -> Company:
        """Find out which windows may share a batch in a model; see `engine.company`.

        Args:
            loaded: The model.
            scorer: How its targets are scored.
            budget: Tokens that a batch may hold.
            remark: Told in a sentence where not all may.

        Raises:
            ModelError: The model is not deterministic.
            EngineError: It fails.
        """
        reads = self._plan.reads[self.distinct]
        order = self.distinct[np.argsort(-reads, kind="stable")]
        if len(order) < 2 or reads.max() < 4:
            return Company.ANY
        try:
            company, differs = find_company(
                lambda rows: scorer.read(loaded, rows),
                self._read(int(order[0])),
                self._read(int(order[1])),
                reads,
                budget=budget,
                model=loaded.model,
                device=loaded.device,
                name=loaded.name,
            )
        except LmgateError:
            raise
        except Exception as error:
            what = self.describe(order)
            raise failure(error, device=loaded.device, name=loaded.name, what=what) from error
        if differs:
            remark(company.remark(loaded.name))
        return company

    def allow(self, budget: int) -> None:
        """Say how many tokens a batch may hold; windows counted by the user are read however long they are."""
        self.budget = self._most * max(1, int(self._plan.reads.max())) if self._most is not None else budget

    def shrink(self, windows: Ints, count: int) -> None:
        """Learn that of these windows only so many fit."""
        self.budget = max(1, min(self.budget, count * int(self._plan.reads[windows].max())))

    def batches(self, todo: Ints) -> Iterator[Ints]:
        """Yield windows of like length together, as many as the budget holds; it may shrink on the way.

        Of equal windows the first is yielded. What a batch holds does not depend on what else is still to do.
        """
        reads = self._plan.reads
        wanted = np.zeros(len(self._plan), dtype=bool)
        wanted[todo] = True
        # The longest first, so that a batch that does not fit is met early. Models that count by the length of what
        # they read keep the longest so far in mind: theirs come last.
        order = self.distinct[np.argsort(-reads[self.distinct], kind="stable")]
        if self.company is not Company.ANY:
            order = order[::-1]
        begin = 0
        while begin < len(order):
            size = min(self._most or self.budget, max(1, self.budget // max(1, int(reads[order[begin]]))))
            batch = order[begin : begin + (1 if self.company is Company.ALONE else size)]
            if self.company is Company.EQUAL:
                batch = batch[reads[batch] == reads[batch[0]]]
            begin += len(batch)
            if wanted[batch].any():
                yield batch[wanted[batch]]

    def batch(self, windows: Ints) -> Batch:
        """Return what a model is fed to score the targets of some windows."""
        reads, counts = self._plan.reads[windows], self._plan.targets[windows]
        ids = np.zeros((len(windows), int(reads.max())), dtype=np.int64)
        for row, window in enumerate(windows):
            ids[row, : reads[row]] = self._read(int(window))
        # The state at a position predicts the next token: the targets' states are the last ones of each window.
        columns = [np.arange(read - count, read) for read, count in zip(reads, counts, strict=True)]
        return Batch(
            torch.from_numpy(ids),
            torch.from_numpy(np.repeat(np.arange(len(windows)), counts)),
            torch.from_numpy(np.concatenate(columns)),
            torch.from_numpy(np.concatenate([self._targets(int(window)) for window in windows])),
        )

    def describe(self, windows: Ints) -> str:
        """Say in words what is the longest of some windows, for messages."""
        return f"a window of {self._plan.reads[windows].max():,} tokens"

    def check_vocabulary(self, loaded: LoadedModel) -> None:
        """Refuse token ids that a model has no embedding for.

        Raises:
            ModelError: There are such.
        """
        if loaded.vocabulary_size is not None:
            highest = max((int(ids.max()) for ids in self._streams.ids if len(ids)), default=0)
            check_ids(max(highest, self._streams.prefix or 0), loaded.vocabulary_size, loaded.name)

    def _identity(self, window: int) -> tuple[bytes, bytes]:
        read, targets = self._read(window), self._targets(window)
        return hashlib.blake2b(read.tobytes(), digest_size=16).digest(), hashlib.blake2b(
            targets.tobytes(), digest_size=16
        ).digest()

    def _targets(self, window: int) -> Ints:
        plan = self._plan
        targets: Ints = self._streams.ids[plan.document[window]][plan.first[window] : plan.end[window]]
        return targets

    def _read(self, window: int) -> Ints:
        """Token ids that the model is fed: the last target needs no state of its own."""
        plan = self._plan
        ids = self._streams.ids[plan.document[window]][plan.begin[window] : plan.end[window] - 1]
        return np.concatenate([[self._streams.prefix], ids]).astype(np.int64) if plan.prefix[window] else ids


def where(plan: WindowPlan, windows: Ints, target: int, dataset: str) -> str:
    """Say in words where a target is, counted from 0 through some windows."""
    ends = np.cumsum(plan.targets[windows])
    row = int(np.searchsorted(ends, target, side="right"))
    window = windows[row]
    token = int(plan.end[window] - (ends[row] - target))
    return f"token {token:,} in document {plan.document[window]} of {dataset!r}"
