"""What every engine does alike when it writes a text: the numbers that a sample is drawn by, and stop strings."""

from __future__ import annotations

__all__ = ["cut", "has_stop", "uniforms"]

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.config.generation import GenerationSettings

# Tokens without a character of their own that may stand among those of a stop string.
_SPARE_TOKENS = 8


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
