"""What a model is asked to score, and where the targets of it are in the texts. Pure.

A request stands for a window, a choice, a masked copy or a pair, and is made when it is needed.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.data.columns import utf8
from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.errors import DataError, ModelError
from pytest_lmgate.settings.gate_options import Windowing
from pytest_lmgate.windows.protocols import PROTOCOLS, WindowPlan, beginning, plan_windows
from pytest_lmgate.windows.tokens import Framing, PromptEncoder, Streams, TokenizerFacts, TokenSpans


@dataclass(frozen=True)
class Request:
    """What a model reads at once, and the targets that are scored there."""

    # Token ids that the model reads, shape ``[tokens]``. If there is a source, they are the text that the decoder has
    # to write; the engine puts the token that its decoder begins with before them.
    ids: Ints
    # Position in `ids` whose state predicts each target, shape ``[targets]``. If there is a source, the state there is
    # the one after the source and the ids before that position.
    at: Ints
    targets: Ints  # token ids, shape ``[targets]``
    source: Ints | None = None  # token ids that an encoder reads, shape ``[source tokens]``; None without an encoder
    # The last target, where the protocol's own program reads it too. It changes a number only in models whose tokens
    # share a scale, as those with int8 activations.
    follows: int | None = None
    greedy: bool = False  # whether to tell of each target, too, if it is the most likely token


def by_request(values: Floats, requests: Sequence[Request]) -> list[Floats]:
    """Split the values of all targets, shape ``[targets, ...]``, into those of each request."""
    return np.split(values, np.cumsum([len(request.targets) for request in requests])[:-1])


@dataclass(frozen=True, kw_only=True)
class Requests:
    """The requests of one measurement, in its order."""

    lengths: Ints  # tokens that each request reads, its source included, shape ``[requests]``
    counts: Ints  # targets of each request, shape ``[requests]``
    highest: int  # the highest token id of all
    make: Callable[[int], Request]  # makes the request of a number
    # Identifies what a request reads, and what is scored there. Equal requests are scored once; an engine may read once
    # what several read.
    key: Callable[[int], tuple[Hashable, Hashable]]
    describe: Callable[[Sequence[int]], str]  # says in words what some requests are, as in ``a window of 512 tokens``
    # says where a target is, given its request and its number there, as in ``token 7 in document 3 of 'd'``
    where: Callable[[int, int], str]
    may_pad: bool = True  # whether requests of different lengths may go together
    greedy: bool = False  # whether the requests are `Request.greedy`
    has_all: bool = True  # whether each request can be made, rather than a few of them

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def repeats(self) -> dict[int, list[int]]:
        """The first of each set of equal requests, with the numbers of all of the set."""
        return self._alike[0]

    @property
    def reads(self) -> Ints:
        """Equal numbers for requests that read the same, shape ``[requests]``."""
        return self._alike[1]

    @functools.cached_property
    def order(self) -> Ints:
        """The first of each set of equal requests, the longest first; those that read the same follow each other."""
        distinct = np.array(list(self.repeats), dtype=np.int64)
        return distinct[np.lexsort((self.reads[distinct], -self.lengths[distinct]))]

    @property
    def tokens(self) -> int:
        """Tokens that are read in all, of equal requests once."""
        return int(self.lengths[self.order].sum())

    @functools.cached_property
    def offsets(self) -> Ints:
        """Where each request's targets begin among all, and where the last ones end, shape ``[requests + 1]``."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    @functools.cached_property
    def _alike(self) -> tuple[dict[int, list[int]], Ints]:
        keys, first = list(map(self.key, range(len(self)))), dict[Hashable, int]()
        reads = [first.setdefault(read, request) for request, (read, _) in enumerate(keys)]
        return repeats(keys), np.array(reads, dtype=np.int64)


