"""Pseudo-likelihood of a masked model: each token given all others, one mask at a time, many copies in a batch.

Copies of pieces of the same length go together, so that nothing is padded. Source: Salazar et al. 2020, arXiv
1910.14659. Special tokens are neither masked nor scored nor counted.
"""

from __future__ import annotations

__all__ = ["Piece", "cut_pieces", "measure_pseudo_nll"]

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_lmgate.data.framing import Framing
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
) -> NDArray[np.float64]:
    """Return the NLL of each token given all others of its piece, in nats, piece after piece.

    Args:
        loaded: A masked model.
        pieces: What to read.
        dataset: Name of the dataset, for messages.
        batch_size: Masked copies per batch, or ``auto`` for a budget of tokens.
        report: Called after each batch.
        checkpointing: Where interrupted work is kept.

    Returns:
        Shape ``[targets]``.

    Raises:
        ModelError: The tokenizer has no mask token, or gives ids beyond the vocabulary.
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
        reader = _Reader(loaded, pieces, mask, batch_size)
        for copies in reader.batches(lambda piece, target: board.is_scored(int(offsets[piece]) + target)):
            at = np.array([offsets[piece] + target for piece, target in copies])
            board.put(at, reader.nll(copies), read=sum(len(pieces[piece].ids) for piece, _ in copies))
    return board.nll


class _Reader:
    """One masked model and the copies it has to read, each a piece's number and which of its targets is masked."""

    def __init__(self, loaded: LoadedModel, pieces: Sequence[Piece], mask: int, batch_size: int | str) -> None:
        self._loaded, self._pieces, self._mask = loaded, pieces, mask
        if loaded.vocabulary_size is not None:
            check_ids(max(mask, *(int(piece.ids.max()) for piece in pieces)), loaded.vocabulary_size, loaded.name)
        longest = max(pieces, key=lambda piece: len(piece.ids))
        try:
            ids = torch.from_numpy(longest.ids).to(loaded.device)
            self._scorer = Scorer.proven(loaded.model, ids, name=loaded.name)
        except LmgateError:
            raise
        except Exception as error:
            what = f"a piece of {len(longest.ids):,} tokens"
            raise failure(error, device=loaded.device, name=loaded.name, what=what) from error
        self._budget = token_budget(loaded.device, 0 if self._scorer.is_streamed else (loaded.vocabulary_size or 0))
        self._most = batch_size if isinstance(batch_size, int) else None

    def batches(self, is_scored: Callable[[int, int], bool]) -> Iterator[list[tuple[int, int]]]:
        """Yield copies that are still to read, those of one length together."""
        order = sorted(range(len(self._pieces)), key=lambda index: -len(self._pieces[index].ids))
        waiting: list[tuple[int, int]] = []
        length = 0
        for index in order:
            piece = self._pieces[index]
            if len(piece.ids) != length and waiting:
                yield waiting
                waiting = []
            length = len(piece.ids)
            for target in range(len(piece.targets)):
                if is_scored(index, target):
                    continue
                waiting.append((index, target))
                if len(waiting) >= min(self._most or self._budget, max(1, self._budget // length)):
                    yield waiting
                    waiting = []
        if waiting:
            yield waiting

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
