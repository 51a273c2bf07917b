"""What is simulated, what a no_regression gate promises there, and the results as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

SEED, TOLERANCE, CONFIDENCE, MEDIAN_TOKENS = 12345, 0.01, 0.95, 400
TRUTHS = ("at the tolerance", "no change", "no change, adequate sample")
OURS, STUDENT = "pytest-lmgate", "Student's bounds"


@dataclass(frozen=True)
class Noise:
    """Differences of NLL between two models, in nats: standard deviation of a document's own effect, and of its tokens.

    Attributes:
        documents: Of the effects.
        tokens: Of a token around its document's mean.
        effects: Distribution of the effects, each with mean 0 and variance 1: ``normal``, or ``exponential`` and
            ``lognormal`` (sigma 1), where most documents are a little better and a few much worse.
    """

    documents: float
    tokens: float
    effects: str = "normal"


MAIN = "documents and tokens"
NOISES = {
    MAIN: Noise(0.02, 0.2),
    "documents alone": Noise(0.02, 0.0),
    "tokens alone": Noise(0.0, 0.3),
    "exponential documents": Noise(0.02, 0.0, "exponential"),
    "lognormal documents": Noise(0.02, 0.0, "lognormal"),
}


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


_COLUMNS = (
    ("change = tolerance: PASS", 0, "passed"),
    ("FAIL", 0, "failed"),
    ("build fails", 0, "builds"),
    ("95% interval covers", 0, "covered"),
    ("no change: PASS", 1, "passed"),
    ("FAIL", 1, "failed"),
    ("build fails", 1, "builds"),
    ("no change, adequate sample: PASS", 2, "passed"),
    ("FAIL", 2, "failed"),
    ("build fails", 2, "builds"),
)


def tables(points: Sequence[Point], repetitions: int) -> str:
    """Return all that the simulation found."""
    broken = list(broken_promises((p for p in points if p.method == OURS), repetitions))
    room, smaller_room = (100 * promise.room(repetitions) for promise in (PROMISES[0], PROMISES[-1]))
    lines = [
        "# Decisions: how often a verdict is right",
        "",
        f"Written by `python benchmarks/decisions.py --docs docs/figures`: {repetitions:,} repetitions per point, seed "
        f"{SEED}, tolerance {TOLERANCE:.0%}, confidence {CONFIDENCE:.0%}.",
        f"Documents have a median of {MEDIAN_TOKENS} tokens, lognormal with the given sigma. "
        "[decisions.md](../decisions.md) explains the pairs and the promises.",
        "",
        "Cells are percent of repetitions ± three Monte Carlo standard errors. **Bold** cells break a promise by more "
        "than three Monte Carlo standard errors at the promised share: "
        f"{room:.2f} for 5% and 95%, {smaller_room:.2f} for 1%.",
        "",
        f"pytest-lmgate breaks {len(broken)} promises" + (":" if broken else "."),
        *(f"- {each}" for each in broken),
        "",
        "## All methods",
        "",
        f"Noise of {MAIN}: lowest and highest percentage over the documents and sigmas below, and how many of these "
        "points keep the promise.",
        "",
        *_summary([point for point in points if point.noise == MAIN], repetitions),
        "",
    ]
    for noise in NOISES:
        chosen = [point for point in points if (point.method, point.noise) == (OURS, noise)]
        lines += [f"## {OURS}, noise of {noise}", "", _about(noise), "", *_table(chosen, repetitions), ""]
    return "\n".join(lines)


def _summary(points: Sequence[Point], repetitions: int) -> list[str]:
    heads = [f"{promise.truth}: {promise}" for promise in PROMISES]
    lines = [f"| method | {' | '.join(heads)} |", "|---|" + "--:|" * len(heads)]
    for method in dict.fromkeys(point.method for point in points):
        own = [point for point in points if point.method == method]
        cells = [_range(promise, [p for p in own if p.truth == promise.truth], repetitions) for promise in PROMISES]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


def _range(promise: Promise, points: Sequence[Point], repetitions: int) -> str:
    if points[0].method == "fixed tolerance" and promise.share == "covered":
        return "no interval"
    shares = [100 * promise.of(point) for point in points]
    kept = sum(promise.kept(point, repetitions) for point in points)
    return f"{min(shares):.1f} to {max(shares):.1f}; {kept} of {len(points)}"


def _about(noise: str) -> str:
    kind = NOISES[noise]
    promised = "".join(f" Promised at the tolerance: {promise}." for promise in SKEWED.get(noise, ()))
    return (
        f"Differences of NLL vary by {kind.documents:g} nat between documents ({kind.effects}) and by {kind.tokens:g} "
        f"nat between tokens.{promised}"
    )


def _table(points: Sequence[Point], repetitions: int) -> list[str]:
    at = {(point.documents, point.spread, point.truth): point for point in points}
    lines = [
        "| documents | sigma | " + " | ".join(head for head, _, _ in _COLUMNS) + " |",
        "|--:|--:|" + "--:|" * len(_COLUMNS),
    ]
    for documents, spread in dict.fromkeys((point.documents, point.spread) for point in points):
        cells = [_cell(at[documents, spread, TRUTHS[truth]], share, repetitions) for _, truth, share in _COLUMNS]
        lines.append(f"| {documents} | {spread:g} | {' | '.join(cells)} |")
    return lines


def _cell(point: Point, share: str, repetitions: int) -> str:
    value = getattr(point, share)
    shown = f"{100 * value:.1f} ± {300 * math.sqrt(value * (1 - value) / repetitions):.1f}"
    promised = {(each.truth, each.share): each for each in SKEWED.get(point.noise, PROMISES)}
    promise = promised.get((point.truth, share))
    return f"**{shown}**" if promise and not promise.kept(point, repetitions) else shown
