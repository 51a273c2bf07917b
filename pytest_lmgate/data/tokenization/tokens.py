"""From rows to token streams, as a protocol reads them. The tokenizer is passed in; nothing is loaded here."""

from __future__ import annotations

__all__ = ["Placed", "Streams", "TokenizerFacts", "tokenize"]

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.data.corpora.corpus import Corpus
from pytest_lmgate.data.protocols.windowing import Windowing
from pytest_lmgate.data.tokenization.long_texts import TextSizes
from pytest_lmgate.errors import DataError, ModelError

Ids = NDArray[np.int64]


class Placed(NamedTuple):
    """A text's tokens, and where they stand in it.

    Attributes:
        ids: Token ids.
        starts: First character of each token, 0 for a special token.
        words: Number of the word that each token is of, None for a special token: a tokenizer cuts a text into words
            before it looks up tokens, and each word by itself. None for all where it can tell the tokens on either side
            of a token's end without those on the other.
    """

    ids: Sequence[int]
    starts: Sequence[int]
    words: Sequence[int | None] | None = None


@dataclass(frozen=True)
class TokenizerFacts:
    """What the planning needs to know of a tokenizer; only `encode` must be there.

    Attributes:
        encode: Text and whether to add special tokens, to token ids.
        bos: Id of the token that begins a text, if there is one.
        eos: Id of the token that ends a text, if there is one.
        adds_bos: Whether `encode` with special tokens begins with `bos`.
        decode: A token id to its text.
        placed: Text and whether to add special tokens, to token ids and where they stand; None where the tokenizer does
            not say where its tokens begin.
        mask: Id of the token that stands for a masked one, if there is one.
        special: Ids of the tokens that stand around or between texts, and of the mask.
        target: The text that a decoder has to write, to token ids; None where that is `encode` with special tokens.
        chat: Messages with ``role`` and ``content``, to the text that the model goes on from; None without a template.
        vocabulary: Returns the id of each token; None where the tokenizer does not say.
    """

    encode: Callable[[str, bool], Sequence[int]]
    bos: int | None = None
    eos: int | None = None
    adds_bos: bool = False
    decode: Callable[[int], str] = str
    placed: Callable[[str, bool], Placed | None] = lambda _, __: None
    mask: int | None = None
    special: frozenset[int] = frozenset()
    target: Callable[[str], Sequence[int]] | None = None
    chat: Callable[[Sequence[Mapping[str, str]]], str] | None = None
    vocabulary: Callable[[], Mapping[str, int]] | None = None

    def encode_target(self, text: str) -> Sequence[int]:
        """Return the token ids of a text that a decoder has to write."""
        return self.encode(text, True) if self.target is None else self.target(text)

    def ids(self, text: str, *, special: bool) -> Ids:
        """Return a text's token ids, shape ``[tokens]``, with the special tokens that the tokenizer adds or without."""
        return np.asarray(self.encode(text, special), dtype=np.int64)


@dataclass(frozen=True)
class Streams:
    """Token streams, one per document, and the size of the original text behind each.

    Attributes:
        ids: Token ids of each document, shape ``[tokens]``; of a long text on the disk.
        prefix: Id of the prefix token of windows that have one.
        sizes: Words, code points and bytes of each document; none where nothing counts them.
        rows: Row of each token where the rows were joined to one text, shape ``[tokens]``; None where rows are
            documents, or the text has no rows.
    """

    ids: Sequence[Ids]
    prefix: int | None
    sizes: Sequence[TextSizes] = ()
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
    convention = windowing.convention
    reading = convention.read(corpus, windowing, tokenizer)
    _check_enough(corpus, windowing, tokenizer, sum(map(len, reading.ids)))
    prefix = convention.prefix(tokenizer)
    if prefix is None and convention.needs_prefix:
        raise ModelError(
            f"protocol {convention.name!r} puts a BOS token before the text, but the tokenizer of {model!r} has none; "
            "set bos_token in its tokenizer_config.json, or use protocol='sliding'"
        )
    return Streams(reading.ids, prefix, reading.sizes, reading.rows)


def _check_enough(corpus: Corpus, windowing: Windowing, tokenizer: TokenizerFacts, tokens: int) -> None:
    length, needed = windowing.max_length, windowing.convention.tokens_needed(windowing.max_length, tokenizer)
    if tokens < needed:
        raise DataError(
            f"dataset {corpus.name!r}: {tokens} token{'s' * (tokens != 1)}, but protocol {windowing.protocol!r} needs "
            f"at least {needed} to score one (max_length={length}); give more text, or a smaller max_length where it "
            "has windows"
        )
