"""``llama.cpp``: chunks of which the later half is scored, with the program's own error; ``llama-perplexity``."""

from __future__ import annotations

__all__ = ["LLAMA_CPP"]

from typing import TYPE_CHECKING

import numpy as np

from pytest_lmgate.data.protocols.base import Convention, Spans, begins_of_chunks

if TYPE_CHECKING:
    from pytest_lmgate.data.protocols.windowing import Windowing


def _windows(total: int, windowing: Windowing, adds_bos: bool) -> Spans:
    """Full chunks of n_ctx; the later half is scored; a BOS takes the place of each chunk's first token."""
    length, bos = windowing.max_length, int(adds_bos)
    # Positions below are in the stream without its leading BOS: chunk k reads [BOS] + stream[k*n + 1 : (k+1)*n].
    begin = begins_of_chunks(total + bos, length)
    return Spans(begin, begin + length - bos, begin + length // 2 + 1 - bos, np.full_like(begin, bos))


LLAMA_CPP = Convention(
    name="llama.cpp",
    windows=_windows,
    prefix=lambda tokenizer: tokenizer.bos if tokenizer.adds_bos else None,
    tokens_needed=lambda length, tokenizer: 2 * length - tokenizer.adds_bos,
    whole_text=False,
    max_length=512,
    least_length=3,
    iid=True,
)
