"""Trials: a model is tried out before its numbers count, all that it gives is checked, and its exceptions explained.

A causal model is tried on the first text that it has to read, once, and not again in later sessions that find the proof
in the cache: by `Runner.probe` where its engine has that, else by `Runner.score`, or by `Runner.distributions` for a
divergence. A model that looks ahead, by one token or by many, sees the very tokens it has to predict, and its
perplexity means nothing: BERT without ``is_decoder``, XLNet, prefix models within their prefix, an attention mask that
is off by one. An engine whose numbers are no negative logarithms of probabilities, or that ignores what it is asked
for, would pass gates as well.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.engines.base import Batching, OutOfMemory, Runner, checked
from pytest_lmgate.engines.registry import raised
from pytest_lmgate.errors import EngineError, LmgateError, ModelError, UnreliableError
from pytest_lmgate.windows.requests import Request, Requests, read_once

_CAUSAL = "causal"  # the proof that a model has passed the trials, see `Runner.proofs`


@contextlib.contextmanager
def explained(model: str, what: Callable[[], str], *, halves: bool = False) -> Iterator[None]:
    """Turn a model's exceptions into errors that name the model and its input, as in ``a window of 512 tokens``.

    With `halves`, `OutOfMemory` passes, for a caller that retries with less.
    """
    try:
        yield
    except LmgateError:
        raise
    except OutOfMemory as error:
        if halves:
            raise
        details = f" ({error.details})" if error.details else ""
        raise EngineError(
            f"model {model!r}: out of memory with {what()} alone on {error.where}; use shorter inputs (max_length), "
            f"dtype: bfloat16, or a device with more memory{details}"
        ) from error
    except Exception as error:
        raise EngineError(
            f"model {model!r}: running {what()} failed: {raised(error)}; an input beyond the model's context can cause "
            "this"
        ) from error


# Tokens of the texts that are read before and after a measurement, and those over which their numbers are averaged.
_SHORTEST, _LONGEST, _CHUNK = 4, 2048, 16
# By how much their numbers may move, relative to their mean and to 1 nat at least: half precision and other batches
# move those of single tokens, but not all of a chunk by so much.
_MOVED = 0.1


@contextlib.contextmanager
def reread(runner: Runner, requests: Requests, model: str) -> Iterator[None]:
    """Read texts with a common beginning before and after a measurement, or refuse numbers that have changed.

    A server may answer wrongly from what it read before (vllm#42019), in blocks of so many tokens that shorter texts do
    not show it. So these are as long as the longest request. Their tokens are drawn from it, because an earlier session
    may have read the dataset's own texts. A server that does not take them, as it cuts text into tokens itself, reads
    the longest request again.
    """
    longest = requests.make(int(requests.order[0]))
    if not runner.rereads or longest.source is not None or not requests.may_pad or len(longest.ids) < _SHORTEST:
        yield
        return

    def read(*asked: Request) -> list[Floats]:
        with explained(model, lambda: f"a trial of {len(asked[0].ids):,} tokens"):
            return _finite(_scored(runner, [each], model)[0] for each in asked)

    text, between, alike = _drawn(longest.ids)
    try:
        before, _, after = read(text, between, alike)
    except (EngineError, ModelError):
        text = replace(longest, greedy=False)
        before = after = read(text)[0]
    _require_same(before, after, model)
    yield
    _require_same(before, read(text)[0], model)


def _drawn(ids: Ints) -> list[Request]:
    """Return three texts of tokens drawn from `ids`; the third differs from the first in the last token only."""
    generator, size = np.random.default_rng(), min(len(ids), _LONGEST)
    text, between = generator.choice(ids, (2, size))
    alike = np.append(text[:-1], np.abs(text[-1:] - 1))
    # Some servers give no likelihood of the token after a BOS.
    return [Request(row, np.arange(1, size - 1), row[2:]) for row in (text, between, alike)]


def _require_same(before: Floats, after: Floats, model: str) -> None:
    """Refuse NLLs of equal tokens, shape ``[targets]``, that differ; the last token may be another."""
    moved, size = np.abs(after - before)[:-1], float(before.mean())
    most = max((float(moved[begin : begin + _CHUNK].mean()) for begin in range(0, len(moved), _CHUNK)), default=0.0)
    if most > _MOVED * max(1.0, size):
        raise UnreliableError(
            f"model {model!r}: the likelihoods of one text changed by {most:.3g} nats per token when it was read again "
            f"(they were {size:.3g}): it may answer from what it read before, and wrongly; switch that off (in vLLM by "
            "--no-enable-prefix-caching), or use another version; nothing of this measurement is kept"
        )


_TOKENS = 24
# Positions of the tokens that are changed, one in each row. The first ones are inside any prefix, and inside any block
# that is read both ways; the last ones have up to 23 tokens before them that a mask could show them to.
_CHANGED = (1, 2, 5, 10, 17, 23)
# And positions from which on every token is changed: a model that sees little of each later token sees more of many.
_CHANGED_FROM = (3, 12)
_FLOAT32_ROUNDING = 1e-5
# Two readings of one text may differ by so much where sums of float32 are added up in another order.
_SAME = 1e-4
# Int8 activations with one scale for a whole row let later tokens through: 0.07 to 0.51 of what a token changes at the
# position after its own (16 models, trained and fresh). Masks that look 1, 2 and 8 tokens ahead, prefixes and blocks
# let through 1.06 times as much and up to 38 times (48 models). A scale for each token (bitsandbytes), or one for the
# whole batch (torch's dynamic int8), lets nothing through between the rows of one batch.
_LEAK = 0.75
# Tokens that are scored after each token where an engine has no `probe`, and in one place to sum their probabilities.
_SCORED, _SUMMED, _BEFORE = 4, 64, 4
_ABOVE_ONE = 1e-2
# Returns numbers of the distribution after each token of some rows, shape ``[tokens, numbers]`` for each.
_Read = Callable[[Sequence[Ints]], list[Floats]]


def prepared_to_score(runner: Runner, requests: Requests, model: str, *, compare: bool = False) -> Batching:
    """Prepare a runner for the requests, and test it once; see `Runner.prepare` and `try_out`."""
    first = requests.make(int(requests.order[0]))
    require_ids([first.ids], model)
    batching = runner.prepare(requests, compare=compare)
    # Masked copies are of one length, and have no order to keep to.
    if runner.is_tried or first.source is not None or not requests.may_pad:
        return batching
    if not _is_causal_still(runner, first.ids, model, compare=compare):
        try_out(runner, first.ids, batching, model, compare=compare)
    if len(first.ids) >= _TOKENS:
        runner.is_tried, runner.proofs = True, {**runner.proofs, _CAUSAL: True}
    return batching


def _is_causal_still(runner: Runner, text: Ints, model: str, *, compare: bool) -> bool:
    """Return whether an earlier session proved a model causal, and a text still has its numbers with another end.

    A proof may be of a model that somebody has patched since, or may be forged: a row shows what most trials would.
    """
    if runner.proofs.get(_CAUSAL) is not True or len(text) < _TOKENS:
        return False
    ids = text[:_TOKENS]
    read = _reader(runner, np.unique(ids)[:_SCORED], model, compare=compare)
    ahead = 0 if runner.any_target else 1
    return _leak_and_reach(read, ids, runner.epsilon, ahead, single=(), several=_CHANGED_FROM[-1:])[0] == 0


def try_out(runner: Runner, ids: Ints, batching: Batching, model: str, *, compare: bool = False) -> None:
    """Refuse a causal model that gives two numbers for one text, or whose likelihoods depend on later tokens.

    Also refuse NLLs that cannot be negative logarithms of probabilities, if the engine has no `probe`.

    Of the text's `ids`, shape ``[tokens]``, 24 are read: this detects masks that look up to 23 tokens ahead. In each
    row of one batch another token, or all tokens from one on, are changed. No earlier position may see this: the mean
    change of its numbers may only be rounding, `Runner.epsilon` (at least 1e-5) times their mean size. Quantized
    activations leak a little more; accepted are up to 0.75 times the change at the next position, the median over the
    rows.
    """
    text, ids = ids, ids[:_TOKENS]
    if len(ids) < 2:
        return
    probed, ahead = runner.probe([ids]), 0
    if probed is None and not compare:
        _require_probabilities(runner, text, batching, model)
        # The likelihood of a token that follows depends on that token too.
        ahead = 0 if runner.any_target else 1
    read = _reader(runner, np.unique(ids)[:_SCORED], model, compare=compare)
    whole, again = (read([ids]) if probed is None else _finite(probed))[0], read([ids])[0]
    if np.abs(whole - again).mean() > max(runner.epsilon, _SAME) * np.abs(whole).mean():
        raise ModelError(
            f"model {model!r} is not deterministic: it gave two different likelihoods for the same text, but a gate "
            "needs the same number twice; switch off its randomness"
        )
    try:
        leak, reach = _leak_and_reach(read, ids, runner.epsilon, ahead)
    except OutOfMemory:
        leak = reach = math.nan
    # Alone, nothing is shared out in a batch, as mixtures of experts share their capacity.
    if not leak <= _LEAK * reach:
        leak, reach = _leak_and_reach(lambda rows: [read([row])[0] for row in rows], ids, runner.epsilon, ahead)
    if leak > _LEAK * reach:
        raise ModelError(
            f"perplexity is undefined for the model {model!r}: its likelihood of a token depends on the tokens after "
            "it, but a causal model was expected; if it was trained as one, its config may lack is_decoder: true, or "
            "its attention mask looks ahead"
        )


def require_ids(texts: Iterable[Ints | Sequence[int]], model: str) -> None:
    """Refuse token ids below 0, which would index from the end of a vocabulary."""
    if (lowest := min((int(np.min(ids)) for ids in texts), default=0)) < 0:
        raise ModelError(f"model {model!r}: its tokenizer gives token id {lowest}: expected 0 or more")


def _leak_and_reach(
    read: _Read,
    ids: Ints,
    epsilon: float,
    ahead: int,
    single: Sequence[int] = _CHANGED,
    several: Sequence[int] = _CHANGED_FROM,
) -> tuple[float, float]:
    """Change later tokens, at single positions and from others on, and compare the numbers with the row unchanged.

    Return the largest mean change at a position before a changed token (0 if it is rounding), and the median over the
    rows of the mean change at the next position.
    """
    # Its neighbour in the vocabulary: always another token, always a valid one.
    other = np.abs(ids - 1)
    # A short text has its last token changed instead of those that it lacks.
    single = sorted({min(at, len(ids) - 1) for at in single})
    rows = [ids, *(np.concatenate([ids[:at], other[at : at + 1], ids[at + 1 :]]) for at in single)]
    several = [at for at in several if at < len(ids) - 1]
    rows += [np.concatenate([ids[:at], other[at:]]) for at in several]
    unchanged, *changed = read(rows)
    changes = [np.abs(numbers - unchanged).mean(-1) for numbers in changed]
    leak = max(
        float(change[: at - ahead].max(initial=0.0)) for at, change in zip([*single, *several], changes, strict=True)
    )
    reach = [float(change[at + 1]) for at, change in zip(single, changes, strict=False) if at + 1 < len(change)]
    rounding = max(epsilon, _FLOAT32_ROUNDING) * float(np.abs(unchanged).mean())
    return leak if leak > rounding else 0.0, float(np.median(reach)) if reach else 0.0


def _reader(runner: Runner, tokens: Ints, model: str, *, compare: bool) -> _Read:
    score = partial(_scored_tokens, tokens=tokens) if runner.any_target else _scored_next

    def read(rows: Sequence[Ints]) -> list[Floats]:
        found = runner.probe(rows)
        if found is None and compare:  # logits or states after each token
            asked = [[Request(row, np.arange(len(row)), row)] for row in rows]
            found = [runner.distributions(each).stored().float().cpu().numpy() for each in asked]
        return _finite(score(runner, rows, model) if found is None else found)

    return read


def _finite(found: Iterable[Floats]) -> list[Floats]:
    """Return numbers without extremes: a forbidden token says nothing."""
    return [np.nan_to_num(numbers).clip(-1e4, 1e4) for numbers in found]


def _scored_tokens(runner: Runner, rows: Sequence[Ints], model: str, *, tokens: Ints) -> list[Floats]:
    """Return the NLLs of a few tokens after each token of each row."""
    asked = [Request(row, np.arange(len(row)), np.full(len(row), token)) for row in rows for token in tokens]
    try:
        found = _scored(runner, asked, model)
    except (LmgateError, OutOfMemory):
        raise
    except Exception as error:  # anything an engine raises
        raise EngineError(
            f"model {model!r}: scoring targets that are not the tokens that follow failed: {raised(error)}; an engine "
            "that can score these alone says any_target = False"
        ) from error
    numbers = [np.stack(found[at : at + len(tokens)], -1) for at in range(0, len(found), len(tokens))]
    # A uniform distribution is the same everywhere. What follows the last token is in no text.
    if len(tokens) > 1 and np.ptp(numbers[0][:-1]) > 0 and not any(np.ptp(each[:-1], -1).any() for each in numbers):
        raise EngineError(
            f"model {model!r}: {len(tokens)} different tokens are equally likely at each position of a text: does its "
            "engine look at the targets? One that can score only the tokens that follow says any_target = False"
        )
    return numbers


def _scored_next(runner: Runner, rows: Sequence[Ints], model: str) -> list[Floats]:
    """Return the NLL of each token that follows another in each row."""
    asked = [Request(row, np.arange(len(row) - 1), row[1:]) for row in rows]
    return [nll[:, None] for nll in _scored(runner, asked, model)]


def _scored(runner: Runner, asked: Sequence[Request], model: str) -> list[Floats]:
    found = checked(runner.score(asked), model)
    shapes, expected = [nll.shape for nll in found], [each.targets.shape for each in asked]
    if shapes != expected:
        raise EngineError(f"model {model!r}: expected NLLs of the shapes {expected[:3]}..., got {shapes[:3]}...")
    return found


def _require_probabilities(runner: Runner, ids: Ints, batching: Batching, model: str) -> None:
    """Refuse NLLs of tokens at one position whose probabilities sum to more than 1, as with zeros and other bases."""
    # Those of the text, which may be likely, and then their neighbours in the vocabulary.
    values, counts = np.unique(np.concatenate([ids, ids, np.abs(ids - 1)]), return_counts=True)
    tokens = values[np.argsort(-counts, kind="stable")][:_SUMMED]
    before = ids[:_BEFORE]
    asked = [Request(before, np.array([len(before) - 1]), np.array([token])) for token in tokens]
    joined, parted = read_once(asked) if batching.dedup_reads else (asked, list)
    nll = np.concatenate(parted(_scored(runner, joined, model)))
    # Negative and other impossible ones are errors where they are measured, which name the token.
    if np.isfinite(nll).all() and nll.min() > -_ABOVE_ONE and (total := float(np.exp(-nll).sum())) > 1 + _ABOVE_ONE:
        raise EngineError(
            f"model {model!r}: the probabilities of {len(tokens)} different tokens after one text sum to {total:.4g}: "
            "expected 1 or less; its engine has to give negative natural logarithms of probabilities, each that of its "
            "own target"
        )