def repeats(requests: Iterable[Hashable]) -> dict[int, list[int]]:
    """Return the number of the first of each set of equal requests, with the numbers of all of the set, in order.

    Equal requests are scored once. Otherwise the rounding of their batches could give them different numbers, and
    decide between equal choices.
    """
    first: dict[Hashable, int] = {}
    numbers: dict[int, list[int]] = {}
    for number, request in enumerate(requests):
        numbers.setdefault(first.setdefault(request, number), []).append(number)
    return numbers


def read_once(requests: Sequence[Request]) -> tuple[list[Request], Callable[[Sequence[Floats]], list[Floats]]]:
    """Join requests that read the same tokens, such as a question whose choices are the letters A to D.

    Return the joined requests, each with the targets of all that it stands for, and what turns their NLLs into those of
    the requests given. Requests with a source stay as they are.
    """
    equal = repeats(
        request.ids.tobytes() if request.source is None else number for number, request in enumerate(requests)
    )
    same = [[requests[number] for number in numbers] for numbers in equal.values()]

    def parted(nll: Sequence[Floats]) -> list[Floats]:
        parts: list[Floats] = [np.empty(0)] * len(requests)
        for numbers, several, together in zip(equal.values(), same, nll, strict=True):
            for number, part in zip(numbers, by_request(together, several), strict=True):
                parts[number] = part
        return parts

    return [_joined(several) for several in same], parted


def _joined(same: Sequence[Request]) -> Request:
    if len(same) == 1:
        return same[0]
    return replace(
        same[0],
        at=np.concatenate([request.at for request in same]),
        targets=np.concatenate([request.targets for request in same]),
    )


def window_requests(streams: Streams, plan: WindowPlan, dataset: str, *, greedy: bool = False) -> Requests:
    """Return the requests of planned windows of `streams`."""
    lengths, counts = plan.reads, plan.targets

    def within(window: int, begin: int, end: int) -> Ints:
        ids: Ints = streams.ids[plan.document[window]][begin:end]
        return ids.astype(np.int64, copy=False)

    def read(window: int) -> Ints:
        ids = within(window, plan.begin[window], plan.end[window] - 1)
        return np.concatenate([[streams.prefix], ids]).astype(np.int64) if plan.prefix[window] else ids

    def targets(window: int) -> Ints:
        return within(window, plan.first[window], plan.end[window])

    def make(window: int) -> Request:
        # The last target needs no state of its own, and the state at a position predicts the next token.
        at = np.arange(lengths[window] - counts[window], lengths[window])
        scored = targets(window)
        return Request(read(window), at, scored, follows=int(scored[-1]) if plan.reads_last else None, greedy=greedy)

    def key(window: int) -> tuple[Hashable, Hashable]:
        return _digest(read(window)), _digest(targets(window))

    return Requests(
        lengths=lengths,
        counts=counts,
        highest=max([streams.prefix or 0, *(int(ids.max()) for ids in streams.ids if len(ids))]),
        make=make,
        key=key,
        describe=lambda some: f"a window of {lengths[list(some)].max():,} tokens",
        where=lambda window, target: (
            f"token {int(plan.first[window]) + target:,} in document {plan.document[window]} of {dataset!r}"
        ),
        greedy=greedy,
    )


def _digest(ids: Ints) -> bytes:
    return hashlib.blake2b(ids.tobytes(), digest_size=16).digest()


def row_targets(plan: WindowPlan, rows: Ints | None) -> Ints | None:
    """Return how many targets each row has, in the order of the plan, shape ``[rows]``; None where rows are unknown.

    The plan is of a single stream, and each window's targets are behind those of the window before. The row of each of
    the stream's tokens is in `rows`, shape ``[tokens]``, which do not decrease.
    """
    if rows is None:
        return None
    # The type of `rows`, which would else be copied.
    begins = np.searchsorted(rows, np.arange(int(rows[-1]) + 2, dtype=rows.dtype))
    # The targets before each row's first token: those of all windows that end there, and some of the next one's.
    window = np.minimum(np.searchsorted(plan.end, begins, side="right"), len(plan) - 1)
    whole = np.cumsum(plan.targets) - plan.targets
    before = whole[window] + np.clip(begins - plan.first[window], 0, plan.targets[window])
    counts: Ints = np.trim_zeros(np.diff(before), "b")
    return counts


