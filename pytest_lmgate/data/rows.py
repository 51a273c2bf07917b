"""Which row each token of a running text came from: noise is judged between rows, also where they were joined.

A fast tokenizer says where in the text each token begins. Of others each row is tokenized alone, and the boundaries lie
where these counts, scaled to the whole, put them; a boundary that is off by a few tokens hardly changes a sum of a row.
"""

from __future__ import annotations

__all__ = ["row_targets", "rows_by_counts", "rows_by_starts"]

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pytest_lmgate.data.windows import WindowPlan

Ints = NDArray[np.int64]


def rows_by_starts(starts: Sequence[int], rows: Sequence[str], join: str) -> Ints:
    """Return the row of each token from where tokens begin, shape ``[tokens]``; a join belongs to the row before it.

    The first character of each token is in `starts`, ``[tokens]``; special tokens, which have none, say 0.
    """
    lengths = np.array([len(row) + len(join) for row in rows], dtype=np.int64)
    begins = np.cumsum(lengths) - lengths
    found = np.searchsorted(begins, np.asarray(starts, dtype=np.int64), side="right") - 1
    return np.maximum.accumulate(found)  # a special token at the end says 0 too


def rows_by_counts(counts: Sequence[int], tokens: int) -> Ints:
    """Return the row of each of so many tokens, shape ``[tokens]``, from how many tokens each row has alone."""
    ends = np.cumsum(counts) * (tokens / max(1, sum(counts)))
    found = np.searchsorted(np.round(ends), np.arange(tokens), side="right")
    return np.minimum(found, len(counts) - 1).astype(np.int64)


def row_targets(plan: WindowPlan, rows: Ints | None) -> Ints | None:
    """Return how many targets each row has, in the order of the plan, shape ``[rows]``; None where rows are unknown.

    The plan is of a single stream, and `rows` has the row of each of its tokens, shape ``[tokens]``.
    """
    if rows is None:
        return None
    windows = [rows[first:end] for first, end in zip(plan.first, plan.end, strict=True)]
    return np.bincount(np.concatenate(windows))
