"""What a no_regression gate promises, and whether a point of the simulation keeps it."""

from __future__ import annotations

__all__ = ["POWER_LOST", "PROMISES", "SKEWED", "Point", "Promise", "broken_promises", "worse_than_student"]

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pairs import TRUTHS


@dataclass(frozen=True)
class Point:
    """Shares of repetitions for one method: verdicts, builds that fail, and two-sided intervals that hold the truth."""

    noise: str
    documents: int
    spread: float
    truth: str
    method: str
    passed: float
    failed: float
    builds: float
    covered: float


@dataclass(frozen=True)
class Promise:
    """A share that is at most, or at least, `level` where `truth` holds.

    Attributes:
        truth: One of `TRUTHS`.
        what: The share, in words.
        share: Its name in `Point`.
        level: Promised.
        at_least: Whether more is better.
    """

    truth: str
    what: str
    share: str
    level: float
    at_least: bool = False

    def of(self, point: Point) -> float:
        """Return the share that is promised."""
        return float(getattr(point, self.share))

    def room(self, repetitions: int) -> float:
        """Return three Monte Carlo standard errors of a share that is just as promised."""
        return 3 * math.sqrt(self.level * (1 - self.level) / repetitions)

    def kept(self, point: Point, repetitions: int) -> bool:
        """Whether the point keeps it, within `room`."""
        room = self.room(repetitions)
        return self.of(point) >= self.level - room if self.at_least else self.of(point) <= self.level + room

    def __str__(self) -> str:
        return f"{self.what} {'≥' if self.at_least else '≤'} {self.level:.0%}"


PROMISES = (
    Promise(TRUTHS[0], "PASS", "passed", 0.05),
    Promise(TRUTHS[0], "verdict FAIL", "failed", 0.05),
    Promise(TRUTHS[0], "coverage", "covered", 0.95, at_least=True),
    Promise(TRUTHS[1], "verdict FAIL", "failed", 0.05),
    Promise(TRUTHS[2], "PASS", "passed", 0.92, at_least=True),  # 95% by Student's bounds alone
    Promise(TRUTHS[2], "verdict FAIL", "failed", 0.01),
)


# Where a few documents lose much: no interval made of the documents that there are can promise 5%.
SKEWED = {
    "exponential documents": (Promise(TRUTHS[0], "PASS", "passed", 0.11),),
    "lognormal documents": (Promise(TRUTHS[0], "PASS", "passed", 0.16),),
}
POWER_LOST = 0.03
"""How many fewer of the unchanged models may pass than by Student's bounds, where the noise is normal."""


def worse_than_student(ours: Iterable[Point], student: Iterable[Point], repetitions: int) -> Iterator[str]:
    """Yield where our bounds let more models at the tolerance pass than Student's, or too few unchanged ones."""
    room = 3 * math.sqrt(0.05 * 0.95 / repetitions)
    for here, there in zip(ours, student, strict=True):
        where = f"{here.noise}, {here.documents} documents, sigma {here.spread:g}, {here.truth}"
        if here.truth == TRUTHS[0] and here.passed > there.passed:
            yield f"{where}: PASS in {here.passed:.2%}, by Student's bounds in {there.passed:.2%}"
        if here.noise not in SKEWED and here.truth == TRUTHS[2] and here.passed < there.passed - POWER_LOST - room:
            yield f"{where}: PASS in {here.passed:.2%}, {there.passed - here.passed:.2%} less than by Student's bounds"


def broken_promises(points: Iterable[Point], repetitions: int) -> Iterator[str]:
    """Yield each promise that a point breaks by more than three Monte Carlo standard errors, in words."""
    for point in points:
        for promise in SKEWED.get(point.noise, PROMISES):
            if promise.truth == point.truth and not promise.kept(point, repetitions):
                where = f"{point.noise}, {point.documents} documents, sigma {point.spread:g}, {point.truth}"
                yield f"{where}: {promise}, found {promise.of(point):.2%} (room {promise.room(repetitions):.2%})"
