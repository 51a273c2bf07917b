"""How often is `lmgate judge` wrong where the true loss is just the tolerance? Simulated results of others.

    python benchmarks/judge_results.py                # 2,000 pairs a setting, ten minutes on one core
    python benchmarks/judge_results.py --pairs 50     # seconds

PASS and FAIL are one-sided tests at 5% each. Exits with 1 if one of them is wrong in more than 7.5% of the pairs, or in
more than 5% by three standard errors of the simulation where rows are independent and PASS is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.data.results.pairs import grouped, paired
from pytest_lmgate.data.results.rows import ResultRow, ResultRun, Series
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.tools.judge_results.verdicts import Rules, Weights, judged

TOLERANCE, SHARE, CHURN = 0.05, 0.75, 0.08
Drawn = list[tuple[str, NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]]
"""Name of each task, scores of the reference and of the candidate, and the cluster of each row."""


def independent(rng: np.random.Generator, rows: int) -> Drawn:
    """Rows that are right or wrong, with a mean loss of the tolerance, of which some change both ways."""
    before = (rng.random(rows) < SHARE).astype(float)
    lost = rng.random(rows) < (CHURN + TOLERANCE) / SHARE
    gained = rng.random(rows) < CHURN / (1 - SHARE)
    return [("t", before, np.where(before > 0, ~lost, gained).astype(float), np.arange(rows))]


def epochs(rng: np.random.Generator, samples: int, repeats: int) -> Drawn:
    """Samples that are asked several times, of which some lose a third of their answers, or all that are right.

    The share of right answers is of Beta(3, 1), so the mean loss of such a sample is ``E min(share, 1/3) = 107 / 324``.
    """
    share = rng.beta(3, 1, samples)
    damaged = np.where(rng.random(samples) < TOLERANCE * 324 / 107, np.maximum(share - 1 / 3, 0), share)
    cluster = np.repeat(np.arange(samples), repeats)
    before, after = ((rng.random(len(cluster)) < values[cluster]).astype(float) for values in (share, damaged))
    return [("t", before, after, cluster)]


def tasks(rng: np.random.Generator, sizes: tuple[int, ...]) -> Drawn:
    """Tasks of uneven size, all with the same loss."""
    return [(f"t{at}", *independent(rng, size)[0][1:]) for at, size in enumerate(sizes)]


SIZES = (20, 25, 30, 40, 50, 60, 80, 100, 150, 250, 400, 800)
SETTINGS: dict[str, tuple[Callable[[np.random.Generator], Drawn], Weights | None]] = {
    "50 rows": (lambda rng: independent(rng, 50), None),
    "200 rows": (lambda rng: independent(rng, 200), None),
    "1,319 rows": (lambda rng: independent(rng, 1319), None),
    "50 samples, 4 epochs": (lambda rng: epochs(rng, 50, 4), None),
    "200 samples, 4 epochs": (lambda rng: epochs(rng, 200, 4), None),
    "12 tasks of 20 to 800 rows, by size": (lambda rng: tasks(rng, SIZES), "size"),
    "12 tasks of 20 to 800 rows, by task": (lambda rng: tasks(rng, SIZES), "task"),
}


def verdict(drawn: Drawn, weights: Weights | None) -> str:
    runs = tuple(ResultRun(path=Path(name), tool="simulated", model=name) for name in ("old", "new"))
    rules = Rules(Tolerance(TOLERANCE, relative=False), weights=weights or "size")
    pairs = []
    for task, *both, clusters in drawn:
        sides = []
        for scores in both:
            rows = tuple(
                ResultRow(str(at), cluster=str(cluster), score=float(score))
                for at, (score, cluster) in enumerate(zip(scores, clusters, strict=True))
            )
            sides.append(Series(task=task, metric="acc", rows=rows, direction="higher", group="g" if weights else ""))
        pairs.append(paired(*sides, "error"))
    [pair] = grouped(pairs) if weights else pairs
    found = judged(dataclasses.replace(pair), (runs[0], runs[1]), rules, ())
    assert found.verdict != "error", found.message
    return found.verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=2000)
    number = parser.parse_args().pairs
    error = math.sqrt(0.05 * 0.95 / number)
    broken = False
    print(f"{number:,} pairs a setting with a true loss of {TOLERANCE}, the tolerance\n\n{'':<38}PASS   FAIL")
    for seed, (name, (draw, weights)) in enumerate(SETTINGS.items()):
        rng = np.random.default_rng(seed)
        counts = Counter(verdict(draw(rng), weights) for _ in range(number))
        passes, fails = (counts[outcome] / number for outcome in ("pass", "fail"))
        print(f"{name:<38}{100 * passes:4.1f}%  {100 * fails:4.1f}%", flush=True)
        limit = 0.05 + 3 * error if "rows" in name else 0.075
        broken |= passes > limit or fails > 0.075 + 2 * error
    sys.exit(broken)


if __name__ == "__main__":
    main()
