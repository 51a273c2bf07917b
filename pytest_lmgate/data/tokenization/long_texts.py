"""Long texts, read and tokenized in pieces: the same token ids as in one call, without the memory that it takes.

A piece begins within the one before, so that both have the stretch that they share. How a tokenizer cuts a text rests
on what is near: words are found from left to right, and so from a common beginning on are common, and each word is cut
by itself. So where both pieces cut the middle of the stretch into the same words and tokens at the same characters,
they are joined at a word, and where they do not, as in a run of one letter that is longer than the stretch, they are
read as one piece. To BPE a text may be a single word: the merges on either side of a token's end do not depend on each
other. (The best path of Unigram does: paths that are equally good are told apart by the rounding of all before.)

A tokenizer's state that shows in no word of a whole stretch goes unseen, such as whether a quotation of thousands of
characters is still open.
"""

from __future__ import annotations

__all__ = ["LongIds", "Numbers", "TextSizes", "TokenPiece", "long_ids", "token_pieces"]

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Ints
from pytest_lmgate.data.corpora.on_disk import needs_room, open_until_gone
from pytest_lmgate.data.tokenization.framing import Framing
from pytest_lmgate.data.tokenization.rows import rows_by_starts

if TYPE_CHECKING:
    from pytest_lmgate.data.tokenization.tokens import TokenizerFacts


MOST_NUMBERS = 16 * 2**20
"""Token ids of a text beyond which they are kept on the disk."""
SHARED_CHARS = 2**13
"""Characters that a piece has in common with the one before."""
_SAMPLE_CHARS = 1000
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class TextSizes:
    r"""The size of a text.

    Attributes:
        words: Pieces of ``re.split(r"\s+", text)``, as lm-evaluation-harness counts them.
        chars: Unicode code points.
        utf8_bytes: Bytes.
    """

    words: int
    chars: int
    utf8_bytes: int

    @classmethod
    def of(cls, pieces: Iterable[str]) -> TextSizes:
        """Count a text that comes in pieces."""
        spaces = chars = utf8_bytes = 0
        in_space = False
        for piece in filter(None, pieces):
            # A stretch of white space that goes on from the piece before was counted there.
            spaces += sum(1 for _ in _SPACE.finditer(piece)) - (in_space and _SPACE.match(piece) is not None)
            in_space = _SPACE.match(piece[-1]) is not None
            chars += len(piece)
            utf8_bytes += len(piece.encode("utf-8", "surrogatepass"))
        return cls(spaces + 1, chars, utf8_bytes)


class TokenPiece(NamedTuple):
    """Consecutive tokens of a text.

    Attributes:
        ids: Token ids, shape ``[tokens]``.
        starts: Character of the text that each begins with, shape ``[tokens]``.
        begins_word: Whether each begins a word, or the text is no word to its tokenizer; shape ``[tokens]``.
    """

    ids: Ints
    starts: Ints
    begins_word: NDArray[np.bool_]


class Numbers:
    """Token ids, or other whole numbers below 2^31, that come in parts."""

    def __init__(self) -> None:
        self._held: list[NDArray[Any]] = []
        self._count = 0
        self._file: IO[bytes] | None = None

    def add(self, numbers: NDArray[Any]) -> None:
        """Take the next ones."""
        self._held.append(numbers)
        self._count += len(numbers)
        if self._count > MOST_NUMBERS:
            with needs_room("the token ids of a text are"):
                if self._file is None:
                    self._file = open_until_gone(self)
                for each in self._held:
                    self._file.write(each.astype(np.int32).tobytes())
                self._file.flush()
            self._held.clear()

    def array(self) -> NDArray[Any]:
        """Return all: an int64 array, or an int32 one that the system reads from the disk as it is used."""
        if self._file is None:
            return np.concatenate([np.zeros(0, dtype=np.int64), *self._held])
        return np.memmap(self._file, dtype=np.int32, mode="r")


class _ApartError(Exception):
    """Two pieces cannot be joined where they were."""


class LongIds(NamedTuple):
    """The token ids of a long text, and the row of each; shape ``[tokens]``."""

    ids: Ints
    rows: Ints | None


