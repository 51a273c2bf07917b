"""`Convention`: everything that a protocol's name stands for, and the parts that several conventions share."""

from __future__ import annotations

__all__ = [
    "NO_WINDOWS",
    "Convention",
    "Ints",
    "Reading",
    "Spans",
    "begins_of_chunks",
    "joined",
    "read_joined",
    "read_rows",
    "slide",
]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.data.rows import rows_by_counts, rows_by_starts

if TYPE_CHECKING:
    from pytest_lmgate.data.corpus import Corpus
    from pytest_lmgate.data.protocols.windowing import Windowing
    from pytest_lmgate.data.tokens import TokenizerFacts

Ints = NDArray[np.int64]
NO_WINDOWS: Ints = np.zeros(0, dtype=np.int64)


class Reading(NamedTuple):
    """What a convention reads: one text, or one for each document.

    Attributes:
        texts: The texts.
        ids: Token ids of each text.
        rows: Row of each token where rows were joined to one text, shape ``[tokens]``; None where rows are documents,
            or the text has no rows.
    """

    texts: Sequence[str]
    ids: Sequence[Ints]
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
    """Join the rows and tokenize the text in one call, with the special tokens that the tokenizer adds or without."""
    text = join.join(corpus.rows)
    ids = tokenizer.ids(text, special=special)
    if corpus.is_one_text or len(corpus.rows) < 2:
        return Reading([text], [ids])
    starts = tokenizer.starts(text, special)
    if starts is not None and len(starts) == len(ids):
        return Reading([text], [ids], rows_by_starts(starts, corpus.rows, join))
    alone = [*(f"{row}{join}" for row in corpus.rows[:-1]), corpus.rows[-1]]
    counts = [len(tokenizer.ids(each, special=False)) for each in alone]
    return Reading([text], [ids], rows_by_counts(counts, len(ids)))


def read_rows(corpus: Corpus, _: Windowing, tokenizer: TokenizerFacts) -> Reading:
    """Read each row that is not blank on its own, without special tokens."""
    texts = [row for row in corpus.rows if row.strip()]
    return Reading(texts, [tokenizer.ids(text, special=False) for text in texts])


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
