"""Masked copies: each token given all others of its piece, one mask at a time.

Source: Salazar et al. 2020, arXiv 1910.14659. Special tokens are neither masked nor scored nor counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_lmgate.arrays import Ints
from pytest_lmgate.errors import DataError, ModelError
from pytest_lmgate.windows.requests import Request, Requests, repeats
from pytest_lmgate.windows.tokens import Framing, TokenizerFacts


@dataclass(frozen=True)
class Piece:
    """What a masked model reads at once."""

    document: int  # index of the text that it is of
    ids: Ints  # token ids with the special tokens around them, shape ``[tokens]``
    targets: Ints  # positions of the tokens that are not special, shape ``[targets]``
    begin: int = 0  # which token of the text stands at position 0, if none stood before it: below 0 for a special token


def cut_pieces(
    texts: Sequence[str], tokenizer: TokenizerFacts, max_length: int | None, *, model: str, dataset: str
) -> list[Piece]:
    """Tokenize texts, and cut those that are longer than the model can read, with special tokens around each piece."""
    if tokenizer.mask is None:
        raise ModelError(f"model {model!r}: pppl masks one token at a time, but its tokenizer has no mask token")
    framing = Framing.of(tokenizer.encode)
    room = None if max_length is None else max_length - len(framing.around([]))
    if room is not None and room < 1:
        raise ModelError(f"model {model!r}: max_length={max_length} leaves no room for text besides its special tokens")
    pieces = []
    for document, text in enumerate(texts):
        own = list(tokenizer.encode(text, False))
        for begin in range(0, len(own), room or max(1, len(own))):
            part = own[begin : begin + (room or len(own))]
            targets = [len(framing.prefix) + at for at, token in enumerate(part) if token not in tokenizer.special]
            if targets:
                ids = np.array(framing.around(part), dtype=np.int64)
                pieces.append(Piece(document, ids, np.array(targets, dtype=np.int64), begin - len(framing.prefix)))
    if not pieces:
        raise DataError(f"dataset {dataset!r}: expected text, got none that has a token")
    return pieces


def masked_requests(pieces: Sequence[Piece], tokenizer: TokenizerFacts, dataset: str) -> Requests:
    """Return one request for each target: its piece with the target masked."""
    assert tokenizer.mask is not None
    mask = tokenizer.mask
    counts = np.array([len(piece.targets) for piece in pieces])
    of = np.repeat(np.arange(len(pieces)), counts)
    at = np.concatenate([piece.targets for piece in pieces])
    lengths = np.array([len(piece.ids) for piece in pieces])[of]
    first = {each: one for one, equal in repeats(piece.ids.tobytes() for piece in pieces).items() for each in equal}

    def make(copy: int) -> Request:
        ids = pieces[of[copy]].ids.copy()
        target = ids[at[copy]]
        ids[at[copy]] = mask
        return Request(ids, at[copy : copy + 1], np.array([target]))

    return Requests(
        lengths=lengths,
        counts=np.ones(len(of), dtype=np.int64),
        highest=max(mask, *(int(piece.ids.max()) for piece in pieces)),
        make=make,
        key=lambda copy: ((first[int(of[copy])], int(at[copy])), None),
        describe=lambda some: (
            f"{len(some)} masked cop{'y' if len(some) == 1 else 'ies'} of {lengths[some[0]]:,} tokens"
        ),
        where=lambda copy, _: f"token {at[copy]:,} in document {pieces[of[copy]].document} of {dataset!r}",
        may_pad=False,  # padding would need an attention mask, and copies of one piece have one length anyway
    )