@dataclass(frozen=True)
class Piece:
    """What a masked model reads at once: each token is scored given all others of its piece, one mask at a time.

    Source: Salazar et al. 2020, arXiv 1910.14659. Special tokens are neither masked nor scored nor counted.
    """

    document: int  # index of the text that it is of
    ids: Ints  # token ids with the special tokens around them, shape ``[tokens]``
    targets: Ints  # positions of the tokens that are not special, shape ``[targets]``
    begin: int = 0  # which token of the text is at position 0, if none came before it: below 0 for a special token


def cut_pieces(
    texts: Sequence[str], tokenizer: TokenizerFacts, max_length: int | None, *, model: str, dataset: str
) -> list[Piece]:
    """Tokenize texts, and cut those that are longer than the model can read, with special tokens around each piece."""
    if tokenizer.mask is None:
        raise ModelError(f"model {model!r}: pppl masks one token at a time, but its tokenizer has no mask token")
    framing = Framing.of(tokenizer.encode)
    room = None if max_length is None else max_length - len(framing.around([]))
    if room is not None and room < 1:
        raise ModelError(f"model {model!r}: max_length={max_length} leaves no room for text besides its special tokens")
    pieces = []
    for document, text in enumerate(texts):
        text_ids = list(tokenizer.encode(text, False))
        for begin in range(0, len(text_ids), room or max(1, len(text_ids))):
            part = text_ids[begin : begin + (room or len(text_ids))]
            targets = [len(framing.prefix) + at for at, token in enumerate(part) if token not in tokenizer.special]
            if targets:
                ids = np.array(framing.around(part), dtype=np.int64)
                pieces.append(Piece(document, ids, np.array(targets, dtype=np.int64), begin - len(framing.prefix)))
    if not pieces:
        raise DataError(f"dataset {dataset!r}: expected text, got none that has a token")
    return pieces


def masked_requests(pieces: Sequence[Piece], tokenizer: TokenizerFacts, dataset: str) -> Requests:
    """Return one request for each target: its piece with the target masked."""
    assert tokenizer.mask is not None
    mask = tokenizer.mask
    counts = np.array([len(piece.targets) for piece in pieces])
    of = np.repeat(np.arange(len(pieces)), counts)
    at = np.concatenate([piece.targets for piece in pieces])
    lengths = np.array([len(piece.ids) for piece in pieces])[of]
    first = {
        number: first for first, equal in repeats(piece.ids.tobytes() for piece in pieces).items() for number in equal
    }

    def make(copy: int) -> Request:
        ids = pieces[of[copy]].ids.copy()
        target = ids[at[copy]]
        ids[at[copy]] = mask
        return Request(ids, at[copy : copy + 1], np.array([target]))

    return Requests(
        lengths=lengths,
        counts=np.ones(len(of), dtype=np.int64),
        highest=max(mask, *(int(piece.ids.max()) for piece in pieces)),
        make=make,
        key=lambda copy: ((first[int(of[copy])], int(at[copy])), None),
        describe=lambda some: (
            f"{len(some)} masked cop{'y' if len(some) == 1 else 'ies'} of {lengths[some[0]]:,} tokens"
        ),
        where=lambda copy, _: f"token {at[copy]:,} in document {pieces[of[copy]].document} of {dataset!r}",
        may_pad=False,  # padding would need an attention mask, and copies of one piece have one length anyway
    )


@dataclass(frozen=True)
class Pair:
    """A row for an encoder-decoder model, each text with the special tokens that the tokenizer gives it."""

    source: Ints  # token ids that the encoder reads, shape ``[source tokens]``
    target: Ints  # those that are scored, shape ``[target tokens]``


