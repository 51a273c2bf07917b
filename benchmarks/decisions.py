"""How often is a no_regression gate right? Simulated pairs with a known change, and other methods.

    python benchmarks/decisions.py                        # about five minutes on one core
    python benchmarks/decisions.py --docs docs/figures    # and write the tables there
    python benchmarks/decisions.py --quick                # a few small points, seconds

Exits with 1 if a promise is broken. Repetitions are vectorized, so the closed form is written out in judges.py for
many at once; some repetitions of every point go through `compare_means` too, and a verdict that differs is an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from decision_tables import NOISES, SEED, tables
from judges import METHODS, OURS, STUDENT, decisions, require_same_verdicts
from pairs import TRUTHS, simulate
from promises import Point, broken_promises, worse_than_student

DOCUMENTS, SPREADS = (10, 30, 100, 500), (0.0, 0.5, 1.0, 1.5)
CHUNK, CHECKED = 1000, 5


def run(
    noises: Iterable[str], documents: Sequence[int], spreads: Sequence[float], repetitions: int
) -> Iterator[list[Point]]:
    """Yield the points of each setting, every truth and method."""
    settings = [(noise, count, spread) for noise in noises for count in documents for spread in spreads]
    for (noise, count, spread), seed in zip(settings, np.random.SeedSequence(SEED).spawn(len(settings)), strict=True):
        rng = np.random.default_rng(seed)
        points = []
        for truth in TRUTHS:
            sums = {method: np.zeros(4) for method in METHODS}
            for start in range(0, repetitions, CHUNK):
                size = min(CHUNK, repetitions - start)
                pairs = simulate(rng, NOISES[noise], count, spread, truth, size)
                for method, judge in METHODS.items():
                    judged = judge(pairs)
                    if method == OURS:
                        require_same_verdicts(pairs, judged, CHECKED)
                    sums[method] += [each.sum() for each in (*decisions(judged), judged.covers(pairs.true))]
            points += [Point(noise, count, spread, truth, method, *sums[method] / repetitions) for method in METHODS]
        yield points


def simulated(repetitions: int, *, quick: bool, docs: Path | None) -> bool:
    """Simulate, print, write.

    Returns:
        Whether every promise is kept.
    """
    documents, spreads = ((10, 30), (0.0, 1.5)) if quick else (DOCUMENTS, SPREADS)
    points: list[Point] = []
    for found in run(NOISES, documents, spreads, repetitions):
        points += found
        here = [p for p in found if p.method == OURS]
        shares = ", ".join(f"{p.truth}: {p.passed:.1%} pass, {p.failed:.1%} fail, {p.builds:.1%} builds" for p in here)
        print(f"{here[0].noise}, {here[0].documents} documents, sigma {here[0].spread:g}: {shares}", flush=True)
    if docs is not None:
        docs.mkdir(parents=True, exist_ok=True)
        (docs / "decisions.md").write_text(tables(points, repetitions), encoding="utf-8")
    ours, student = ([p for p in points if p.method == method] for method in (OURS, STUDENT))
    broken = [*broken_promises(ours, repetitions), *worse_than_student(ours, student, repetitions)]
    for promise in broken:
        print(f"BROKEN {promise}")
    print(f"{len(broken)} promises broken, {repetitions:,} repetitions at each of {len(points) // len(METHODS)} points")
    return not broken


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate; return the exit status."""
    parser = argparse.ArgumentParser(description="How often the verdicts of a no_regression gate are right.")
    parser.add_argument("--quick", action="store_true", help="a few small points with 400 repetitions")
    parser.add_argument("--repetitions", type=int, default=20_000, help="per simulated point (default: %(default)s)")
    parser.add_argument("--docs", type=Path, help="folder for decisions.md")
    options = parser.parse_args(arguments)
    if options.repetitions < 1:
        parser.error(f"--repetitions: expected at least 1, got {options.repetitions}")
    repetitions = 400 if options.quick else options.repetitions
    return 0 if simulated(repetitions, quick=options.quick, docs=options.docs) else 1


if __name__ == "__main__":
    sys.exit(main())
