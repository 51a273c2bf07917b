"""Points of the simulation as Markdown: a summary of all methods, then the same table for each."""

from __future__ import annotations

__all__ = ["MAIN", "NOISES", "SEED", "tables"]

import math
from collections.abc import Sequence

from judges import METHODS, OURS, STUDENT
from pairs import CONFIDENCE, MEDIAN_TOKENS, TOLERANCE, TRUTHS, Noise
from promises import PROMISES, SKEWED, Point, Promise, broken_promises

SEED = 12345
MAIN = "documents and tokens"
NOISES = {
    MAIN: Noise(0.02, 0.2),
    "documents alone": Noise(0.02, 0.0),
    "tokens alone": Noise(0.0, 0.3),
    "exponential documents": Noise(0.02, 0.0, "exponential"),
    "lognormal documents": Noise(0.02, 0.0, "lognormal"),
}

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
    for method in METHODS:
        for noise in NOISES if method in (OURS, STUDENT) else (MAIN,):
            chosen = [point for point in points if (point.method, point.noise) == (method, noise)]
            lines += [f"## {method}, noise of {noise}", "", _about(noise), "", *_table(chosen, repetitions), ""]
    return "\n".join(lines)


def _summary(points: Sequence[Point], repetitions: int) -> list[str]:
    heads = [f"{promise.truth}: {promise}" for promise in PROMISES]
    lines = [f"| method | {' | '.join(heads)} |", "|---|" + "--:|" * len(heads)]
    for method in METHODS:
        own = [point for point in points if point.method == method]
        cells = [_range(promise, [p for p in own if p.truth == promise.truth], repetitions) for promise in PROMISES]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


def _range(promise: Promise, points: Sequence[Point], repetitions: int) -> str:
    if _has_no_interval(points[0]) and promise.share == "covered":
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
    if _has_no_interval(point) and share == "covered":
        return "none"
    value = getattr(point, share)
    shown = f"{100 * value:.1f} ± {300 * math.sqrt(value * (1 - value) / repetitions):.1f}"
    promised = {(each.truth, each.share): each for each in SKEWED.get(point.noise, PROMISES)}
    promise = promised.get((point.truth, share))
    return f"**{shown}**" if promise and not promise.kept(point, repetitions) else shown


def _has_no_interval(point: Point) -> bool:
    return point.method == "fixed tolerance"
