"""Where the targets of a measurement are in the texts, and how much of a text they cover. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.settings.gate_options import Windowing
from pytest_lmgate.windows.protocols import PROTOCOLS, WindowPlan, beginning, plan_windows
from pytest_lmgate.windows.requests import Piece
from pytest_lmgate.windows.tokens import Streams, TokenizerFacts, TokenSpans

_DIGITS = 9  # to which shares of a character are rounded: their sum depends on the order of adding


@dataclass(frozen=True)
class TargetPlaces:
    """Where each target is; arrays have the shape ``[targets]``."""

    ids: Sequence[Ints]  # token ids of each text
    spans: Sequence[TokenSpans | None]  # their characters
    # token ids of each text or piece, whose digest says whether two measurements are of the same targets
    read: Sequence[Ints]
    text: Ints  # text of each target
    token: Ints  # which token of its text a target is
    tokenizer: TokenizerFacts  # what cut the texts
    _alone: dict[int, TokenSpans] = field(default_factory=dict)

    def spelling(self, text: int) -> TokenSpans:
        """Return how a text's tokens are spelled: as the tokenizer says, else token by token, once for each text."""
        if (spans := self.spans[text]) is not None:
            return spans
        if text not in self._alone:
            self._alone[text] = self.tokenizer.spelled_alone(self.ids[text])
        return self._alone[text]


def places_of_windows(corpus: Corpus, windowing: Windowing, tokenizer: TokenizerFacts) -> TargetPlaces:
    streams = PROTOCOLS[windowing.protocol].read(beginning(corpus, tokenizer), windowing, tokenizer)
    plan = plan_windows(windowing, streams.lengths, adds_bos=tokenizer.adds_bos)
    counts = plan.targets
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    token = np.repeat(plan.first, counts) + within
    return TargetPlaces(streams.ids, streams.spans, streams.ids, np.repeat(plan.document, counts), token, tokenizer)


def places_of_pieces(texts: Sequence[str], pieces: Sequence[Piece], tokenizer: TokenizerFacts) -> TargetPlaces:
    counts = [len(piece.targets) for piece in pieces]
    cut = list(map(tokenizer.cut, texts))
    return TargetPlaces(
        [ids for ids, _ in cut],
        [spans for _, spans in cut],
        [piece.ids for piece in pieces],
        np.repeat(np.array([piece.document for piece in pieces]), counts),
        np.concatenate([piece.targets + piece.begin for piece in pieces]),
        tokenizer,
    )


def places_of_pairs(targets: Sequence[str], tokenizer: TokenizerFacts) -> TargetPlaces:
    ids = [np.asarray(tokenizer.encode_target(text), dtype=np.int64) for text in targets]
    counts = list(map(len, ids))
    token = np.concatenate([np.arange(count) for count in counts])
    spans = [_spans_of(text, tokens, tokenizer) for text, tokens in zip(targets, ids, strict=True)]
    return TargetPlaces(ids, spans, ids, np.repeat(np.arange(len(ids)), counts), token, tokenizer)


def _spans_of(text: str, ids: Ints, tokenizer: TokenizerFacts) -> TokenSpans | None:
    """Return the characters of a target's tokens, if it is cut as other texts are, with special tokens or without."""
    cuts = (tokenizer.cut(text, special=special) for special in (False, True))
    return next((spans for cut, spans in cuts if np.array_equal(cut, ids)), None)


def scored_sizes(streams: Streams, plan: WindowPlan) -> Floats | None:
    """Return the words, characters and bytes that the targets of each document cover, shape ``[documents, 3]``.

    None if part of a document is not scored, and the characters of its tokens are unknown. Tokens that share a
    character share it out evenly, as a token for each of its bytes does; a word counts by the share of its characters
    that is covered; characters in no token, such as spaces that a tokenizer drops, belong to the token behind them.
    Of a document that is counted by another text, the same share of that text is covered.
    """
    sizes = np.array([(size.words, size.chars, size.utf8_bytes) for size in streams.sizes], dtype=np.float64)
    scored = [np.zeros(len(ids), dtype=bool) for ids in streams.ids]
    for document, first, end in zip(plan.document, plan.first, plan.end, strict=True):
        scored[document][first:end] = True
    if all(here.all() for here in scored):
        return sizes
    for document, (here, spans) in enumerate(zip(scored, streams.spans, strict=True)):
        if not here.any():
            sizes[document] = 0
        elif spans is None:
            return None
        else:
            parts = _sizes_of_tokens(spans)
            sizes[document] *= parts[here].sum(0) / parts.sum(0)
    found: Floats = sizes.round(_DIGITS)
    return found


def _sizes_of_tokens(spans: TokenSpans) -> Floats:
    """Return the share of a text that each token has, in words, characters and bytes; shape ``[tokens, 3]``."""
    begins, ends = spans.begins, np.maximum.accumulate(spans.ends)
    ends[-1] = len(spans.text)
    before = np.append(0, ends)[:-1]
    begins = np.where(spans.ends > spans.begins, np.minimum(begins, before), before)
    size = len(spans.text) + 1
    holders = np.cumsum(np.bincount(begins, minlength=size) - np.bincount(ends, minlength=size))[:-1]
    columns = []
    for weights in _sizes_of_characters(spans.text):
        sums = np.append(0, np.cumsum(weights / holders))
        columns.append(sums[ends] - sums[begins])
    return np.stack(columns, axis=1)


def _sizes_of_characters(text: str) -> Iterator[Floats | Ints]:
    r"""Yield the words, characters and bytes of each character of a text, shape ``[characters]`` each.

    A word is a piece of ``re.split(r"\s+", text)``, shared out evenly among its characters. The empty piece before or
    behind a text that begins or ends with white space is that space's.
    """
    spaces = np.array([space.span() for space in re.finditer(r"\s+", text)], dtype=np.int64).reshape(-1, 2)
    edges = np.concatenate([[0], spaces.ravel(), [len(text)]])
    lengths = np.diff(edges)
    pieces = lengths[::2]
    words = np.zeros(len(text))
    words[np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)] = np.repeat(1 / pieces.clip(1), pieces)
    for piece, space in ((0, slice(*edges[1:3])), (-1, slice(*edges[-3:-1]))):
        if pieces[piece] == 0:
            words[space] += 1 / (space.stop - space.start)
    yield words
    yield np.ones(len(text))
    letters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    yield 1 + (letters > 0x7F) + (letters > 0x7FF) + (letters > 0xFFFF)


def lost_characters(streams: Streams, tokenizer: TokenizerFacts) -> Ints | None:
    """Return how many characters of each document its tokens do not give back, shape ``[documents]``.

    None if the tokenizer cannot write a text. If all characters are there, and others too, one counts as lost.
    """
    found = []
    for ids, texts in zip(streams.ids, streams.texts, strict=True):
        lost = 0
        for text in texts:
            # The stream may have the tokens of several texts, or special ones before and behind a text.
            of_text = _lost(text, ids, tokenizer) if len(texts) == 1 else None
            if of_text != 0:
                of_text = _lost(text, tokenizer.ids(text, special=False), tokenizer)
            if of_text is None:
                return None
            lost += of_text
        found.append(lost)
    return np.array(found, dtype=np.int64)


def _lost(text: str, ids: Ints, tokenizer: TokenizerFacts) -> int | None:
    if (written := tokenizer.text(ids.tolist())) is None:
        return None if tokenizer.spelled(text, ids) is None else 0
    if written == text:
        return 0
    return max((Counter(text) - Counter(written)).total(), 1)
