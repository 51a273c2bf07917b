"""Four ways to judge a pair, each for many repetitions at once: ours, and what people would otherwise do.

`require_same_verdicts` holds ours against the package's own `compare_means`, one repetition at a time.
"""

from __future__ import annotations

__all__ = ["METHODS", "OURS", "Judged", "clustered", "decisions", "llama_cpp", "require_same_verdicts"]

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from bell_mccaffrey import degrees_of_freedom
from numpy.typing import NDArray
from pairs import CONFIDENCE, LIMIT, TOLERANCE, Floats, Pairs
from scipy.special import ndtri, stdtrit

from pytest_lmgate.config.tolerance import Tolerance
from pytest_lmgate.gates.comparison import compare_means
from pytest_lmgate.metrics.sample import Scale


@dataclass(frozen=True)
class Judged:
    """A method's estimate of the change with its error and quantiles for one and two sides, shape ``[repetitions]``."""

    change: Floats
    stderr: Floats
    one_sided: Floats
    two_sided: Floats

    def covers(self, true: float) -> NDArray[np.bool_]:
        """Whether each two-sided interval holds the true change."""
        return np.abs(self.change - true) <= self.two_sided * self.stderr


def clustered(pairs: Pairs) -> Judged:
    """Ours: CR2 between documents, t with Bell-McCaffrey degrees of freedom."""
    total = pairs.counts.sum(axis=1)
    change = pairs.sums.sum(axis=1) / total
    residuals = pairs.sums - change[:, None] * pairs.counts
    stderr = np.sqrt((residuals**2 / (1 - pairs.counts / total[:, None])).sum(axis=1)) / total
    df = degrees_of_freedom(pairs.counts)
    return Judged(change, stderr, stdtrit(df, CONFIDENCE), stdtrit(df, 0.5 + CONFIDENCE / 2))


def fixed(pairs: Pairs) -> Judged:
    """What CI systems use: the measured change against the tolerance, no noise."""
    return _normal(pairs, np.zeros(len(pairs.sums)))


def llama_cpp(pairs: Pairs) -> Judged:
    """llama.cpp's ``u_r``: paired, every token independent."""
    return _normal(pairs, pairs.iid_variance)


def unpaired(pairs: Pairs) -> Judged:
    """A z-test of two means, each with the error of its own tokens, as if measured on different texts."""
    return _normal(pairs, 2 * pairs.own_variance + pairs.iid_variance)


def _normal(pairs: Pairs, variance: Floats) -> Judged:
    total = pairs.counts.sum(axis=1)
    one, two = (np.full(len(total), ndtri(level)) for level in (CONFIDENCE, 0.5 + CONFIDENCE / 2))
    return Judged(pairs.sums.sum(axis=1) / total, np.sqrt(variance / (total - 1)), one, two)


OURS = "pytest-lmgate"
METHODS: dict[str, Callable[[Pairs], Judged]] = {
    OURS: clustered,
    "fixed tolerance": fixed,
    "llama.cpp": llama_cpp,
    "unpaired z-test": unpaired,
}


def decisions(judged: Judged) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return who passed, who failed, and whose build fails, each of shape ``[repetitions]``."""
    passed = judged.change + judged.one_sided * judged.stderr <= LIMIT
    failed = judged.change - judged.one_sided * judged.stderr > LIMIT
    return passed, failed, failed | (~passed & (judged.change > LIMIT))


def require_same_verdicts(pairs: Pairs, judged: Judged, count: int) -> None:
    """Judge the first `count` repetitions by the package itself.

    Raises:
        AssertionError: A bound or a verdict differs.
    """
    passed, failed, builds = decisions(judged)
    for each in range(min(count, len(pairs.sums))):
        found = compare_means(
            pairs.sums[each],
            np.zeros(len(pairs.sums[each])),
            pairs.counts[each].astype(np.int64),
            scale=Scale("lower", exponential=True),
            tolerance=Tolerance(TOLERANCE, relative=True),
            confidence=CONFIDENCE,
        )
        here = "pass" if passed[each] else "fail" if failed[each] else "inconclusive"
        upper = math.expm1(judged.change[each] + judged.one_sided[each] * judged.stderr[each])
        if (found.decision, found.fails_build()) != (here, builds[each]) or not math.isclose(found.upper or 0.0, upper):
            raise AssertionError(f"repetition {each}: {here}, upper bound {upper}, but compare_means says {found}")
