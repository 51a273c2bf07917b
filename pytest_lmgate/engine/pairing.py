"""Running a candidate and its reference over the same windows: side by side, or one after the other by way of the disk.

Where both fit in memory, each batch is read by the one and then by the other. Where they do not, the reference reads
first and its hidden states wait in a `Spool`, of which only its head must stay; a long text takes several rounds of
that. Either way no logits are stored, and the numbers are the same.
"""

from __future__ import annotations

__all__ = ["ModelPair", "measure_divergence"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pytest_lmgate.data.tokens import Streams
from pytest_lmgate.data.windows import WindowPlan
from pytest_lmgate.engine.company import Company
from pytest_lmgate.engine.divergence import COLUMNS, Logits, streamed_divergence
from pytest_lmgate.engine.forward import evaluation_mode
from pytest_lmgate.engine.halving import failure, run_halving
from pytest_lmgate.engine.head import VocabularyHead
from pytest_lmgate.engine.likelihood import Checkpointing, Progress, check_finite
from pytest_lmgate.engine.loading import LoadedModel, quiet
from pytest_lmgate.engine.memory import is_out_of_memory, release, token_budget
from pytest_lmgate.engine.reading import Batch, WindowReader, where
from pytest_lmgate.engine.scoreboard import Scoreboard
from pytest_lmgate.engine.scoring import Scorer, check_ids
from pytest_lmgate.engine.spool import Spool, room
from pytest_lmgate.errors import LmgateError, ModelError, NonFiniteError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Result = TypeVar("Result")
# The reference's states for the targets of some windows, or its logits.
States = Callable[[Ints, Batch], Tensor]
Remark = Callable[[str], None]


@dataclass(frozen=True)
class ModelPair:
    """Two models that are compared.

    Attributes:
        names: Of the reference and of the candidate, for messages.
        reference: Returns p, loading it if need be.
        candidate: Returns q likewise, and refuses it where its tokens are not the reference's.
        side_by_side: Whether both are to be in memory at once.
        folder: Where hidden states are kept otherwise; None for the system's folder of temporary files.
    """

    names: tuple[str, str]
    reference: Callable[[], LoadedModel]
    candidate: Callable[[], LoadedModel]
    side_by_side: bool = True
    folder: Path | None = None


def measure_divergence(
    pair: ModelPair,
    streams: Streams,
    plan: WindowPlan,
    *,
    dataset: str,
    batch_size: int | str = "auto",
    report: Callable[[Progress], None] = lambda _: None,
    checkpointing: Checkpointing | None = None,
    remark: Remark = lambda _: None,
) -> Floats:
    """Compare two models at every planned target; windows that read and score the same tokens are read once.

    Args:
        pair: The models.
        streams: Token streams that the plan refers to.
        plan: Windows.
        dataset: Name of the dataset, for messages.
        batch_size: Windows per batch, or ``auto`` for a budget of tokens that memory allows.
        report: Called after each batch.
        checkpointing: Where interrupted work is kept, as arrays of the shape that is returned.
        remark: Told in one sentence what the session's summary should say of a model.

    Returns:
        Shape ``[targets, 5]``, in the order of the plan: the `COLUMNS` of `engine.divergence`.

    Raises:
        ModelError: A model is not causal, or the vocabularies are not of one size.
        NonFiniteError: A log-likelihood or a divergence is NaN or infinite.
        EngineError: Out of memory with a single window, a model or the disk failed.
    """
    offsets = np.concatenate([[0], np.cumsum(plan.targets)])
    board = Scoreboard(
        int(offsets[-1]),
        model=f"{pair.names[1]} against {pair.names[0]}",
        dataset=dataset,
        describe=lambda target: where(plan, np.arange(len(plan)), target, dataset),
        report=report,
        checkpointing=checkpointing,
        columns=len(COLUMNS),
        measure="KL",
    )
    # A window is scored whole or not at all.
    reader = WindowReader(streams, plan, batch_size)
    todo = np.array([window for window in reader.distinct if not board.is_scored(int(offsets[window]))], dtype=np.int64)

    def keep(windows: Ints, values: Floats) -> None:
        _check(values, windows, plan, pair.names, dataset)
        parts = np.split(values, np.cumsum(plan.targets[windows])[:-1])
        each = [(equal, part) for window, part in zip(windows, parts, strict=True) for equal in reader.equal(window)]
        at = np.concatenate([np.arange(offsets[window], offsets[window + 1]) for window, _ in each])
        board.put(at, np.concatenate([part for _, part in each]), read=2 * int(plan.reads[windows].sum()))

    with torch.inference_mode(), quiet():
        if pair.side_by_side:
            _side_by_side(pair, reader, todo, keep, remark)
        else:
            _by_way_of_disk(pair, reader, plan, todo, keep, remark)
    return board.nll


def _side_by_side(
    pair: ModelPair, reader: WindowReader, todo: Ints, keep: Callable[[Ints, Floats], None], remark: Remark
) -> None:
    reference = pair.reference()
    with evaluation_mode(reference.model):
        reading = _Reading(reference, reader, remark)
        _compare(pair, reader, todo, reading.head, lambda _, batch: reading.states(batch), keep, remark, beside=reading)


def _by_way_of_disk(
    pair: ModelPair,
    reader: WindowReader,
    plan: WindowPlan,
    todo: Ints,
    keep: Callable[[Ints, Floats], None],
    remark: Remark,
) -> None:
    while len(todo):
        with Spool(pair.folder) as spool:
            head, rows = _spool(pair, reader, plan, todo, spool, remark)

            def states(windows: Ints, _: Batch, spool: Spool = spool, rows: dict[int, int] = rows) -> Tensor:
                return torch.cat([spool.read(rows[window], int(plan.targets[window])) for window in windows.tolist()])

            _compare(pair, reader, np.array(list(rows)), head, states, keep, remark)
            todo = todo[~np.isin(todo, list(rows))]


def _spool(
    pair: ModelPair, reader: WindowReader, plan: WindowPlan, todo: Ints, spool: Spool, remark: Remark
) -> tuple[VocabularyHead | None, dict[int, int]]:
    """Write the reference's states for as many windows as there is room for; only its head stays in memory.

    Returns:
        The head, and the first row of each window that was read.
    """
    reference = pair.reference()
    rows: dict[int, int] = {}
    held, left = 0, room(pair.folder)
    with evaluation_mode(reference.model):
        reading = _Reading(reference, reader, remark)
        reader.allow(reading.budget)
        reader.company = reading.company
        for windows in reader.batches(todo):
            found = torch.cat(_halving(reader, windows, lambda some: reading.states(reader.batch(some)).cpu(), reading))
            size = found.numel() * found.element_size()
            if rows and size > left:
                break
            left -= size
            for window, states in zip(windows.tolist(), found.split(plan.targets[windows].tolist()), strict=True):
                spool.write(held, states)
                rows[window] = held
                held += len(states)
    return reading.head, rows


def _compare(
    pair: ModelPair,
    reader: WindowReader,
    windows: Ints,
    head: VocabularyHead | None,
    states: States,
    keep: Callable[[Ints, Floats], None],
    remark: Remark,
    *,
    beside: _Reading | None = None,
) -> None:
    """Let the candidate read, and compare it with the reference's head and states.

    Args:
        pair: The models.
        reader: Of the plan.
        windows: What to read.
        head: The reference's.
        states: Likewise.
        keep: Given what was measured of some windows.
        remark: Told what the summary should say of the candidate.
        beside: The reference, where it is in memory too.
    """
    loaded = pair.candidate()
    with evaluation_mode(loaded.model):
        candidate = _Reading(loaded, reader, remark)
        readings = [candidate] if beside is None else [candidate, beside]
        reader.allow(min(reading.budget for reading in readings))
        reader.company = Company.strictest(reading.company for reading in readings)

        def compare(some: Ints) -> Floats:
            batch = reader.batch(some)
            p, q = Logits(states(some, batch), head), Logits(candidate.states(batch), candidate.head)
            _same_size(pair.names, p.vocabulary_size, q.vocabulary_size)
            check_ids(int(batch.targets.max()), q.vocabulary_size, candidate.name)
            return streamed_divergence(p, q, batch.targets).cpu().numpy()

        for some in reader.batches(windows):
            keep(some, np.concatenate(_halving(reader, some, compare, *readings)))


class _Reading:
    """One model that reads windows."""

    def __init__(self, loaded: LoadedModel, reader: WindowReader, remark: Remark) -> None:
        reader.check_vocabulary(loaded)
        self._loaded = loaded
        self._scorer = Scorer.causal(loaded, reader.longest, what="a window")
        self.head, self.name, self.device = self._scorer.head, loaded.name, loaded.device
        # Logits held whole are there twice: as the model gives them, and those of the targets; and so may the other's.
        self.budget = token_budget(loaded.device, 4 * self._scorer.plain_vocabulary(loaded))
        self.company = reader.find_company(loaded, self._scorer, self.budget, remark)

    def states(self, batch: Batch) -> Tensor:
        """Return the states that predict a batch's targets, or their logits; see `Scorer.states`."""
        try:
            return self._scorer.states(self._loaded.model, batch.ids.to(self.device), batch.rows, batch.columns)
        except Exception as error:
            if isinstance(error, LmgateError) or is_out_of_memory(error):  # for the latter a smaller batch may do
                raise
            what = f"windows of {batch.ids.shape[1]:,} tokens"
            raise failure(error, device=self.device, name=self.name, what=what) from error


def _halving(
    reader: WindowReader, windows: Ints, run: Callable[[Ints], Result], reading: _Reading, *others: _Reading
) -> list[Result]:
    def shrink(count: int) -> None:
        for other in others:
            release(other.device)
        reader.shrink(windows, count)

    def run_some(some: Sequence[int]) -> Result:
        return run(np.array(some))

    return run_halving(
        windows.tolist(),
        run_some,
        device=reading.device,
        name=reading.name,
        what=lambda some: reader.describe(np.array(some)),
        shrink=shrink,
    )


def _same_size(names: tuple[str, str], reference: int, candidate: int) -> None:
    if reference != candidate:
        raise ModelError(
            f"model {names[1]!r} has {candidate:,} entries in its vocabulary, its reference {names[0]!r} "
            f"{reference:,}: a divergence is defined over one vocabulary only; compare their bits per byte (bpb_max)"
        )


def _check(values: Floats, windows: Ints, plan: WindowPlan, names: tuple[str, str], dataset: str) -> None:
    for name, column in zip(names, ("nll_p", "nll_q"), strict=True):
        check_finite(values[:, COLUMNS.index(column)], windows, plan, name, dataset)
    bad = np.flatnonzero(~np.isfinite(values).all(1))
    if len(bad):
        raise NonFiniteError(
            f"model {names[1]!r}: infinite divergence from {names[0]!r} at "
            f"{where(plan, windows, int(bad[0]), dataset)} ({len(bad)} of {len(values)} in this batch): it rules out a "
            "token that the reference does not"
        )
