"""``bos-chunks``: full chunks, each after a BOS, of lines that are tokenized one by one; common among quantizers."""

from __future__ import annotations

__all__ = ["BOS_CHUNKS"]

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from pytest_lmgate.data.protocols.base import Convention, Reading, Spans, begins_of_chunks
from pytest_lmgate.data.tokenization.long_texts import Numbers, TextSizes

if TYPE_CHECKING:
    from pytest_lmgate.data.corpora.corpus import Corpus
    from pytest_lmgate.data.protocols.windowing import Windowing
    from pytest_lmgate.data.tokenization.tokens import TokenizerFacts


def _read(corpus: Corpus, _: Windowing, tokenizer: TokenizerFacts) -> Reading:
    """Tokenize line by line, each with its newline.

    A running text is a file of lines to this convention.
    """
    ids, rows = Numbers(), Numbers()
    for number, line in enumerate(_lines(corpus)):
        own = tokenizer.ids(line, special=False)
        ids.add(own)
        if not corpus.is_one_text:
            rows.add(np.full(len(own), number))
    return Reading(
        [ids.array()],
        [TextSizes.of(_lines(corpus))],
        lambda: ["".join(_lines(corpus))],
        None if corpus.is_one_text else rows.array(),
    )


def _lines(corpus: Corpus) -> Iterator[str]:
    """Return the lines with their newlines; the last of a running text may have it already."""
    if not corpus.is_one_text:
        yield from (f"{row}\n" for row in corpus.rows)
        return
    begun: list[str] = []
    for piece in corpus.pieces(""):
        *ended, last = piece.split("\n")
        for line in ended:
            yield f"{''.join(begun)}{line}\n"
            begun = []
        begun.append(last)
    if any(begun):
        yield f"{''.join(begun)}\n"


def _windows(total: int, windowing: Windowing, _: bool) -> Spans:
    """Full chunks of L, each after a BOS, all L scored."""
    begin = begins_of_chunks(total, windowing.max_length)
    return Spans(begin, begin + windowing.max_length, begin, np.ones_like(begin))


BOS_CHUNKS = Convention(
    name="bos-chunks",
    read=_read,
    windows=_windows,
    prefix=lambda tokenizer: tokenizer.bos,
    needs_prefix=True,
    tokens_needed=lambda length, _: length,
    whole_text=False,
)
