"""``gptq``: full chunks of 2048 without a BOS of their own, the mean over chunks; the tables of GPTQ and AWQ."""

from __future__ import annotations

__all__ = ["GPTQ"]

import numpy as np

from pytest_lmgate.data.protocols.base import Convention, Spans, begins_of_chunks, joined

GPTQ = Convention(
    name="gptq",
    # The loaders of GPTQ and AWQ call ``tokenizer(text).input_ids``, which keeps the special tokens.
    read=lambda corpus, _, tokenizer: joined(corpus, tokenizer, join="\n\n", special=True),
    windows=lambda total, windowing, _: _chunks(total, windowing.max_length),
    tokens_needed=lambda length, _: length,
    whole_text=False,
    max_length=2048,
    averages=("window",),
)


def _chunks(total: int, length: int) -> Spans:
    """Full chunks of L, no BOS, L - 1 scored."""
    begin = begins_of_chunks(total, length)
    return Spans(begin, begin + length, begin + 1, np.zeros_like(begin))
