"""Two sides of a comparison from numbers made by hand."""

from __future__ import annotations

import numpy as np

from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Comparison
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.proportions import Outcomes
from pytest_lmgate.stats.sample import Sample, Scale


def compare_means(
    candidate: np.ndarray,
    reference: np.ndarray,
    counts: np.ndarray,
    *,
    scale: Scale,
    tolerance: Tolerance,
    confidence: float = 0.95,
    rows: bool = True,
) -> Comparison:
    """Compare sums over clusters."""
    here, there = (Sample(sums[:, None], counts, scale, rows=rows) for sums in (candidate, reference))
    return compare(here, there, tolerance=tolerance, confidence=confidence)


def compare_outcomes(candidate: Outcomes, reference: Outcomes, *, tolerance: Tolerance) -> Comparison:
    """Compare rows that are right or wrong."""
    here, there = (
        Sample(
            np.bincount(each.cluster, weights=each.right).astype(np.float64)[:, None],
            each.sizes,
            Scale("higher", lowest=0, highest=1, of_rows=True),
            outcomes=each,
        )
        for each in (candidate, reference)
    )
    return compare(here, there, tolerance=tolerance)
