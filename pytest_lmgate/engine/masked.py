"""Pseudo-likelihood of a masked model: each token given all others, one mask at a time, many copies in a batch.

Copies of pieces of the same length go together, so that nothing is padded. Source: Salazar et al. 2020, arXiv
1910.14659. Special tokens are neither masked nor scored nor counted.
"""

from __future__ import annotations

__all__ = ["Piece", "cut_pieces", "measure_pseudo_nll"]

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_lmgate.data.framing import Framing
from pytest_lmgate.data.repeats import repeats
from pytest_lmgate.engine.company import Company, find_company
from pytest_lmgate.engine.forward import evaluation_mode
from pytest_lmgate.engine.halving import failure, run_halving
from pytest_lmgate.engine.likelihood import Checkpointing, Progress
from pytest_lmgate.engine.loading import LoadedModel, quiet
from pytest_lmgate.engine.memory import token_budget
from pytest_lmgate.engine.scoreboard import Scoreboard
from pytest_lmgate.engine.scoring import Scorer, check_ids
from pytest_lmgate.errors import DataError, LmgateError, ModelError

Ints = NDArray[np.int64]
# A text's unknown words are its own; these stand around or between texts, or are the mask itself.
_SPECIAL = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id", "mask_token_id")


@dataclass(frozen=True)
class Piece:
    """What the model reads at once.

    Attributes:
        document: Index of the text it is of.
        ids: Token ids with the special tokens around them, shape ``[tokens]``.
        targets: Positions of the tokens that are not special, shape ``[targets]``.
    """

    document: int
    ids: Ints
    targets: Ints


def cut_pieces(
    texts: Sequence[str], tokenizer: Any, max_length: int | None, *, model: str, dataset: str
) -> list[Piece]:
    """Tokenize texts and cut those that are longer than the model can read, special tokens around each piece.

    Args:
        texts: One piece each, or several in a row.
        tokenizer: Of the model.
        max_length: Tokens that the model can read, special ones included; None for no limit.
        model: Name of the model, for messages.
        dataset: Name of the dataset, likewise.

    Returns:
        Pieces with at least one target each, in the order of the texts.

    Raises:
        DataError: No text has a token.
        ModelError: The special tokens leave no room.
    """
    framing = Framing.of(lambda text, special: tokenizer(text, add_special_tokens=special)["input_ids"])
    special = {getattr(tokenizer, name, None) for name in _SPECIAL}
    room = None if max_length is None else max_length - len(framing.around([]))
    if room is not None and room < 1:
        raise ModelError(f"model {model!r}: max_length={max_length} leaves no room beside its special tokens")
    pieces = []
    for document, text in enumerate(texts):
        own = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        for begin in range(0, len(own), room or max(1, len(own))):
            part = own[begin : begin + (room or len(own))]
            targets = [len(framing.prefix) + at for at, token in enumerate(part) if token not in special]
            if targets:
                ids = np.array(framing.around(part), dtype=np.int64)
                pieces.append(Piece(document, ids, np.array(targets, dtype=np.int64)))
    if not pieces:
        raise DataError(f"dataset {dataset!r}: expected text, got none that has a token")
    return pieces


def measure_pseudo_nll(
    loaded: LoadedModel,
    pieces: Sequence[Piece],
    *,
    dataset: str,
    batch_size: int | str = "auto",
    report: Callable[[Progress], None] = lambda _: None,
    checkpointing: Checkpointing | None = None,
    remark: Callable[[str], None] = lambda _: None,
) -> NDArray[np.float64]:
    """Return the NLL of each token given all others of its piece, in nats, piece after piece; equal pieces once.

    Args:
        loaded: A masked model.
        pieces: What to read.
        dataset: Name of the dataset, for messages.
        batch_size: Masked copies per batch, or ``auto`` for a budget of tokens.
        report: Called after each batch.
        checkpointing: Where interrupted work is kept.
        remark: Told in one sentence what the session's summary should say of the model.

    Returns:
        Shape ``[targets]``.

    Raises:
        ModelError: The tokenizer has no mask token, or gives ids beyond the vocabulary, or the model is not
            deterministic.
        NonFiniteError: A log-likelihood is NaN or infinite.
        EngineError: Out of memory with a single copy, or the model itself failed.
    """
    mask = getattr(loaded.tokenizer, "mask_token_id", None)
    if mask is None:
        raise ModelError(f"model {loaded.name!r}: pppl masks one token at a time, but its tokenizer has no mask token")
    offsets = np.concatenate([[0], np.cumsum([len(piece.targets) for piece in pieces])])

    def describe(target: int) -> str:
        index = int(np.searchsorted(offsets, target, side="right")) - 1
        return f"token {int(pieces[index].targets[target - offsets[index]]):,} in document {pieces[index].document}"

    board = Scoreboard(
        int(offsets[-1]),
        model=loaded.name,
        dataset=dataset,
        describe=describe,
        report=report,
        checkpointing=checkpointing,
    )
    with torch.inference_mode(), evaluation_mode(loaded.model), quiet():
        reader = _Reader(loaded, pieces, mask, batch_size, remark)
        for copies in reader.batches(lambda piece, target: board.is_scored(int(offsets[piece]) + target)):
            nll = reader.nll(copies)
            each = [
                (offsets[equal] + target, value)
                for (piece, target), value in zip(copies, nll, strict=True)
                for equal in reader.equal(piece)
            ]
            at = np.array([target for target, _ in each])
            values = np.array([value for _, value in each])
            board.put(at, values, read=sum(len(pieces[piece].ids) for piece, _ in copies))
    return board.nll


