"""Which row each token of a running text came from: noise is judged between rows, also where they were joined.

A fast tokenizer says where in the text each token begins. Of others each row is tokenized alone, and the boundaries lie
where these counts, scaled to the whole, put them; a boundary that is off by a few tokens hardly changes a sum of a row.
"""

from __future__ import annotations

__all__ = ["row_begins", "row_targets", "rows_by_counts", "rows_by_starts"]

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pytest_lmgate.arrays import Ints

if TYPE_CHECKING:
    from pytest_lmgate.data.requests.windows import WindowPlan


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
    """Return the row of each of so many tokens, shape ``[tokens]``, from how many tokens each row has alone."""
    ends = np.cumsum(counts) * (tokens / max(1, sum(counts)))
    found = np.searchsorted(np.round(ends), np.arange(tokens), side="right")
    return np.minimum(found, len(counts) - 1).astype(np.int64)


def row_targets(plan: WindowPlan, rows: Ints | None) -> Ints | None:
    """Return how many targets each row has, in the order of the plan, shape ``[rows]``; None where rows are unknown.

    The plan is of a single stream, and each window's targets are behind those of the window before. The row of each of
    the stream's tokens is in `rows`, shape ``[tokens]``, which do not decrease.
    """
    if rows is None:
        return None
    # The type of `rows`, which would else be copied.
    begins = np.searchsorted(rows, np.arange(int(rows[-1]) + 2, dtype=rows.dtype))
    # The targets before each row's first token: those of all windows that end there, and some of the next one's.
    window = np.minimum(np.searchsorted(plan.end, begins, side="right"), len(plan) - 1)
    whole = np.cumsum(plan.targets) - plan.targets
    before = whole[window] + np.clip(begins - plan.first[window], 0, plan.targets[window])
    counts: Ints = np.trim_zeros(np.diff(before), "b")
    return counts
