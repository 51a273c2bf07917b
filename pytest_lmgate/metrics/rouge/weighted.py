"""Weighted longest common subsequence: ``f(k) = k ** exponent`` for k matches in a row (Lin 2004, 4)."""

from __future__ import annotations

__all__ = ["weight", "weight_inverse", "weighted_table"]

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate


def weight(length: float, exponent: float) -> float:
    """Return f(length), the weight of that many matches in a row."""
    return math.pow(length, exponent)


def weight_inverse(value: float, exponent: float) -> float:
    """Return the length whose weight is `value`."""
    return math.pow(value, 1 / exponent)


def weighted_table(
    candidate: Sequence[str], reference: Sequence[str], exponent: float, *, stepwise: bool = False
) -> list[list[float]]:
    """Return the dynamic programming table of Lin 2004, section 4, shape ``[reference + 1, candidate + 1]``.

    Where words match, a cell extends the run on its diagonal; elsewhere it is the larger of its upper and left
    neighbours. The last cell is the weighted length; as a match is always taken, a larger one may exist.

    Args:
        candidate: Tokens.
        reference: Tokens.
        exponent: Of f.
        stepwise: Add ``f(k+1) - f(k)`` at each match, rounding each time, as ROUGE-1.5.5 does; else add f of the
            whole run to what stood before it, so that the weight of identical texts is exact.
    """
    weights = [weight(k, exponent) for k in range(len(reference) + 1)]
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, word in enumerate(candidate, start=1):
        places[word].append(place)
    row = [0.0] * (len(candidate) + 1)
    table = [row]
    runs: dict[int, tuple[int, float]] = {}  # end of a run of matches -> its length, what stood before it
    for word in reference:
        above, runs_above = row, runs
        row, runs = [], {}
        begin, value = 0, 0.0
        for place in places.get(word, ()):
            row.extend(accumulate(above[begin + 1 : place], max, initial=value))
            length, before = runs_above.get(place - 1, (0, above[place - 1]))
            runs[place] = length + 1, before
            if stepwise:
                value = above[place - 1] + weights[length + 1] - weights[length]
            else:
                value = before + weights[length + 1]
            begin = place
        row.extend(accumulate(above[begin + 1 :], max, initial=value))
        table.append(row)
    return table
