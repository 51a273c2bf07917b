"""How often a gate is right where a few rows or tokens carry the damage, at a true change equal to the tolerance.

A tenth of the rows of a ROUGE loses 0.2 each, the others stay as they are: 5% is promised. The KL divergence of a
candidate is 10% larger than its baseline's, with tails so heavy (lognormal tokens, sigma 2) that no rule learns the
noise from the text: it is shown, not promised. Student's bounds are those without Hall's correction.
"""

from __future__ import annotations

__all__ = ["heavy_damage"]

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.means import clustered_mean, t_quantile
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.sample import Sample, Scale

PROMISED = 0.05
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """A kind of damage.

    Attributes:
        name: In words.
        promised: Largest share of PASS at the tolerance, or None where it is only shown.
        scale: Of the metric.
        tolerance: The true change too.
        draw: Makes candidate, reference and counts of each cluster, shape ``[clusters]`` each.
    """

    name: str
    promised: float | None
    scale: Scale
    tolerance: Tolerance
    draw: Callable[[np.random.Generator], tuple[Floats, Floats, NDArray[np.int64]]]


def _lost_rows(rows: int) -> Setting:
    def draw(rng: np.random.Generator) -> tuple[Floats, Floats, NDArray[np.int64]]:
        reference = rng.uniform(0.3, 0.9, rows)
        lost = rng.random(rows) < 0.1
        return reference - 0.2 * lost, reference, np.ones(rows, dtype=np.int64)

    scale = Scale("higher", lowest=0, highest=1, of_rows=True)
    return Setting(f"ROUGE, {rows:,} rows, a tenth lost", PROMISED, scale, Tolerance(0.02, relative=False), draw)


def _divergence(documents: int) -> Setting:
    def draw(rng: np.random.Generator) -> tuple[Floats, Floats, NDArray[np.int64]]:
        reference = rng.lognormal(0, 2, (documents, 400))
        candidate = 1.1 * reference * rng.lognormal(-0.125, 0.5, reference.shape)
        return candidate.sum(1), reference.sum(1), np.full(documents, 400)

    return Setting(f"KL, {documents} documents", None, Scale("lower", lowest=0), Tolerance(0.1, relative=True), draw)


def _shares(setting: Setting, repetitions: int, rng: np.random.Generator) -> tuple[float, float, float]:
    """Shares of PASS and of the verdict FAIL, and of PASS by Student's bounds."""
    passed = failed = student = 0
    for _ in range(repetitions):
        candidate, reference, counts = setting.draw(rng)
        pair = [Sample(sums[:, None], counts, setting.scale) for sums in (candidate, reference)]
        found = compare(pair[0], pair[1], tolerance=setting.tolerance)
        passed += found.decision == "pass"
        failed += found.decision == "fail"
        student += _upper_by_student(setting, candidate, reference, counts) <= setting.tolerance.size
    return passed / repetitions, failed / repetitions, student / repetitions


def _upper_by_student(setting: Setting, candidate: Floats, reference: Floats, counts: NDArray[np.int64]) -> float:
    """Return Student's upper bound of the degradation, linearized where it is relative, without Hall's correction."""
    relative = setting.tolerance.relative
    level, ratio = (reference.sum() / counts.sum(), candidate.sum() / reference.sum()) if relative else (1.0, 1.0)
    sign = 1 if setting.scale.direction == "lower" else -1
    noise = clustered_mean(sign * (candidate - ratio * reference) / level, counts)
    assert noise.stderr is not None
    assert noise.df is not None
    measured = sign * (ratio - 1) if relative else noise.mean
    return float(measured + t_quantile(0.95, noise.df) * noise.stderr)


def _table(settings: Sequence[Setting], points: Sequence[tuple[float, float, float]]) -> Iterator[str]:
    yield "| damage | PASS promised | PASS | FAIL | PASS by Student's bounds |"
    yield "|---|--:|--:|--:|--:|"
    for setting, (passed, failed, student) in zip(settings, points, strict=True):
        promised = "shown" if setting.promised is None else f"≤ {setting.promised:.0%}"
        yield f"| {setting.name} | {promised} | {passed:.1%} | {failed:.1%} | {student:.1%} |"


def heavy_damage(repetitions: int, *, quick: bool, docs: Path | None) -> bool:
    """Simulate, print a table, and write it to `docs`, where given.

    Returns:
        Whether what is promised is kept, within three Monte Carlo standard errors.
    """
    rows, documents = ((20, 50), (10,)) if quick else ((20, 50, 200, 1000), (10, 30, 100))
    settings = [*map(_lost_rows, rows), *map(_divergence, documents)]
    seeds = np.random.SeedSequence(12345).spawn(len(settings))
    points = [
        _shares(each, repetitions, np.random.default_rng(seed)) for each, seed in zip(settings, seeds, strict=True)
    ]
    text = "\n".join(_table(settings, points))
    print(f"\nheavy damage, verdicts at the tolerance, {repetitions:,} repetitions\n\n{text}\n")
    if docs is not None:
        docs.mkdir(parents=True, exist_ok=True)
        (docs / "heavy_damage.md").write_text(text + "\n", encoding="utf-8")
    holds = True
    for setting, (passed, _, _) in zip(settings, points, strict=True):
        if setting.promised is None:
            continue
        room = 3 * math.sqrt(setting.promised * (1 - setting.promised) / repetitions)
        if passed > setting.promised + room:
            holds = False
            print(f"BROKEN {setting.name}: PASS ≤ {setting.promised:.0%}, found {passed:.2%} (room {room:.2%})")
    return holds
