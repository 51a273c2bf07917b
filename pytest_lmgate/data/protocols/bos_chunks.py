"""``bos-chunks``: full chunks, each after a BOS, of lines that are tokenized one by one; common among quantizers."""

from __future__ import annotations

__all__ = ["BOS_CHUNKS"]

from typing import TYPE_CHECKING

import numpy as np

from pytest_lmgate.data.protocols.base import Convention, Reading, Spans, begins_of_chunks

if TYPE_CHECKING:
    from pytest_lmgate.data.corpus import Corpus
    from pytest_lmgate.data.protocols.windowing import Windowing
    from pytest_lmgate.data.tokens import TokenizerFacts


def _read(corpus: Corpus, _: Windowing, tokenizer: TokenizerFacts) -> Reading:
    """Tokenize line by line, each with its newline.

    A running text is a file of lines to this convention; the last line may have its newline already.
    """
    lines = corpus.rows[0].removesuffix("\n").split("\n") if corpus.is_one_text else corpus.rows
    texts = [f"{line}\n" for line in lines]
    ids = [tokenizer.ids(text, special=False) for text in texts]
    rows = None if corpus.is_one_text else np.repeat(np.arange(len(ids)), list(map(len, ids)))
    return Reading(["".join(texts)], [np.concatenate(ids)], rows)


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
