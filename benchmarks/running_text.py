"""How often a gate on running text is right, through the code that makes clusters of windows and rows.

Differences between two models are drawn token by token, at a true change equal to the tolerance. Where rows are known,
each document has an effect of its own and documents are of every unevenness; a text without rows hides documents of
equal length, or has noise that lasts (AR(1)). Protocol `sliding`, windows of 512 and a stride of 256.
"""

from __future__ import annotations

__all__ = ["running_text"]

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.gates.comparisons.means import compare_means
from pytest_lmgate.metrics.noise.clusters import BLOCKS
from pytest_lmgate.metrics.noise.means import clustered_mean
from pytest_lmgate.metrics.sample import Scale
from pytest_lmgate.metrics.targets import TargetLayout

TOLERANCE = 0.01
LIMIT = math.log1p(TOLERANCE)
STRIDE = 256
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Setting:
    """A kind of text.

    Attributes:
        name: In words.
        promised: Largest share of PASS at the tolerance.
        draw: Makes the differences of all targets, shape ``[targets]``, and the rows' targets, or None without rows.
    """

    name: str
    promised: float
    draw: Callable[[np.random.Generator], tuple[Floats, Ints | None]]

    def room(self, repetitions: int) -> float:
        """Return three Monte Carlo standard errors of a share that is just as promised."""
        return 3 * math.sqrt(self.promised * (1 - self.promised) / repetitions)


def _rows(documents: int, spread: float) -> Setting:
    def draw(rng: np.random.Generator) -> tuple[Floats, Ints]:
        lengths = np.maximum(1, np.round(400 * np.exp(spread * rng.standard_normal(documents)))).astype(np.int64)
        effects = 0.02 * rng.standard_normal(documents)
        return np.repeat(effects, lengths) + 0.2 * rng.standard_normal(lengths.sum()), lengths

    return Setting(f"{documents} rows, sigma {spread:g}", 0.05, draw)


def _hidden(tokens: int, length: int, rho: float) -> Setting:
    def draw(rng: np.random.Generator) -> tuple[Floats, None]:
        documents = -(-tokens // length)
        # The share rho of the variance of a token is its document's.
        effects = np.repeat(math.sqrt(rho) * rng.standard_normal(documents), length)[:tokens]
        return 0.05 * (effects + math.sqrt(1 - rho) * rng.standard_normal(tokens)), None

    promised = 0.08 if length <= tokens / BLOCKS / 2 else 0.12
    return Setting(f"{tokens:,} tokens, hidden documents of {length:,}, share {rho:g}", promised, draw)


def _lasting(tokens: int, rho: float) -> Setting:
    def draw(rng: np.random.Generator) -> tuple[Floats, None]:
        first = rng.standard_normal(1) / math.sqrt(1 - rho**2)
        noise = lfilter([1.0], [1.0, -rho], rng.standard_normal(tokens), zi=rho * first)[0]
        return 0.02 * noise, None

    # Noise lasts about 1 / (1 - rho) tokens.
    return Setting(f"{tokens:,} tokens, AR(1), rho {rho:g}", 0.08, draw)


def _settings(quick: bool) -> list[Setting]:
    if quick:
        return [_rows(10, 1.5), _hidden(20_000, 250, 0.1), _lasting(20_000, 0.9)]
    rows = [_rows(documents, spread) for documents in (10, 30, 100) for spread in (0.0, 1.0, 1.5, 2.0)]
    hidden = [
        _hidden(tokens, length, rho)
        for tokens, lengths in ((20_000, (250, 1_000)), (131_072, (250, 1_000, 4_000)))
        for length in lengths
        for rho in (0.01, 0.1, 0.5)
    ]
    return [*rows, *hidden, *(_lasting(20_000, rho) for rho in (0.0, 0.5, 0.9, 0.99, 0.995))]


def _shares(setting: Setting, repetitions: int, rng: np.random.Generator) -> tuple[float, float, float]:
    """Shares of PASS, of the verdict FAIL, and of 95 % intervals that hold the truth."""
    passed = failed = covered = 0
    for _ in range(repetitions):
        noise, rows = setting.draw(rng)
        targets = len(noise)
        windows = np.full(-(-targets // STRIDE), STRIDE, dtype=np.int64)
        windows[-1] = targets - STRIDE * (len(windows) - 1)
        layout = TargetLayout(
            window_targets=windows, window_document=np.zeros_like(windows), running_text=True, row_targets=rows
        )
        sums, counts = layout.of_targets(noise + LIMIT)
        found = compare_means(
            sums,
            np.zeros(len(sums)),
            counts,
            scale=Scale("lower", exponential=True),
            tolerance=Tolerance(TOLERANCE, relative=True),
        )
        bounds = clustered_mean(sums, counts).bounds(0.975)
        passed += found.decision == "pass"
        failed += found.decision == "fail"
        covered += bounds is not None and bounds.lower <= LIMIT <= bounds.upper
    return passed / repetitions, failed / repetitions, covered / repetitions


def _table(settings: Sequence[Setting], points: Sequence[tuple[float, float, float]]) -> Iterator[str]:
    yield "| text | PASS promised | PASS | FAIL | 95 % interval covers |"
    yield "|---|--:|--:|--:|--:|"
    for setting, (passed, failed, covered) in zip(settings, points, strict=True):
        yield f"| {setting.name} | ≤ {setting.promised:.0%} | {passed:.1%} | {failed:.1%} | {covered:.1%} |"


def running_text(repetitions: int, *, quick: bool, docs: Path | None) -> bool:
    """Simulate, print a table, and write it to `docs`, where given.

    Returns:
        Whether what is promised is kept, within three Monte Carlo standard errors.
    """
    settings, points, broken = _settings(quick), [], []
    for setting, seed in zip(settings, np.random.SeedSequence(12345).spawn(len(settings)), strict=True):
        first, second = seed.spawn(2)
        point, count = _shares(setting, repetitions, np.random.default_rng(first)), repetitions
        if point[0] > setting.promised + setting.room(count):
            # By chance, perhaps: look again, ten times as often.
            count = 10 * repetitions
            point = _shares(setting, count, np.random.default_rng(second))
        if point[0] > setting.promised + setting.room(count):
            promise = f"PASS ≤ {setting.promised:.0%}, found {point[0]:.2%} (room {setting.room(count):.2%})"
            broken.append(f"{setting.name}: {promise}")
        points.append(point)
    text = "\n".join(_table(settings, points))
    print(f"\nrunning text, verdicts at the tolerance, {repetitions:,} repetitions\n\n{text}\n")
    if docs is not None:
        docs.mkdir(parents=True, exist_ok=True)
        (docs / "running_text.md").write_text(text + "\n", encoding="utf-8")
    for each in broken:
        print(f"BROKEN {each}")
    return not broken
