"""``lm-eval``: each document after a prefix token, as ``loglikelihood_rolling`` of lm-evaluation-harness 0.4.13."""

from __future__ import annotations

__all__ = ["LM_EVAL"]

from typing import TYPE_CHECKING

import numpy as np

from pytest_lmgate.arrays import Ints
from pytest_lmgate.data.protocols.base import NO_WINDOWS, Convention, Reading, Spans, documents

if TYPE_CHECKING:
    from pytest_lmgate.data.corpora.corpus import Corpus
    from pytest_lmgate.data.protocols.windowing import Windowing
    from pytest_lmgate.data.tokenization.tokens import TokenizerFacts


def _read(corpus: Corpus, windowing: Windowing, tokenizer: TokenizerFacts) -> Reading:
    return documents(corpus, lambda text: _ids(tokenizer, text, windowing.add_bos_token))


def _ids(tokenizer: TokenizerFacts, text: str, add_bos_token: bool | None) -> Ints:
    """Encode as the harness does (``HFLM.tok_encode``) with a tokenizer that it loaded by `add_bos_token`.

    False drops all special tokens. None keeps those that the tokenizer adds by itself. True has it add a BOS and
    nothing else, so an EOS that it would add is dropped. With None and True, a text that already begins with the text
    of the prefix token gets no special tokens.
    """
    own = tokenizer.ids(text, special=False)
    if add_bos_token is False:
        return own
    prefix = _prefix(tokenizer)
    if prefix is not None and text.startswith(tokenizer.decode(prefix)):
        return own
    if add_bos_token is None:
        return tokenizer.ids(text, special=True)
    return own if tokenizer.bos is None else np.concatenate([[tokenizer.bos], own])


def _prefix(tokenizer: TokenizerFacts) -> int | None:
    return tokenizer.eos if tokenizer.bos is None else tokenizer.bos


def _windows(total: int, windowing: Windowing, _: bool) -> Spans:
    """First window after the prefix; later windows score k targets from a full L tokens of context."""
    if total == 0:
        return Spans(NO_WINDOWS, NO_WINDOWS, NO_WINDOWS, NO_WINDOWS)
    first = np.arange(0, total, windowing.max_length, dtype=np.int64)
    end = np.minimum(first + windowing.max_length, total)
    begin = np.maximum(end - windowing.max_length - 1, 0)
    begin[0] = 0
    prefix = np.zeros_like(begin)
    prefix[0] = 1
    return Spans(begin, end, first, prefix)


LM_EVAL = Convention(
    name="lm-eval",
    read=_read,
    windows=_windows,
    prefix=_prefix,
    needs_prefix=True,
    tokens_needed=lambda *_: 1,
    has_add_bos_token=True,
    by_document=True,
    reads_last=False,
)
