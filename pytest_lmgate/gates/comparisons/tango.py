"""Tango's score test: how many more rows a candidate gets wrong than its reference, row by row.

Of n rows, b were right and are wrong now, c the other way round. Only rows that changed count, and there may be none:
Student's t then sees no noise at all and passes ten rows as a thousand. The score test asks how likely such rows
are if the loss were just the tolerance (Tango 1998, Statistics in Medicine 17, 891-908, equations 9 and 11).
"""

from __future__ import annotations

__all__ = ["Changes", "rows_without_change", "tango_bounds", "tango_z"]

import math
from dataclasses import dataclass

import numpy as np

from pytest_lmgate.metrics.noise.proportion import Outcomes


@dataclass(frozen=True)
class Changes:
    """Rows that changed; where rows come in clusters, all three are divided by the design effect of the changes.

    Attributes:
        n: Rows.
        lost: b, right under the reference and wrong under the candidate.
        gained: c, wrong under the reference and right under the candidate.
    """

    n: float
    lost: float
    gained: float

    @classmethod
    def of(cls, candidate: Outcomes, reference: Outcomes) -> Changes:
        """Count the changed rows of two models on the same rows."""
        change = reference.right.astype(np.float64) - candidate.right
        lost, gained, n = float((change > 0).sum()), float((change < 0).sum()), candidate.n
        variance = (lost + gained - (lost - gained) ** 2 / n) / n**2
        effect = candidate.design_effect(change, variance)
        return cls(n / effect, lost / effect, gained / effect)

    @property
    def loss(self) -> float:
        """Share of rows lost less share gained; larger is worse."""
        return (self.lost - self.gained) / self.n


def tango_z(changes: Changes, loss: float) -> float:
    """Return ``Z = (b - c - n T) / sqrt(n (2 q + T (1 - T)))``, the measured loss above T in standard errors under T.

    Args:
        changes: Rows that changed.
        loss: T, the true loss that is supposed, above -1 and below 1.
    """
    n, b, c = changes.n, changes.lost, changes.gained
    first, second, third = 2 * n, -b - c + (2 * n - b + c) * loss, -c * loss * (1 - loss)
    # q and q + T are probabilities; of tiny numbers rounding may leave less than nothing.
    q = max(0.0, -loss, (math.sqrt(max(0.0, second**2 - 4 * first * third)) - second) / (2 * first))
    distance, variance = b - c - n * loss, n * (2 * q + loss * (1 - loss))
    if variance <= 0:  # at T = 0 without a changed row, or at an end of the range
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)


def tango_bounds(changes: Changes, z: float) -> tuple[float, float]:
    """Return the losses at which Z is `z` and ``-z``: the one-sided lower and upper bound."""
    return _at(changes, z, -1.0, changes.loss), _at(changes, -z, changes.loss, 1.0)


def rows_without_change(tolerance: float, z: float) -> int:
    """Return how many rows without a change show a loss of at most the tolerance: ``z^2 (1 - T) / T``."""
    return math.ceil(z**2 * (1 - tolerance) / tolerance)


def _at(changes: Changes, z: float, low: float, high: float) -> float:
    """Solve ``Z(T) = z`` by bisection; Z falls as T rises."""
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if tango_z(changes, middle) > z else (low, middle)
    return (low + high) / 2