def long_ids(pieces: Iterator[str], tokenizer: TokenizerFacts, begins: Ints | None, *, special: bool) -> LongIds | None:
    """Tokenize a text that comes in pieces; None where that takes the whole text.

    Args:
        pieces: At least one, of `PIECE_CHARS` characters or a little more, but for the last.
        tokenizer: Must say where its tokens begin.
        begins: First character of each row, shape ``[rows]``; None where rows are not asked for.
        special: Whether to add the special tokens that the tokenizer puts around a text.
    """
    first = next(pieces)
    framing = _framing(first[:_SAMPLE_CHARS], tokenizer, special=special)
    if framing is None:
        return None
    ids, rows = Numbers(), Numbers()
    last = 0
    ids.add(np.array(framing.prefix, dtype=np.int64))
    rows.add(np.zeros(len(framing.prefix), dtype=np.int64))
    try:
        for piece in token_pieces(chain([first], pieces), tokenizer):
            ids.add(piece.ids)
            if begins is not None and len(piece.ids):
                found = rows_by_starts(piece.starts, begins)
                rows.add(found)
                last = int(found[-1])
    except _ApartError:
        return None
    ids.add(np.array(framing.suffix, dtype=np.int64))
    rows.add(np.full(len(framing.suffix), last))
    return LongIds(ids.array(), None if begins is None else rows.array())


def _framing(sample: str, tokenizer: TokenizerFacts, *, special: bool) -> Framing | None:
    """Return the special tokens around a text; None where a tokenizer does not say, or puts others around a sample."""
    placed = tokenizer.placed(sample, False)
    if placed is None:
        return None
    framing = Framing.of(tokenizer.encode) if special else Framing()
    return framing if framing.around(placed[0]) == list(tokenizer.encode(sample, special)) else None


def token_pieces(pieces: Iterator[str], tokenizer: TokenizerFacts) -> Iterator[TokenPiece]:
    """Tokenize a text that comes in pieces, without special tokens.

    The tokenizer says where each token begins; see `TokenizerFacts.placed`.

    Raises:
        _ApartError: It cuts a stretch otherwise once it sees more of the text behind it.
    """
    text, offset, done = next(pieces, ""), 0, 0
    known = _tokens(text, offset, tokenizer)
    while following := next(pieces, ""):
        shared = text[-SHARED_CHARS:]
        begin = offset + len(text) - len(shared)
        later = _tokens(shared + following, begin, tokenizer)
        seam = _seam(known, later, begin + len(shared) // 4, begin + len(shared) * 3 // 4)
        if seam is None:
            # As much again at a time, so that a text without a seam is not read over and over.
            while len(following) < len(text) and (more := next(pieces, "")):
                following += more
            text += following
            known = _tokens(text, offset, tokenizer)
            if done:
                known = _cut(known, done)
                if known.starts[:1].tolist() != [done]:
                    raise _ApartError
            continue
        yield _cut(known, 0, seam)
        text, offset, done, known = shared + following, begin, seam, _cut(later, seam)
    yield known


def _tokens(text: str, offset: int, tokenizer: TokenizerFacts) -> TokenPiece:
    found = tokenizer.placed(text, False)
    assert found is not None, "asked only of a tokenizer that says where tokens begin"
    ids, starts = (np.asarray(each, dtype=np.int64) for each in found[:2])
    if found.words is None:
        return TokenPiece(ids, starts + offset, np.ones(len(ids), dtype=bool))
    words = np.array([-1 if word is None else word for word in found.words], dtype=np.int64)
    return TokenPiece(ids, starts + offset, np.diff(words, prepend=-2) != 0)


def _seam(one: TokenPiece, other: TokenPiece, begin: int, end: int) -> int | None:
    """Return a character between `begin` and `end` where both begin a word; None unless all their tokens are equal."""
    if any((np.diff(each.starts) < 0).any() for each in (one, other)):
        return None
    mine, its = (_cut(each, begin, end) for each in (one, other))
    if not all(np.array_equal(*both) for both in zip(mine, its, strict=True)):
        return None
    # Only the first of several tokens of one character begins it.
    chosen = mine.starts[mine.begins_word & (np.diff(mine.starts, prepend=begin) > 0)]
    return None if len(chosen) == 0 else int(chosen[len(chosen) // 2])


def _cut(piece: TokenPiece, begin: int, end: int | None = None) -> TokenPiece:
    first, last = np.searchsorted(piece.starts, [begin, 0 if end is None else end])
    within = slice(first, None if end is None else last)
    return TokenPiece(piece.ids[within], piece.starts[within], piece.begins_word[within])
