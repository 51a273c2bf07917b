"""`Convention`: everything that a protocol's name stands for, and the parts that several conventions share."""

from __future__ import annotations

__all__ = [
    "NO_WINDOWS",
    "Convention",
    "Ints",
    "Reading",
    "Spans",
    "begins_of_chunks",
    "documents",
    "joined",
    "read_joined",
    "read_rows",
    "slide",
]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_lmgate.arrays import Ints
from pytest_lmgate.data.corpora.on_disk import PIECE_CHARS
from pytest_lmgate.data.tokenization.long_texts import TextSizes, long_ids
from pytest_lmgate.data.tokenization.rows import row_begins, rows_by_counts, rows_by_starts

if TYPE_CHECKING:
    from pytest_lmgate.data.corpora.corpus import Corpus
    from pytest_lmgate.data.protocols.windowing import Windowing
    from pytest_lmgate.data.tokenization.tokens import TokenizerFacts

NO_WINDOWS: Ints = np.zeros(0, dtype=np.int64)


class Reading(NamedTuple):
    """What a convention reads: one text, or one for each document.

    Attributes:
        ids: Token ids of each text.
        sizes: Words, code points and bytes of each text.
        texts: Returns the texts, which need not fit in memory where the corpus is on the disk.
        rows: Row of each token where rows were joined to one text, shape ``[tokens]``; None where rows are documents,
            or the text has no rows.
    """

    ids: Sequence[Ints]
    sizes: Sequence[TextSizes]
    texts: Callable[[], Sequence[str]]
    rows: Ints | None = None


class Spans(NamedTuple):
    """Windows of one document, as in `WindowPlan`; every array has the shape ``[windows]``."""

    begin: Ints
    end: Ints
    first: Ints
    prefix: Ints


def read_joined(corpus: Corpus, _: Windowing, tokenizer: TokenizerFacts) -> Reading:
    """Join the rows as the dataset says, and tokenize the text in one call without special tokens."""
    return joined(corpus, tokenizer, join=corpus.join, special=False)


def joined(corpus: Corpus, tokenizer: TokenizerFacts, *, join: str, special: bool) -> Reading:
    """Join the rows and tokenize the text, with the special tokens that the tokenizer adds or without.

    The ids are those of one call; see `long_texts` for how those of a long text are found without it.
    """
    begins = None if corpus.is_one_text or len(corpus.rows) < 2 else row_begins(corpus.lengths, join)
    sizes = [TextSizes.of(corpus.pieces(join))]

    def texts() -> list[str]:
        return ["".join(corpus.pieces(join))]

    if sizes[0].chars > PIECE_CHARS and (found := long_ids(corpus.pieces(join), tokenizer, begins, special=special)):
        return Reading([found.ids], sizes, texts, found.rows)
    (text,) = texts()
    ids = tokenizer.ids(text, special=special)
    if begins is None:
        return Reading([ids], sizes, texts)
    placed = tokenizer.placed(text, special)
    if placed is not None and np.array_equal(placed.ids, ids):
        return Reading([ids], sizes, texts, rows_by_starts(np.asarray(placed.starts, dtype=np.int64), begins))
    last = len(corpus.rows) - 1
    alone = (row if index == last else f"{row}{join}" for index, row in enumerate(corpus.rows))
    counts = [len(tokenizer.ids(each, special=False)) for each in alone]
    return Reading([ids], sizes, texts, rows_by_counts(counts, len(ids)))


def read_rows(corpus: Corpus, _: Windowing, tokenizer: TokenizerFacts) -> Reading:
    """Read each row that is not blank on its own, without special tokens."""
    return documents(corpus, lambda text: tokenizer.ids(text, special=False))


def documents(corpus: Corpus, ids: Callable[[str], Ints]) -> Reading:
    """Read each row that is not blank on its own."""
    found, sizes = [], []
    for row in filter(str.strip, corpus.rows):
        found.append(ids(row))
        sizes.append(TextSizes.of((row,)))
    return Reading(found, sizes, lambda: list(filter(str.strip, corpus.rows)))


def slide(total: int, windowing: Windowing, _: bool) -> Spans:
    """Begin at 0, S, 2S, ...; score what no earlier window scored; stop at the end of the text."""
    length, stride = windowing.max_length, windowing.stride
    count = 0 if total == 0 else 1 + max(0, -(-(total - length) // stride))
    begin = np.arange(count, dtype=np.int64) * stride
    end = np.minimum(begin + length, total)
    previous = np.concatenate([NO_WINDOWS, [0], end[:-1]])[:count].astype(np.int64)
    # The first token of a window is never a target: there is nothing before it.
    first = np.maximum(previous, begin + 1)
    return Spans(begin, end, first, np.zeros_like(begin))


def begins_of_chunks(total: int, size: int) -> Ints:
    """Return where the full chunks begin; the tail is dropped."""
    return np.arange(total // size, dtype=np.int64) * size


@dataclass(frozen=True, kw_only=True)
class Convention:
    """One published way to read a text, cut it into windows and average.

    Attributes:
        name: As in ``protocol="gptq"`` and in signatures.
        read: From corpus and tokenizer to texts and token ids.
        windows: From a document's tokens, and whether the tokenizer adds a BOS, to the document's windows.
        prefix: Token that is read before the windows that have a prefix; None where the tokenizer lacks it.
        needs_prefix: Whether a tokenizer without that token is an error.
        tokens_needed: Tokens in all, from the window and the tokenizer, below which nothing is scored.
        has_stride: Whether windows may overlap by a stride that the user chooses.
        without_overlap: Name of the convention that this one is where the stride equals the window.
        has_add_bos_token: Whether the option `add_bos_token` exists.
        whole_text: Whether every token is scored, so that units of the text itself (words, bytes) are defined.
        by_document: Whether rows are read one by one.
        max_length: The convention's own window, if it names one.
        least_length: The shortest window that scores a token.
        averages: The averages that are defined; the first is the convention's own.
        iid: Whether its program prints the standard error that takes tokens as independent.
        reads_last: Whether its program reads the last token of a window too, which predicts nothing there.
    """

    name: str
    read: Callable[[Corpus, Windowing, TokenizerFacts], Reading] = read_joined
    windows: Callable[[int, Windowing, bool], Spans] = slide
    prefix: Callable[[TokenizerFacts], int | None] = lambda _: None
    needs_prefix: bool = False
    tokens_needed: Callable[[int, TokenizerFacts], int] = lambda *_: 2
    has_stride: bool = False
    without_overlap: str = ""
    has_add_bos_token: bool = False
    whole_text: bool = True
    by_document: bool = False
    max_length: int | None = None
    least_length: int = 2
    averages: tuple[str, ...] = ("token",)
    iid: bool = False
    reads_last: bool = True
