"""Choosing the next token: greedily, or by a row's own random numbers, so that a text depends on its row alone."""

from __future__ import annotations

__all__ = ["chosen"]

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.config.generation import GenerationSettings

Floats = NDArray[np.float64]


def chosen(logits: NDArray[np.float32], settings: GenerationSettings, uniform: float) -> int:
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
