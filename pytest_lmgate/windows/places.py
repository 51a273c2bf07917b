"""`TargetPlaces`: where the targets of a measurement are in the texts, and how they are spelled. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Ints
from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.settings.requests import Windowing
from pytest_lmgate.windows.protocols import PROTOCOLS, beginning, plan_windows
from pytest_lmgate.windows.requests import Piece
from pytest_lmgate.windows.tokens import TokenizerFacts


@dataclass(frozen=True)
class Spelling:
    """A text with where its tokens begin and end, in characters; shape ``[tokens]`` each.

    Tokens that make up one character together have the same beginning and the same end. A special token around the text
    has no character: it begins where it ends.
    """

    text: str
    begins: Ints
    ends: Ints


@dataclass(frozen=True)
class TargetPlaces:
    """Where each target is; arrays have the shape ``[targets]``."""

    texts: Sequence[str]  # the texts that were tokenized
    ids: Sequence[Ints]  # token ids of each text
    # token ids of each text or piece, whose digest says whether two measurements are of the same targets
    read: Sequence[Ints]
    text: Ints  # text of each target
    token: Ints  # which token of its text a target is
    tokenizer: TokenizerFacts  # what cut the texts
    _spelled: dict[int, Spelling] = field(default_factory=dict)

    def spelling(self, text: int) -> Spelling:
        """Return how a text's tokens are spelled, once for each text: as the tokenizer says, else token by token.

        What the tokenizer says counts only where it cuts the text into the very same tokens.
        """
        if text not in self._spelled:
            self._spelled[text] = self._spell(text)
        return self._spelled[text]

    def _spell(self, text: int) -> Spelling:
        written, ids = self.texts[text], self.ids[text]
        for special in (False, True):
            placed = self.tokenizer.placed(written, special)
            if placed is not None and np.array_equal(placed.ids, ids):
                starts = np.asarray(placed.starts, dtype=np.int64)
                return _spelled(written, starts, np.isin(ids, list(self.tokenizer.special)) & (starts == 0))
        pieces = {token: self.tokenizer.decode(token) for token in np.unique(ids).tolist()}
        parts = [pieces[token] for token in ids.tolist()]
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        return _spelled("".join(parts), np.cumsum(lengths) - lengths, np.zeros(len(ids), dtype=bool))


def _spelled(text: str, starts: Ints, around: NDArray[np.bool_]) -> Spelling:
    """Return a spelling from the first character of each token; special tokens around the text say 0."""
    begins = np.minimum.accumulate(np.where(around, len(text), starts)[::-1])[::-1]
    following = np.searchsorted(begins, begins, side="right")
    ends = np.append(begins, len(text))[np.minimum(following, len(begins))]
    return Spelling(text, begins, np.where(around, begins, ends))


def places_of_windows(corpus: Corpus, windowing: Windowing, tokenizer: TokenizerFacts) -> TargetPlaces:
    streams = PROTOCOLS[windowing.protocol].read(beginning(corpus, tokenizer), windowing, tokenizer)
    texts, ids = streams.texts, streams.ids
    plan = plan_windows(windowing, list(map(len, ids)), adds_bos=tokenizer.adds_bos)
    counts = plan.targets
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    token = np.repeat(plan.first, counts) + within
    return TargetPlaces(texts, ids, ids, np.repeat(plan.document, counts), token, tokenizer)


def places_of_pieces(texts: Sequence[str], pieces: Sequence[Piece], tokenizer: TokenizerFacts) -> TargetPlaces:
    counts = [len(piece.targets) for piece in pieces]
    return TargetPlaces(
        texts,
        [tokenizer.ids(text, special=False) for text in texts],
        [piece.ids for piece in pieces],
        np.repeat(np.array([piece.document for piece in pieces]), counts),
        np.concatenate([piece.targets + piece.begin for piece in pieces]),
        tokenizer,
    )


def places_of_pairs(targets: Sequence[str], tokenizer: TokenizerFacts) -> TargetPlaces:
    ids = [np.asarray(tokenizer.encode_target(text), dtype=np.int64) for text in targets]
    counts = list(map(len, ids))
    token = np.concatenate([np.arange(count) for count in counts])
    return TargetPlaces(targets, ids, ids, np.repeat(np.arange(len(ids)), counts), token, tokenizer)
