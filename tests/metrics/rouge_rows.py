"""ROUGE of a corpus in columns, as the oracles print it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pytest_lmgate.metrics.rouge import RowScorer, rouge


class Rows(NamedTuple):
    """Scores and counts of each row; every array has the shape ``[rows]``."""

    precision: np.ndarray
    recall: np.ndarray
    fmeasure: np.ndarray
    match: np.ndarray
    candidate: np.ndarray
    reference: np.ndarray
    chosen: np.ndarray

    def mean(self) -> tuple[float, ...]:
        """Return the plain means of precision, recall and F over rows."""
        return tuple(float(column.mean()) for column in self[:3])


def rouge_rows(predictions: Sequence[str], references: Sequence[Sequence[str]], **options: object) -> Rows:
    """Score each prediction against its references."""
    scorer = rouge(**options).statistics.__self__  # whose method it is
    assert isinstance(scorer, RowScorer)
    scored = [scorer.row(*each) for each in zip(predictions, references, strict=True)]
    rows = ((*scores, *overlap, chosen) for scores, overlap, chosen in scored)
    return Rows(*map(np.array, zip(*rows, strict=True)))
