"""What the metrics use of sacrebleu that it keeps private, tried with sacrebleu 2.4 to 2.6.

chrF's score has no public way to its statistics, which rows are added up and drawn again by. sacrebleu's own
`significance` module calls the first of these methods too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_lmgate.arrays import Floats

if TYPE_CHECKING:
    from sacrebleu import CHRF


def chrf_statistics(metric: CHRF, prediction: str, references: Sequence[str]) -> Sequence[float]:
    """Return candidate, reference and matching n-grams of each order, of the reference with the best F."""
    statistics: Sequence[float]
    (statistics,) = metric._extract_corpus_statistics([prediction], [[reference] for reference in references])
    return statistics


def chrf_score(metric: CHRF, statistics: Floats) -> float:
    return float(metric._compute_f_score(statistics.tolist()))
