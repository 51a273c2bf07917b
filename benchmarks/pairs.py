"""Simulated pairs of models on one text, with a known change: document lengths, and sums of differences by document.

A repetition is a text with its documents; all are drawn at once, as arrays of shape ``[repetitions, documents]``.
Tokens are not drawn one by one: a document's mean is normal around its effect, and squares around it are chi-squared.
"""

from __future__ import annotations

__all__ = [
    "CONFIDENCE", "EFFECTS", "LIMIT", "MEDIAN_TOKENS", "TOLERANCE", "TRUTHS", "Floats", "Noise", "Pairs", "simulate",
]  # fmt: skip

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from bell_mccaffrey import degrees_of_freedom
from numpy.typing import NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]

TOLERANCE, CONFIDENCE = 0.01, 0.95
LIMIT = math.log1p(TOLERANCE)
MEDIAN_TOKENS = 400
# One model's own NLL varies far more than the difference of two models: between documents, and between tokens.
OWN_DOCUMENTS, OWN_TOKENS = 0.4, 2.5
TRUTHS = ("at the tolerance", "no change", "no change, adequate sample")


def _lognormal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return (rng.lognormal(0, 1, shape) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)


EFFECTS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Floats]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "exponential": lambda rng, shape: rng.standard_exponential(shape) - 1,
    "lognormal": _lognormal,
}


@dataclass(frozen=True)
class Noise:
    """Differences of NLL between two models, in nats: standard deviation of a document's own effect, and of its tokens.

    Attributes:
        documents: Of the effects.
        tokens: Of a token around its document's mean.
        effects: Distribution of the effects, each with mean 0 and variance 1: ``normal``, or ``exponential`` and
            ``lognormal`` (sigma 1), where most documents are a little better and a few much worse.
    """

    documents: float
    tokens: float
    effects: str = "normal"


@dataclass(frozen=True)
class Pairs:
    """Repetitions of one point.

    Attributes:
        true: The true change in nats.
        counts: Tokens, shape ``[repetitions, documents]``.
        sums: The same of the differences.
        iid_variance: Of a token's difference, taking tokens as independent; shape ``[repetitions]``.
        own_variance: The same of a token's NLL under one model.
    """

    true: float
    counts: Floats
    sums: Floats
    iid_variance: Floats
    own_variance: Floats


def simulate(rng: np.random.Generator, noise: Noise, documents: int, spread: float, truth: str, size: int) -> Pairs:
    """Draw `size` repetitions: document lengths, then the differences.

    A sample is adequate where the tolerance is ``2 t_.95 se``, se the true standard error for these lengths and t at
    the Bell-McCaffrey degrees of freedom; the noise is scaled so that each is just that.
    """
    lengths = MEDIAN_TOKENS * np.exp(spread * rng.standard_normal((size, documents)))
    counts = np.maximum(1.0, np.round(lengths))
    total = counts.sum(axis=1)
    scale = np.ones(size)
    if truth == TRUTHS[2]:
        variance = (counts**2).sum(axis=1) * noise.documents**2 + total * noise.tokens**2
        scale = LIMIT / (2 * stdtrit(degrees_of_freedom(counts), CONFIDENCE) * np.sqrt(variance) / total)
    true = LIMIT if truth == TRUTHS[0] else 0.0
    effects = EFFECTS[noise.effects](rng, counts.shape)
    around = rng.standard_normal(counts.shape) / np.sqrt(counts)
    means = true + scale[:, None] * (noise.documents * effects + noise.tokens * around)
    own_means = rng.standard_normal(counts.shape) * np.sqrt(OWN_DOCUMENTS**2 + OWN_TOKENS**2 / counts)
    # Squares within documents are chi-squared, for any lengths.
    within = rng.chisquare(np.maximum(total - documents, 1), size)
    own_within = rng.chisquare(np.maximum(total - documents, 1), size)
    return Pairs(
        true,
        counts,
        counts * means,
        (_between(counts, means) + (scale * noise.tokens) ** 2 * within) / total,
        (_between(counts, own_means) + OWN_TOKENS**2 * own_within) / total,
    )


def _between(counts: Floats, means: Floats) -> Floats:
    overall = (counts * means).sum(axis=1) / counts.sum(axis=1)
    squares: Floats = (counts * (means - overall[:, None]) ** 2).sum(axis=1)
    return squares
