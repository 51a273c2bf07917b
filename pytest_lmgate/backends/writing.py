"""What engines do alike when they write a text: the numbers that a sample is drawn by, the next token, stop strings."""

from __future__ import annotations

__all__ = ["chosen", "cut", "has_stop", "row_seed", "sampling", "uniforms", "written"]

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats
from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.data.tokenization.prompting import PromptIds
from pytest_lmgate.errors import NonFiniteError

# Tokens without a character of their own that may stand among those of a stop string.
_SPARE_TOKENS = 8


def sampling(settings: GenerationSettings) -> dict[str, float]:
    """Return how to choose tokens, as vLLM and OpenAI-compatible servers call it; temperature 0 is greedy."""
    if not settings.is_sampling:
        return {"temperature": 0.0, "top_p": 1.0, "top_k": 0}
    return {
        "temperature": float(settings.temperature or 1.0),
        "top_p": float(settings.top_p or 1.0),
        "top_k": settings.top_k or 0,
    }


def row_seed(seed: int, row: int) -> int:
    """Return a row's own seed, below 2**32: its text depends on no other row, and rows of equal prompts differ."""
    return int(np.random.SeedSequence([seed, row]).generate_state(1)[0])


def written(
    read: Callable[[Sequence[int]], NDArray[Any]],
    prompt: PromptIds,
    settings: GenerationSettings,
    *,
    text: Callable[[Sequence[int]], str],
    ends: Callable[[int], bool],
    model: str,
) -> tuple[str, int]:
    """Write one text token by token, for an engine that does not do so itself.

    Args:
        read: Reads tokens behind those that it has read, and returns the logits after the last, shape ``[vocabulary]``.
        prompt: What to go on from.
        settings: How to decode; no beam search.
        text: Returns the text of generated tokens, without special tokens.
        ends: Returns whether a token ends a text.
        model: The model's name, for messages.

    Returns:
        The text, and how many tokens were generated.

    Raises:
        NonFiniteError: The logits are NaN or infinite.
    """
    tokens: list[int] = []
    new: Sequence[int] = prompt.ids
    for uniform in uniforms(settings, prompt.row):
        logits = read(new)
        if not np.isfinite(logits.max()):
            raise NonFiniteError(f"model {model!r}: NaN or infinite logits while generating; the weights are damaged")
        token = chosen(logits, settings, float(uniform))
        if ends(token):
            return text(tokens), len(tokens) + 1
        tokens.append(token)
        if has_stop(tokens, text, settings.stop):
            break
        new = [token]
    return text(tokens), len(tokens)


def chosen(logits: NDArray[Any], settings: GenerationSettings, uniform: float) -> int:
    """Return the next token: the most likely one, or the first whose cumulative probability exceeds a number.

    Temperature, top-k and top-p shape the distribution in the order of ``transformers``.

    Args:
        logits: Shape ``[vocabulary]``.
        settings: How to decode.
        uniform: In [0, 1).
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


def uniforms(settings: GenerationSettings, row: int) -> NDArray[np.float64]:
    """Return the numbers in [0, 1) that a row's tokens are drawn by, shape ``[max_new_tokens]``; zeros without a seed.

    They depend on the row alone, and so does its text.
    """
    if settings.seed is None:
        return np.zeros(settings.max_new_tokens)
    return np.random.Generator(np.random.PCG64([settings.seed, row])).random(settings.max_new_tokens)


def has_stop(tokens: Any, decode: Callable[[Any], str], stops: Sequence[str]) -> bool:
    """Return whether a text has a stop string; looks at the last few tokens first, which is cheap.

    Args:
        tokens: Of the text so far, a sequence that can be sliced.
        decode: Returns the text of such tokens.
        stops: Strings that end a text.
    """
    if not stops:
        return False
    tail = max(len(stop.encode()) for stop in stops) + _SPARE_TOKENS
    return all(any(stop in text for stop in stops) for text in map(decode, (tokens[-tail:], tokens)))


def cut(text: str, stops: Sequence[str]) -> str:
    """Return a text up to the first stop string."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends, default=len(text))]
