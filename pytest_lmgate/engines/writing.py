"""Writing texts, for all engines: random numbers for sampling, the choice of the next token, stop strings."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats
from pytest_lmgate.engines.base import Drawn
from pytest_lmgate.errors import NonFiniteError
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.tokens import PromptIds

# Tokens without a character of their own, which may be among those of a stop string.
_SPARE_TOKENS = 8
# From token ids, and whether to leave out special tokens, to their text.
Decode = Callable[[Sequence[int], bool], str]


def sampling(settings: GenerationSettings) -> dict[str, float]:
    """Return sampling parameters under the names of vLLM and OpenAI; temperature 0 is greedy."""
    if not settings.is_sampling:
        return {"temperature": 0.0, "top_p": 1.0, "top_k": 0}
    return {
        "temperature": float(settings.temperature or 1.0),
        "top_p": float(settings.top_p or 1.0),
        "top_k": settings.top_k or 0,
    }


def row_seed(seed: int, row: int) -> int:
    """Return a row's own seed, below 2**32, so that its text depends on no other row."""
    return int(np.random.SeedSequence([seed, row]).generate_state(1)[0])


def written(
    read: Callable[[Sequence[int]], NDArray[Any]],
    prompt: PromptIds,
    settings: GenerationSettings,
    *,
    decode: Decode,
    ends: Callable[[int], bool],
    model: str,
) -> tuple[str, int, bool]:
    """Write one text token by token, for an engine that does not do so itself; without beam search.

    Tokens are read after the last ones, the prompt first, for logits of shape ``[vocabulary]``. See `ended_text` for
    what is returned.
    """
    tokens: list[int] = []
    for token, _ in _steps(read, prompt, settings, model):
        tokens.append(token)
        if ends(token) or has_stop(tokens, lambda some: decode(some, False), settings.stop):
            break
    return ended_text(tokens, settings.stop, decode=decode, ends=ends)


def drawn(
    read: Callable[[Sequence[int]], NDArray[Any]],
    prompt: PromptIds,
    settings: GenerationSettings,
    *,
    ends: Callable[[int], bool],
    model: str,
) -> Drawn:
    """Draw tokens up to the end token, which is one of them; see `Runner.sample`, and `written` for the arguments."""
    tokens, nll = [], []
    for token, logits in _steps(read, prompt, settings, model):
        tokens.append(token)
        scores = logits.astype(np.float64) - logits.max()
        nll.append(float(np.log(np.exp(scores).sum()) - scores[token]))
        if ends(token):
            break
    return tokens, nll


def _steps(
    read: Callable[[Sequence[int]], NDArray[Any]], prompt: PromptIds, settings: GenerationSettings, model: str
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield each token that is chosen, and the logits that it was chosen by."""
    new: Sequence[int] = prompt.ids
    for uniform in uniforms(settings, prompt.row):
        logits = read(new)
        if not np.isfinite(logits.max()):
            raise NonFiniteError(f"model {model!r}: NaN or infinite logits while generating; the weights are damaged")
        token = chosen(logits, settings, float(uniform))
        yield token, logits
        new = [token]


def chosen(logits: NDArray[Any], settings: GenerationSettings, uniform: float) -> int:
    """Return the next token by logits, shape ``[vocabulary]``: the likeliest, or a sample by a number in [0, 1).

    The sample is the first token whose cumulative probability exceeds the number. Temperature, top-k and top-p are
    applied in the order of ``transformers``.
    """
    if not settings.is_sampling:
        return int(logits.argmax())
    scores = logits.astype(np.float64) / (settings.temperature or 1.0)
    if settings.top_k is not None and settings.top_k < len(scores):
        scores[scores < np.partition(scores, -settings.top_k)[-settings.top_k]] = -np.inf
    if settings.top_p is not None:
        order = np.argsort(scores, kind="stable")
        unlikely = order[np.cumsum(_softmax(scores)[order]) <= 1 - settings.top_p]
        scores[unlikely[unlikely != order[-1]]] = -np.inf
    cumulative = np.cumsum(_softmax(scores))
    drawn = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
    return min(int(drawn), len(scores) - 1)


def _softmax(scores: Floats) -> Floats:
    exponentials = np.exp(scores - scores.max())
    found: Floats = exponentials / exponentials.sum()
    return found


def uniforms(settings: GenerationSettings, row: int) -> Floats:
    """Return a row's random numbers in [0, 1), shape ``[max_new_tokens]``; zeros without a seed."""
    if settings.seed is None:
        return np.zeros(settings.max_new_tokens)
    return np.random.Generator(np.random.PCG64([settings.seed, row])).random(settings.max_new_tokens)


def has_stop(tokens: Any, decode: Callable[[Any], str], stops: Sequence[str]) -> bool:
    """Return whether the text of some tokens, a sliceable sequence, has a stop string.

    Decodes the last few tokens first, which is cheap.
    """
    if not stops:
        return False
    tail = max(len(stop.encode()) for stop in stops) + _SPARE_TOKENS
    return all(any(stop in text for stop in stops) for text in map(decode, (tokens[-tail:], tokens)))


def ended_text(
    ids: Sequence[int], stops: Sequence[str], *, decode: Decode, ends: Callable[[int], bool]
) -> tuple[str, int, bool]:
    """Return the text of generated token ids up to the first end token or stop string, without special tokens.

    A stop string may name special tokens, or a part of one, so it is looked for in the text that has them. Also return
    the number of tokens up to the end token, which is one of them, and whether an end token or a stop string was there.
    """
    own = list(takewhile(lambda token: not ends(token), ids))
    count, whole = min(len(own) + 1, len(ids)), decode(own, False)
    kept = cut(whole, stops)
    if kept == whole:
        return decode(own, True), count, len(own) < len(ids)
    # The fewest tokens that have this text. The last may have more, which its text without special tokens loses, too;
    # a special token has none there.
    fewest = bisect_left(range(len(own)), True, key=lambda size: decode(own[:size], False).startswith(kept))
    read, before = own[:fewest], decode(own[: max(0, fewest - 1)], True)
    text = decode(read, True)
    return text[: max(len(before), len(text) - len(decode(read, False)) + len(kept))], count, True


def cut(text: str, stops: Sequence[str]) -> str:
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends, default=len(text))]
