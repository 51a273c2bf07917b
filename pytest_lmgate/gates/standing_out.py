"""Which of several costs stand out from the others: the layers that hold a damage, among those with ordinary rounding.

The costs of a model's layers differ by factors rather than by amounts, so their logarithms are compared. A cost stands
out if its lower bound is more than twice the median of the others, and further above it than 6.5 times their median
absolute deviation. Of models with 12 blocks and more whose costs differ by chance (log-normally), 5 % have a block that
far out: a simulation in tests/gates/test_standing_out.py.
"""

from __future__ import annotations

__all__ = ["standing_out"]

import math
from collections.abc import Sequence

import numpy as np

_OUTLIER = 6.5
_TWICE = math.log(2)


def standing_out(costs: Sequence[float], least: Sequence[float | None], *, smallest: float) -> list[int]:
    """Return the indices of the costs that stand out, the largest first.

    Args:
        costs: At least three, from 0.
        least: A lower bound of each; None where its noise is not known, so that it cannot stand out.
        smallest: Costs below this are taken as this: differences of rounding.
    """
    logs = np.log(np.maximum(costs, smallest))
    found = []
    for index, bound in enumerate(least):
        others = np.delete(logs, index)
        median = float(np.median(others))
        spread = float(np.median(np.abs(others - median)))
        if bound is not None and math.log(max(bound, smallest)) > median + max(_TWICE, _OUTLIER * spread):
            found.append(index)
    return sorted(found, key=lambda index: -costs[index])
