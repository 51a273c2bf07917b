"""How often a gate of a resampled metric is right: a ratio of sums over rows, whose true change is the tolerance.

Few rows are where a bootstrap is known to fail, so this begins with two. Rows of one weight with normal noise are
promised; uneven weights and skewed noise are shown.
"""

from __future__ import annotations

__all__ = ["ROWS", "resampled_metric"]

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate import TextMetric
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.sample import Sample

ROWS = (2, 3, 4, 6, 10, 20, 50, 200)
LEVEL = 0.05
PROMISED = "normal, equal weights"
Floats = NDArray[np.float64]


def _draw(kind: str, rng: np.random.Generator, rows: int) -> tuple[Floats, Floats]:
    """Weights of the rows, and the noise of the change of each."""
    weights = rng.lognormal(0, 1, rows) if "lognormal" in kind else np.ones(rows)
    return weights, rng.exponential(size=rows) - 1 if "skewed" in kind else rng.normal(size=rows)


KINDS = (PROMISED, "normal, lognormal weights", "skewed, equal weights")


def _ratio(sums: Floats) -> float:
    return float(sums[0] / sums[1])


# Given a function of its own, a metric is not a mean, and is resampled as BLEU is.
_METRIC = TextMetric("ratio", "higher", "ratio", lambda *_: [], value=_ratio)


def _shares(kind: str, rows: int, repetitions: int, rng: np.random.Generator) -> tuple[float, float]:
    """Shares of PASS and of the verdict FAIL."""
    found = []
    for _ in range(repetitions):
        weights, noise = _draw(kind, rng, rows)
        counts = np.ones(rows, dtype=np.int64)
        reference = np.stack([50 * weights, weights], axis=1)
        candidate = np.stack([(50 - 1 + noise) * weights, weights], axis=1)
        pair = (Sample(sums, counts, metric=_METRIC) for sums in (candidate, reference))
        found.append(compare(*pair, tolerance=Tolerance(1.0, relative=False)).decision)
    return found.count("pass") / repetitions, found.count("fail") / repetitions


def _table(points: Mapping[tuple[str, int], tuple[float, float]], rows: Sequence[int]) -> Iterator[str]:
    yield f"| rows | {' | '.join(KINDS)} |"
    yield f"|--:|{'--:|' * len(KINDS)}"
    for count in rows:
        cells = (f"{points[kind, count][0]:.1%}, {points[kind, count][1]:.1%}" for kind in KINDS)
        yield f"| {count} | {' | '.join(cells)} |"


def resampled_metric(repetitions: int, rows: Sequence[int] = ROWS, docs: Path | None = None) -> bool:
    """Simulate, print the shares of PASS and FAIL, and write them to `docs`, where given.

    Returns:
        Whether what is promised is kept.
    """
    settings = [(kind, count) for kind in KINDS for count in rows]
    points = {}
    for (kind, count), seed in zip(settings, np.random.SeedSequence(12345).spawn(len(settings)), strict=True):
        points[kind, count] = _shares(kind, count, repetitions, np.random.default_rng(seed))
    text = "\n".join(_table(points, rows))
    print(f"\nresampled metric, PASS and verdict FAIL at the tolerance, {repetitions:,} repetitions\n\n{text}\n")
    if docs is not None:
        docs.mkdir(parents=True, exist_ok=True)
        (docs / "resampled.md").write_text(text + "\n", encoding="utf-8")
    most = LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / repetitions)
    broken = [(count, share) for count in rows for share in points[PROMISED, count] if share > most]
    for count, share in broken:
        print(f"BROKEN {PROMISED}, {count} rows: at most {LEVEL:.0%}, found {share:.2%} (up to {most:.2%} is chance)")
    return not broken
