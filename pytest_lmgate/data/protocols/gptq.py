"""``gptq``: full chunks of 2048 without a BOS of their own, the mean over chunks; the tables of GPTQ and AWQ."""

from __future__ import annotations

__all__ = ["GPTQ"]

from typing import TYPE_CHECKING

import numpy as np

from pytest_lmgate.data.protocols.base import Convention, Reading, Spans, begins_of_chunks, joined

if TYPE_CHECKING:
    from pytest_lmgate.data.corpus import Corpus
    from pytest_lmgate.data.protocols.windowing import Windowing
    from pytest_lmgate.data.tokens import TokenizerFacts


def _read(corpus: Corpus, _: Windowing, tokenizer: TokenizerFacts) -> Reading:
    """Join rows by two newlines, and tokenize in one call with the special tokens that the tokenizer adds.

    The loaders of GPTQ and AWQ call ``tokenizer(text).input_ids``.
    """
    return joined(corpus, tokenizer, join="\n\n", special=True)


def _windows(total: int, windowing: Windowing, _: bool) -> Spans:
    """Full chunks of L, no BOS, L - 1 scored."""
    begin = begins_of_chunks(total, windowing.max_length)
    return Spans(begin, begin + windowing.max_length, begin + 1, np.zeros_like(begin))


GPTQ = Convention(
    name="gptq",
    read=_read,
    windows=_windows,
    tokens_needed=lambda length, _: length,
    whole_text=False,
    max_length=2048,
    averages=("window",),
)