def encode_pairs(
    tokenizer: TokenizerFacts,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    model: str,
    dataset: str,
    context: int | None,
    cut: bool = False,
) -> list[Pair]:
    """Tokenize one source and one target for each row; `context` limits the tokens of each, and `cut` cuts sources."""
    remedy = "; shorten it, or set truncate: left in the dataset"
    encoder = PromptEncoder(
        tokenizer, model, dataset, context, f"context {context}", remedy, cut=cut, encodes_whole=True
    )
    pairs = []
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        utf8(target, f"dataset {dataset!r}: row {row}: the target")
        labels = list(tokenizer.encode_target(target))
        if not labels:
            raise DataError(f"dataset {dataset!r}: row {row}: expected a target, got one without a token")
        if context is not None and len(labels) > context:
            raise DataError(
                f"dataset {dataset!r}: row {row}: the target has {len(labels):,} tokens, but the model "
                f"{model!r} can write {context:,}; shorten it"
            )
        pairs.append(Pair(np.array(encoder.encode(source, row)), np.array(labels)))
    return pairs


def pair_requests(pairs: Sequence[Pair], dataset: str) -> Requests:
    counts = np.array([len(pair.target) for pair in pairs])
    lengths = counts + np.array([len(pair.source) for pair in pairs])

    def describe(some: Sequence[int]) -> str:
        more = f", and {len(some) - 1} more" if len(some) > 1 else ""
        return f"row {some[0]}, {lengths[some[0]]:,} tokens{more}"

    return Requests(
        lengths=lengths,
        counts=counts,
        highest=max(int(max(pair.source.max(), pair.target.max())) for pair in pairs),
        make=lambda row: Request(pairs[row].target, np.arange(counts[row]), pairs[row].target, pairs[row].source),
        key=lambda row: ((pairs[row].source.tobytes(), pairs[row].target.tobytes()), None),
        describe=describe,
        where=lambda row, target: f"target token {target:,} in row {row} of {dataset!r}",
    )


# Where the targets are in the texts, and how much of a text they cover.


_DIGITS = 9  # shares of a character are rounded to so many: their sum depends on the order of adding


@dataclass(frozen=True)
class TargetPlaces:
    """Where each target is; arrays have the shape ``[targets]``."""

    ids: Sequence[Ints]  # token ids of each text
    spans: Sequence[TokenSpans | None]  # their characters
    # token ids of each text or piece, whose digest says whether two measurements are of the same targets
    read: Sequence[Ints]
    text: Ints  # text of each target
    token: Ints  # which token of its text a target is
    tokenizer: TokenizerFacts  # the texts were cut by it
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


def lost_characters(
    streams: Streams, tokenizer: TokenizerFacts, alike: Callable[[str], str] | None = None
) -> Ints | None:
    """Return how many characters of each document its tokens do not give back, shape ``[documents]``.

    None if the tokenizer cannot write a text. If all characters are there, and others too, one counts as lost. With
    `alike`, texts that it makes equal are, and white space does not count.
    """
    found = []
    for ids, texts in zip(streams.ids, streams.texts, strict=True):
        lost = 0
        for text in texts:
            # The stream may have the tokens of several texts, or special ones before and behind a text.
            of_text = _lost(text, ids, tokenizer, alike) if len(texts) == 1 else None
            if of_text != 0:
                of_text = _lost(text, tokenizer.ids(text, special=False), tokenizer, alike)
            if of_text is None:
                return None
            lost += of_text
        found.append(lost)
    return np.array(found, dtype=np.int64)


def _lost(text: str, ids: Ints, tokenizer: TokenizerFacts, alike: Callable[[str], str] | None) -> int | None:
    if (written := tokenizer.text(ids.tolist())) is None:
        return None if tokenizer.spelled(text, ids) is None else 0
    if alike is not None:
        text, written = ("".join(alike(each).split()) for each in (text, written))
    if written == text:
        return 0
    return max((Counter(text) - Counter(written)).total(), 1)