class _Reader:
    """One masked model and the copies it has to read, each a piece's number and which of its targets is masked."""

    def __init__(
        self,
        loaded: LoadedModel,
        pieces: Sequence[Piece],
        mask: int,
        batch_size: int | str,
        remark: Callable[[str], None],
    ) -> None:
        self._loaded, self._pieces, self._mask = loaded, pieces, mask
        self._repeats = repeats(piece.ids.tobytes() for piece in pieces)
        if loaded.vocabulary_size is not None:
            check_ids(max(mask, *(int(piece.ids.max()) for piece in pieces)), loaded.vocabulary_size, loaded.name)
        order = sorted(self._repeats, key=lambda index: -len(pieces[index].ids))
        longest = pieces[order[0]].ids
        self._most = batch_size if isinstance(batch_size, int) else None
        try:
            ids = torch.from_numpy(longest).to(loaded.device)
            self._scorer = Scorer.proven(loaded.model, ids, name=loaded.name)
            self._budget = token_budget(loaded.device, self._scorer.plain_vocabulary(loaded))
            # Two copies of one piece differ by a token, which says little of what a batch shares.
            other = pieces[order[-1]].ids if len(order) > 1 else longest[::-1].copy()
            company, differs = find_company(
                self._read,
                longest,
                other,
                np.array([len(longest)]),  # nothing is padded: copies of one length go together
                budget=self._budget,
                model=loaded.model,
                device=loaded.device,
                name=loaded.name,
            )
        except LmgateError:
            raise
        except Exception as error:
            what = f"a piece of {len(longest):,} tokens"
            raise failure(error, device=loaded.device, name=loaded.name, what=what) from error
        self._order = order
        if company is Company.ALONE:
            self._most = 1
        if differs:
            remark(company.remark(loaded.name))

    def equal(self, piece: int) -> list[int]:
        """Return the pieces that are equal to one that is yielded by `batches`, itself included."""
        return self._repeats[piece]

    def batches(self, is_scored: Callable[[int, int], bool]) -> Iterator[list[tuple[int, int]]]:
        """Yield copies that are still to read, those of one length together.

        Of equal pieces the first is yielded. What a batch holds does not depend on what else is still to do.
        """
        for length, pieces in itertools.groupby(self._order, key=lambda index: len(self._pieces[index].ids)):
            copies = [(index, target) for index in pieces for target in range(len(self._pieces[index].targets))]
            begin = 0
            while begin < len(copies):
                size = min(self._most or self._budget, max(1, self._budget // length))
                batch = [copy for copy in copies[begin : begin + size] if not is_scored(*copy)]
                begin += size
                if batch:
                    yield batch

    def _read(self, rows: Sequence[Ints]) -> list[NDArray[np.float64]]:
        """NLLs of all tokens of some rows of one length, none of them masked."""
        ids = torch.from_numpy(np.stack(rows))
        where = torch.arange(len(rows)).repeat_interleave(ids.shape[1])
        columns = torch.arange(ids.shape[1]).repeat(len(rows))
        nll = self._scorer.nll(self._loaded.model, ids.to(self._loaded.device), where, columns, ids.reshape(-1))
        return list(nll.cpu().numpy().reshape(len(rows), -1))

    def nll(self, copies: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
        """Return the NLL of each copy's masked token."""
        length = len(self._pieces[copies[0][0]].ids)

        def shrink(count: int) -> None:
            self._budget = max(1, min(self._budget, count * length))

        parts = run_halving(
            copies,
            self._run,
            device=self._loaded.device,
            name=self._loaded.name,
            what=lambda some: f"{len(some)} masked copies of {length:,} tokens",
            shrink=shrink,
        )
        return np.concatenate(parts)

    def _run(self, copies: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
        ids = torch.from_numpy(np.stack([self._pieces[piece].ids for piece, _ in copies]))
        rows = torch.arange(len(copies))
        columns = torch.tensor([int(self._pieces[piece].targets[target]) for piece, target in copies])
        targets = ids[rows, columns]
        ids[rows, columns] = self._mask
        nll = self._scorer.nll(self._loaded.model, ids.to(self._loaded.device), rows, columns, targets)
        return nll.cpu().numpy()
