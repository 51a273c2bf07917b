"""Protocols: seven published conventions to read a text, cut it into windows and average. Sources: docs/protocols.md.

A `Convention` is how a protocol reads and cuts a text; which arguments it takes is in `settings.gate_options`.
`tokenize` reads a corpus by it, and `plan_windows` cuts the tokens into a `WindowPlan`. Pure: the tokenizer is passed
in, and no model is loaded.

A window is ``(begin, end, first)`` in the token stream of one document: the model reads ``t[begin:end]``, after a
prefix token where `prefix` is set, and the targets ``t[first:end]`` are scored. The last token is only a target and
need not be fed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Ints
from pytest_lmgate.data.corpus import Corpus, TextSizes
from pytest_lmgate.errors import DataError, ModelError
from pytest_lmgate.settings.gate_options import Windowing
from pytest_lmgate.windows.tokens import Streams, TokenizerFacts, TokenSpans

# Windows of one document: begin, end, first and prefix as in `WindowPlan`, shape ``[windows]`` each.
Spans: TypeAlias = "tuple[Ints, Ints, Ints, Ints]"
NO_WINDOWS: Ints = np.zeros(0, dtype=np.int64)


def row_begins(lengths: Sequence[int], join: str) -> Ints:
    """Return where each row begins in the text that they are joined to, from their characters; shape ``[rows]``."""
    whole = np.array(lengths, dtype=np.int64) + len(join)
    return np.cumsum(whole) - whole


def rows_by_starts(starts: Ints, begins: Ints) -> Ints:
    """Return the row of each token from where tokens begin, shape ``[tokens]``; a join belongs to the row before it.

    The first character of each token is in `starts`, ``[tokens]``; special tokens, which have none, say 0. That of each
    row is in `begins`, ``[rows]``.
    """
    found = np.searchsorted(begins, starts, side="right") - 1
    return np.maximum.accumulate(found)  # a special token at the end says 0 too


def rows_by_counts(counts: Sequence[int], tokens: int) -> Ints:
    """Return the row of each of so many tokens, shape ``[tokens]``, from how many tokens each row has alone.

    A boundary that is off by a few tokens hardly changes a sum over a row.
    """
    ends = np.cumsum(counts) * (tokens / max(1, sum(counts)))
    found = np.searchsorted(np.round(ends), np.arange(tokens), side="right")
    return np.minimum(found, len(counts) - 1).astype(np.int64)


def beginning(corpus: Corpus, tokenizer: TokenizerFacts) -> Corpus:
    """Cut a text to its longest beginning with at most `Corpus.tokens`, special ones not counted."""
    if corpus.tokens is None:
        return corpus
    (text,), most = corpus.rows, corpus.tokens

    def tokens(characters: int) -> int:
        return len(tokenizer.ids(text[:characters], special=False))

    end = most
    while end < len(text) and tokens(end) <= most:
        end *= 2
    end = min(end, len(text))
    if end == len(text) and (available := tokens(end)) < most:
        raise DataError(
            f"dataset {corpus.name!r}: tokens: expected at most {available:,}, as the text has, got {most:,}"
        )
    end = bisect_right(range(end + 1), most, key=tokens) - 1
    return replace(corpus, rows=(text[:end],), tokens=None)


def joined(corpus: Corpus, tokenizer: TokenizerFacts, *, join: str, special: bool) -> Streams:
    """Join the rows and tokenize the text, with the special tokens that the tokenizer adds or without."""
    text = join.join(corpus.rows)
    ids, spans = tokenizer.cut(text, special=special)
    streams = Streams([ids], sizes=[TextSizes.of(text)], texts=[[text]], spans=[spans])
    if corpus.is_one_text or len(corpus.rows) < 2:
        return streams
    if spans is not None:
        begins = row_begins(list(map(len, corpus.rows)), join)
        return replace(streams, rows=rows_by_starts(spans.begins, begins))
    last = len(corpus.rows) - 1
    alone = (row if index == last else f"{row}{join}" for index, row in enumerate(corpus.rows))
    counts = [len(tokenizer.ids(row, special=False)) for row in alone]
    return replace(streams, rows=rows_by_counts(counts, len(ids)))


def read_rows(corpus: Corpus, _: Windowing, tokenizer: TokenizerFacts) -> Streams:
    """Read each row that is not blank on its own, without special tokens."""
    return documents(corpus, tokenizer.cut)


def documents(corpus: Corpus, cut: Callable[[str], tuple[Ints, TokenSpans | None]]) -> Streams:
    """Read each row that is not blank on its own."""
    texts = [corpus.rows[index] for index in corpus.documents]
    counted = corpus.counted or corpus.rows
    sizes = [TextSizes.of(counted[index]) for index in corpus.documents]
    ids, spans = zip(*map(cut, texts), strict=True) if texts else ((), ())
    return Streams(ids, sizes=sizes, texts=[[text] for text in texts], spans=spans)


def slide(total: int, windowing: Windowing, _: bool) -> Spans:
    """Begin at 0, S, 2S, ...; score what no earlier window scored; stop at the end of the text."""
    length, stride = windowing.max_length, windowing.stride
    count = 0 if total == 0 else 1 + max(0, -(-(total - length) // stride))
    begin = np.arange(count, dtype=np.int64) * stride
    end = np.minimum(begin + length, total)
    previous = np.concatenate([NO_WINDOWS, [0], end[:-1]])[:count].astype(np.int64)
    # The first token of a window is never a target: there is nothing before it.
    first = np.maximum(previous, begin + 1)
    return (begin, end, first, np.zeros_like(begin))


def chunk_starts(total: int, size: int) -> Ints:
    """Return where the full chunks begin; the tail is dropped."""
    return np.arange(total // size, dtype=np.int64) * size


@dataclass(frozen=True, kw_only=True)
class Convention:
    """One published way to read a text, cut it into windows and average."""

    name: str  # as in ``protocol="gptq"`` and in signatures
    # from corpus and tokenizer to texts and token ids
    read: Callable[[Corpus, Windowing, TokenizerFacts], Streams] = lambda corpus, _, tokenizer: joined(
        corpus, tokenizer, join=corpus.join, special=False
    )
    # from a document's tokens, and whether the tokenizer adds a BOS, to the document's windows
    windows: Callable[[int, Windowing, bool], Spans] = slide
    # token that is read before the windows that have a prefix; None where the tokenizer lacks it
    prefix: Callable[[TokenizerFacts], int | None] = lambda _: None
    needs_prefix: bool = False  # whether a tokenizer without that token is an error
    # tokens in all, from the window and the tokenizer, below which nothing is scored
    tokens_needed: Callable[[int, TokenizerFacts], int] = lambda *_: 2
    reads_last: bool = True  # whether its program reads the last token of a window too, which predicts nothing there


# ``sliding``, ``disjoint`` and ``document``: the windows of Hugging Face's "Perplexity of fixed-length models".
#
# ``sliding`` has overlapping windows over one text; those of ``disjoint`` do not overlap ("chunked" on that page);
# under ``document`` each row is read on its own, with sliding windows inside it, and no row sees another.
DISJOINT = Convention(name="disjoint")
SLIDING = Convention(name="sliding")
DOCUMENT = Convention(name="document", read=read_rows)


# ``bos-chunks``: full chunks, each after a BOS, of lines that are tokenized one by one; common among quantizers.
def _read_lines(corpus: Corpus, _: Windowing, tokenizer: TokenizerFacts) -> Streams:
    """Tokenize line by line, each with its newline, which the last line of a running text may have already."""
    rows = corpus.rows[0].removesuffix("\n").split("\n") if corpus.is_one_text else corpus.rows
    lines = [f"{row}\n" for row in rows]
    ids, spans = zip(*map(tokenizer.cut, lines), strict=True)
    of = None if corpus.is_one_text else np.repeat(np.arange(len(ids)), list(map(len, ids)))
    sizes = [TextSizes.of("".join(lines))]
    return Streams([np.concatenate(ids)], sizes=sizes, texts=[lines], spans=[TokenSpans.joined(spans)], rows=of)


def _chunks(total: int, windowing: Windowing, after_bos: int) -> Spans:
    """Full chunks of L: each after a BOS, and all L scored, or without, and L - 1."""
    begin = chunk_starts(total, windowing.max_length)
    return (begin, begin + windowing.max_length, begin + 1 - after_bos, np.full_like(begin, after_bos))


BOS_CHUNKS = Convention(
    name="bos-chunks",
    read=_read_lines,
    windows=lambda total, windowing, _: _chunks(total, windowing, 1),
    prefix=lambda tokenizer: tokenizer.bos,
    needs_prefix=True,
    tokens_needed=lambda length, _: length,
)


# ``gptq``: full chunks of 2048 without a BOS of their own, the mean over chunks; the tables of GPTQ and AWQ.
GPTQ = Convention(
    name="gptq",
    # The loaders of GPTQ and AWQ call ``tokenizer(text).input_ids``, which keeps the special tokens.
    read=lambda corpus, _, tokenizer: joined(corpus, tokenizer, join="\n\n", special=True),
    windows=lambda total, windowing, _: _chunks(total, windowing, 0),
    tokens_needed=lambda length, _: length,
)


# ``llama.cpp``: chunks of which the later half is scored, with the program's own error; ``llama-perplexity``.
def _later_halves(total: int, windowing: Windowing, adds_bos: bool) -> Spans:
    """Full chunks of n_ctx; the later half is scored; a BOS takes the place of each chunk's first token."""
    length, bos = windowing.max_length, int(adds_bos)
    # Positions below are in the stream without its leading BOS: chunk k reads [BOS] + stream[k*n + 1 : (k+1)*n].
    begin = chunk_starts(total + bos, length)
    return (begin, begin + length - bos, begin + length // 2 + 1 - bos, np.full_like(begin, bos))


LLAMA_CPP = Convention(
    name="llama.cpp",
    windows=_later_halves,
    prefix=lambda tokenizer: tokenizer.bos if tokenizer.adds_bos else None,
    tokens_needed=lambda length, tokenizer: 2 * length - tokenizer.adds_bos,
)


# ``lm-eval``: each document after a prefix token, as ``loglikelihood_rolling`` of lm-evaluation-harness 0.4.13.
def _as_harness(tokenizer: TokenizerFacts, text: str, add_bos_token: bool | None) -> tuple[Ints, TokenSpans | None]:
    """Encode as the harness does (``HFLM.tok_encode``) with a tokenizer that it loaded by `add_bos_token`.

    False drops all special tokens. None keeps those that the tokenizer adds by itself. True has it add a BOS and
    nothing else, so an EOS that it would add is dropped. With None and True, a text that already begins with the text
    of the prefix token gets no special tokens.
    """
    plain = tokenizer.cut(text)
    if add_bos_token is False:
        return plain
    prefix = _bos_or_eos(tokenizer)
    if prefix is not None and text.startswith(tokenizer.decode(prefix)):
        return plain
    if add_bos_token is None:
        return tokenizer.cut(text, special=True)
    if tokenizer.bos is None:
        return plain
    ids, spans = plain
    return np.append(tokenizer.bos, ids), spans and TokenSpans(
        text, np.append(0, spans.begins), np.append(0, spans.ends)
    )


def _bos_or_eos(tokenizer: TokenizerFacts) -> int | None:
    return tokenizer.eos if tokenizer.bos is None else tokenizer.bos


def _rolling(total: int, windowing: Windowing, _: bool) -> Spans:
    """First window after the prefix; later windows score k targets from a full L tokens of context."""
    if total == 0:
        return (NO_WINDOWS, NO_WINDOWS, NO_WINDOWS, NO_WINDOWS)
    first = np.arange(0, total, windowing.max_length, dtype=np.int64)
    end = np.minimum(first + windowing.max_length, total)
    begin = np.maximum(end - windowing.max_length - 1, 0)
    begin[0] = 0
    prefix = np.zeros_like(begin)
    prefix[0] = 1
    return (begin, end, first, prefix)


LM_EVAL = Convention(
    name="lm-eval",
    read=lambda corpus, windowing, tokenizer: documents(
        corpus, lambda text: _as_harness(tokenizer, text, windowing.add_bos_token)
    ),
    windows=_rolling,
    prefix=_bos_or_eos,
    needs_prefix=True,
    tokens_needed=lambda *_: 1,
    reads_last=False,
)


# Names are listed in this order; the first is the default.
PROTOCOLS: Mapping[str, Convention] = {
    protocol.name: protocol for protocol in (SLIDING, DISJOINT, BOS_CHUNKS, GPTQ, LLAMA_CPP, LM_EVAL, DOCUMENT)
}


@dataclass(frozen=True)
class WindowPlan:
    """Windows in the order of the text; every array has the shape ``[windows]``."""

    document: Ints  # index of the stream that the window reads
    begin: Ints  # first token read
    end: Ints  # one past the last token scored
    first: Ints  # first token scored
    prefix: NDArray[np.bool_]  # whether a prefix token (BOS) is read before `begin`
    reads_last: bool = False  # whether the protocol's own program reads the last target too; see `Request.follows`

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def targets(self) -> Ints:
        """Targets scored in each window."""
        return self.end - self.first

    @property
    def reads(self) -> Ints:
        """Tokens fed in each window: prefix included, the last target not."""
        return self.end - 1 - self.begin + self.prefix


def plan_windows(windowing: Windowing, lengths: Sequence[int], *, adds_bos: bool = True) -> WindowPlan:
    """Plan the windows of each document that score at least one target, in the order of the text.

    If the tokenizer adds a BOS, the stream of some protocols starts with one, which is not part of `lengths`.
    """
    parts = [PROTOCOLS[windowing.protocol].windows(int(length), windowing, adds_bos) for length in lengths]
    document = np.repeat(np.arange(len(parts), dtype=np.int64), [len(part[0]) for part in parts])
    begin, end, first, prefix = (np.concatenate([part[i] for part in parts] or [NO_WINDOWS]) for i in range(4))
    kept = end > first
    reads_last = PROTOCOLS[windowing.protocol].reads_last
    return WindowPlan(document[kept], begin[kept], end[kept], first[kept], prefix[kept].astype(bool), reads_last)


def tokens_needed(windowing: Windowing, tokenizer: TokenizerFacts) -> int:
    """Return the tokens of a text below which a protocol scores nothing."""
    return PROTOCOLS[windowing.protocol].tokens_needed(windowing.max_length, tokenizer)


def tokenize(corpus: Corpus, windowing: Windowing, tokenizer: TokenizerFacts, *, model: str) -> Streams:
    """Turn rows into the token streams that the protocol reads."""
    convention, length = PROTOCOLS[windowing.protocol], windowing.max_length
    streams = convention.read(beginning(corpus, tokenizer), windowing, tokenizer)
    tokens, needed = sum(streams.lengths), tokens_needed(windowing, tokenizer)
    if tokens < needed:
        raise DataError(
            f"dataset {corpus.name!r}: {tokens} token{'s' * (tokens != 1)}, but protocol {windowing.protocol!r} needs "
            f"at least {needed} to score one (max_length={length}); use more text, or a smaller max_length if the "
            "protocol has windows"
        )
    prefix = convention.prefix(tokenizer)
    if prefix is None and convention.needs_prefix:
        raise ModelError(
            f"protocol {convention.name!r} needs a BOS token, but the tokenizer of {model!r} has none; "
            "set bos_token in its tokenizer_config.json, or use protocol='sliding'"
        )
    return replace(streams, prefix=prefix)
