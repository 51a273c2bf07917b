"""Planned windows as batches of token ids: what a model is fed, and which of its states predict which targets.

Windows are right-padded and of like length in a batch; how many go together is a matter of speed and memory alone.
"""

from __future__ import annotations

__all__ = ["Batch", "WindowReader", "where"]

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pytest_lmgate.data.tokens import Streams
from pytest_lmgate.data.windows import WindowPlan
from pytest_lmgate.engine.loading import LoadedModel
from pytest_lmgate.engine.scoring import check_ids

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

    @property
    def longest(self) -> Tensor:
        """Token ids of the longest window: it has the most to prove with."""
        return torch.from_numpy(self._read(int(self._plan.reads.argmax())))

    def allow(self, budget: int) -> None:
        """Say how many tokens a batch may hold; windows counted by the user are read however long they are."""
        self.budget = self._most * max(1, int(self._plan.reads.max())) if self._most is not None else budget

    def shrink(self, windows: Ints, count: int) -> None:
        """Learn that of these windows only so many fit."""
        self.budget = max(1, min(self.budget, count * int(self._plan.reads[windows].max())))

    def batches(self, todo: Ints) -> Iterator[Ints]:
        """Yield windows of like length together, as many as the budget holds; it may shrink on the way."""
        order = todo[np.argsort(-self._plan.reads[todo], kind="stable")]
        begin = 0
        while begin < len(order):
            longest = max(1, int(self._plan.reads[order[begin]]))
            size = min(self._most or self.budget, max(1, self.budget // longest))
            yield order[begin : begin + size]
            begin += size

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
