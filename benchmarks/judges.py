"""Five ways to judge a pair, each for many repetitions at once: ours, and what people would otherwise do.

`require_same_verdicts` holds ours against the package's own `compare_means`, one repetition at a time.
"""

from __future__ import annotations

__all__ = ["METHODS", "OURS", "STUDENT", "Judged", "clustered", "decisions", "llama_cpp", "require_same_verdicts"]

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from bell_mccaffrey import degrees_of_freedom
from numpy.typing import NDArray
from pairs import CONFIDENCE, LIMIT, TOLERANCE, Floats, Pairs
from scipy.special import ndtri, stdtrit
from sides import compare_means

from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.sample import Scale


@dataclass(frozen=True)
class Judged:
    """A method's estimate of the change with its bounds, each of shape ``[repetitions]``.

    Attributes:
        change: As measured.
        lower: One-sided lower bound.
        upper: One-sided upper bound.
        low: Lower end of the two-sided interval.
        high: Upper end of the two-sided interval.
    """

    change: Floats
    lower: Floats
    upper: Floats
    low: Floats
    high: Floats

    def covers(self, true: float) -> NDArray[np.bool_]:
        """Whether each two-sided interval holds the true change."""
        return (self.low <= true) & (true <= self.high)


def clustered(pairs: Pairs) -> Judged:
    """Ours: CR2 between documents, the wider of Student's and Hall's bounds, Bell-McCaffrey degrees of freedom."""
    return _clustered(pairs, skewed=True)


def student(pairs: Pairs) -> Judged:
    """The same without Hall's correction: what skewed damage gets past."""
    return _clustered(pairs, skewed=False)


def _clustered(pairs: Pairs, *, skewed: bool) -> Judged:
    total = pairs.counts.sum(axis=1)
    change = pairs.sums.sum(axis=1) / total
    scaled = (pairs.sums - change[:, None] * pairs.counts) / np.sqrt(1 - pairs.counts / total[:, None])
    squares = (scaled**2).sum(axis=1)
    stderr, df = np.sqrt(squares) / total, degrees_of_freedom(pairs.counts)
    skewness = _skewness(scaled, pairs.counts)
    ends = []
    for level in (CONFIDENCE, 0.5 + CONFIDENCE / 2):
        t = stdtrit(df, level)
        below, above = (np.maximum(t, _hall(t, side * skewness)) if skewed else t for side in (1, -1))
        ends += [change - below * stderr, change + above * stderr]
    return Judged(change, *ends)


def _skewness(residuals: Floats, n: Floats) -> Floats:
    """The smallest of three estimates that agree in sign, as in `pytest_lmgate.stats.means`."""
    carried = (n**3).sum(axis=1) / (n**2).sum(axis=1) ** 1.5
    scaled = [residuals / n**q for q in (0, 0.5, 1)]
    third = [(x**3).mean(axis=1) / (x**2).mean(axis=1) ** 1.5 for x in scaled]
    found = np.stack([third[0] / math.sqrt(n.shape[1]), carried * third[1], carried * third[2]])
    smallest = np.abs(found).min(axis=0) * np.sign(found[0])
    return np.where((found > 0).all(axis=0) | (found < 0).all(axis=0), smallest, 0.0)


def _hall(t: Floats, skewness: Floats) -> Floats:
    """``H(t) = (3/k) (cbrt(1 + k (t - k/6)) - 1)``; the other side's is that of the mirror image, -k."""
    small = np.abs(skewness) < 1e-9
    k = np.where(small, 1.0, skewness)
    return np.where(small, t, 3 / k * (np.cbrt(1 + k * (t - k / 6)) - 1))


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
    change, stderr = pairs.sums.sum(axis=1) / total, np.sqrt(variance / (total - 1))
    one, two = (ndtri(level) * stderr for level in (CONFIDENCE, 0.5 + CONFIDENCE / 2))
    return Judged(change, change - one, change + one, change - two, change + two)


OURS, STUDENT = "pytest-lmgate", "Student's bounds"
METHODS: dict[str, Callable[[Pairs], Judged]] = {
    OURS: clustered,
    STUDENT: student,
    "fixed tolerance": fixed,
    "llama.cpp": llama_cpp,
    "unpaired z-test": unpaired,
}


def decisions(judged: Judged) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return who passed, who failed, and whose build fails, each of shape ``[repetitions]``."""
    passed, failed = judged.upper <= LIMIT, judged.lower > LIMIT
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
        upper = math.expm1(judged.upper[each])
        if (found.decision, found.fails_build()) != (here, builds[each]) or not math.isclose(found.upper or 0.0, upper):
            raise AssertionError(f"repetition {each}: {here}, upper bound {upper}, but compare_means says {found}")
