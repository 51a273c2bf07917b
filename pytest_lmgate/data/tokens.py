"""From rows to token streams, as a protocol reads them. The tokenizer is passed in; nothing is loaded here."""

from __future__ import annotations

__all__ = ["Streams", "TokenizerFacts", "tokenize"]

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.config.protocol import Windowing
from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.data.rows import rows_by_counts, rows_by_starts
from pytest_lmgate.errors import DataError, ModelError

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TokenizerFacts:
    """What the planning needs to know of a tokenizer.

    Attributes:
        encode: Text and whether to add special tokens, to token ids.
        bos: Id of the token that begins a text, if there is one.
        eos: Id of the token that ends one, likewise.
        adds_bos: Whether `encode` with special tokens begins with `bos`.
        decode: A token id to its text.
        starts: Text and whether to add special tokens, to the first character of each token, 0 for a special token;
            None where the tokenizer does not say.
    """

    encode: Callable[[str, bool], Sequence[int]]
    bos: int | None
    eos: int | None
    adds_bos: bool
    decode: Callable[[int], str]
    starts: Callable[[str, bool], Sequence[int] | None] = lambda _, __: None


@dataclass(frozen=True)
class Streams:
    r"""Token streams, one per document, and the size of the original text behind each.

    Attributes:
        ids: Token ids of each document, shape ``[tokens]``.
        prefix: Id of the prefix token of windows that have one.
        words: Pieces of ``re.split(r"\s+", text)`` of each document, as lm-evaluation-harness counts them.
        chars: Unicode code points of each document.
        utf8_bytes: Bytes of each document.
        rows: Row of each token where the rows were joined to one text, shape ``[tokens]``; None where rows are
            documents, or the text has no rows.
    """

    ids: tuple[Ids, ...]
    prefix: int | None
    words: tuple[int, ...]
    chars: tuple[int, ...]
    utf8_bytes: tuple[int, ...]
    rows: Ids | None = None

    @property
    def lengths(self) -> list[int]:
        """Tokens in each document."""
        return [len(ids) for ids in self.ids]


def tokenize(corpus: Corpus, windowing: Windowing, tokenizer: TokenizerFacts, *, model: str) -> Streams:
    """Turn rows into the token streams that the protocol reads.

    Raises:
        DataError: The text has too few tokens for the protocol to score one.
        ModelError: The protocol needs a BOS or EOS that the tokenizer does not have.
    """
    protocol = windowing.protocol
    rows = None
    if windowing.by_document:
        texts = [row for row in corpus.rows if row.strip()]
        ids = [_as_the_harness(tokenizer, text, windowing.add_bos_token) for text in texts]
    elif protocol == "bos-chunks":
        # Line by line, each with its newline; a running text is a file of lines to this convention, the last of which
        # may have its newline already.
        lines = corpus.rows[0].removesuffix("\n").split("\n") if corpus.is_one_text else corpus.rows
        texts = ["".join(f"{line}\n" for line in lines)]
        parts = [_encode(tokenizer, f"{line}\n", False) for line in lines]
        ids = [np.concatenate(parts)]
        rows = None if corpus.is_one_text else np.repeat(np.arange(len(parts)), list(map(len, parts)))
    else:
        join, special = ("\n\n", True) if protocol == "gptq" else (corpus.join, False)
        texts = [join.join(corpus.rows)]
        # The loaders of GPTQ and AWQ call the tokenizer once, with the special tokens that it adds.
        ids = [_encode(tokenizer, texts[0], special)]
        if not corpus.is_one_text and len(corpus.rows) > 1:
            rows = _rows(tokenizer, texts[0], special, corpus.rows, join, len(ids[0]))
    _check_enough(corpus, windowing, tokenizer, sum(map(len, ids)))
    return Streams(
        ids=tuple(ids),
        prefix=_prefix(windowing, tokenizer, model),
        words=tuple(len(re.split(r"\s+", text)) for text in texts),
        chars=tuple(map(len, texts)),
        utf8_bytes=tuple(len(text.encode()) for text in texts),
        rows=rows,
    )


def _rows(tokenizer: TokenizerFacts, text: str, special: bool, rows: Sequence[str], join: str, tokens: int) -> Ids:
    """Return the row of each token of joined rows."""
    starts = tokenizer.starts(text, special)
    if starts is not None and len(starts) == tokens:
        return rows_by_starts(starts, rows, join)
    alone = [*(f"{row}{join}" for row in rows[:-1]), rows[-1]]
    return rows_by_counts([len(_encode(tokenizer, each, False)) for each in alone], tokens)


def _as_the_harness(tokenizer: TokenizerFacts, text: str, add_bos_token: bool | None) -> Ids:
    """Encode as lm-evaluation-harness 0.4.13 does (``HFLM.tok_encode``) with a tokenizer loaded by `add_bos_token`.

    False drops all special tokens. None keeps those that the tokenizer adds by itself. True has it add a BOS and
    nothing else, so an EOS that it would add is dropped. With None and True, a text that already begins with the text
    of the prefix token gets no special tokens.
    """
    if add_bos_token is False:
        return _encode(tokenizer, text, False)
    prefix = tokenizer.eos if tokenizer.bos is None else tokenizer.bos
    if prefix is not None and text.startswith(tokenizer.decode(prefix)):
        return _encode(tokenizer, text, False)
    if add_bos_token is None:
        return _encode(tokenizer, text, True)
    bos = [] if tokenizer.bos is None else [tokenizer.bos]
    return np.array([*bos, *tokenizer.encode(text, False)], dtype=np.int64)


def _encode(tokenizer: TokenizerFacts, text: str, special: bool) -> Ids:
    return np.asarray(tokenizer.encode(text, special), dtype=np.int64)


def _prefix(windowing: Windowing, tokenizer: TokenizerFacts, model: str) -> int | None:
    protocol = windowing.protocol
    if protocol == "lm-eval":
        prefix = tokenizer.bos if tokenizer.bos is not None else tokenizer.eos
    elif protocol == "bos-chunks" or (protocol == "llama.cpp" and tokenizer.adds_bos):
        prefix = tokenizer.bos
    else:
        return None
    if prefix is None:
        raise ModelError(
            f"protocol {protocol!r} puts a BOS token before the text, but the tokenizer of {model!r} has none; "
            "set bos_token in its tokenizer_config.json, or use protocol='sliding'"
        )
    return prefix


def _check_enough(corpus: Corpus, windowing: Windowing, tokenizer: TokenizerFacts, tokens: int) -> None:
    protocol, length = windowing.protocol, windowing.max_length
    if protocol == "llama.cpp":
        needed = 2 * length - tokenizer.adds_bos
    elif protocol in ("bos-chunks", "gptq"):
        needed = length
    else:
        needed = 1 if protocol == "lm-eval" else 2
    if tokens < needed:
        raise DataError(
            f"dataset {corpus.name!r}: {tokens} token{'s' * (tokens != 1)}, but protocol {protocol!r} needs at least "
            f"{needed} to score one (max_length={length}); give more text, or a smaller max_length where it has windows"
        )
