"""How often a gate on running text is right, through the code that makes clusters of windows and rows.

Differences between two models are drawn token by token, at a true change equal to the tolerance. Where rows are known,
each document has an effect of its own and documents are of every unevenness. A text without rows hides documents of
lognormal lengths, of which the first begins before the text, or has noise that lasts (AR(1)); it is judged by 8 cosines
and by 20 independent blocks too, to compare. Protocol `sliding`, windows of 512 and a stride of 256.
"""

from __future__ import annotations

__all__ = ["running_text"]

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from sides import compare_means

from pytest_lmgate.metrics.targets import TargetLayout
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.means import clustered_mean, noisy_mean, student_or_hall, t_quantile
from pytest_lmgate.stats.sample import Scale

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
        promised: Largest share of PASS at the tolerance; None where nothing is promised.
        draw: Makes the differences of all targets, shape ``[targets]``, and the rows' targets, or None without rows.
    """

    name: str
    promised: float | None
    draw: Callable[[np.random.Generator], tuple[Floats, Ints | None]]

    def room(self, repetitions: int) -> float:
        """Return three Monte Carlo standard errors of a share that is just as promised."""
        return 0.0 if self.promised is None else 3 * math.sqrt(self.promised * (1 - self.promised) / repetitions)

    def is_broken(self, passed: float, repetitions: int) -> bool:
        """Return whether more pass than promised, by more than chance."""
        return self.promised is not None and passed > self.promised + self.room(repetitions)


def _rows(documents: int, spread: float) -> Setting:
    def draw(rng: np.random.Generator) -> tuple[Floats, Ints]:
        lengths = np.maximum(1, np.round(400 * np.exp(spread * rng.standard_normal(documents)))).astype(np.int64)
        effects = 0.02 * rng.standard_normal(documents)
        return np.repeat(effects, lengths) + 0.2 * rng.standard_normal(lengths.sum()), lengths

    return Setting(f"{documents} rows, sigma {spread:g}", 0.05, draw)


_EFFECTS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "exponential": lambda rng, size: rng.exponential(size=size) - 1,
    "lognormal": lambda rng, size: (np.exp(rng.standard_normal(size)) - math.exp(0.5)) / math.sqrt(math.e**2 - math.e),
}
_SKEWED = {"exponential": 0.11, "lognormal": 0.16}


def _hidden(tokens: int, length: int, spread: float, rho: float, effect: str = "normal") -> Setting:
    def draw(rng: np.random.Generator) -> tuple[Floats, None]:
        documents = 3 * tokens // length + 30
        lengths = np.maximum(1, np.round(length * np.exp(spread * rng.standard_normal(documents)))).astype(np.int64)
        effects = np.repeat(_EFFECTS[effect](rng, documents), lengths)
        begin = rng.integers(len(effects) - tokens)
        # The share rho of the variance of a token is its document's.
        noise = math.sqrt(1 - rho) * rng.standard_normal(tokens)
        return 0.05 * (math.sqrt(rho) * effects[begin : begin + tokens] + noise), None

    # The document that a token lies in is on average longer than the median one.
    share = length * math.exp(1.5 * spread**2) / tokens
    promised = _SKEWED.get(effect, _promised(share))
    name = f"{tokens:,} tokens, hidden documents of {length:,}, sigma {spread:g}, share {rho:g}"
    return Setting(name if effect == "normal" else f"{name}, {effect}", promised, draw)


def _promised(share: float) -> float | None:
    return 0.06 if share <= 1 / 50 else 0.1 if share <= 1 / 10 else None


def _lasting(tokens: int, rho: float) -> Setting:
    def draw(rng: np.random.Generator) -> tuple[Floats, None]:
        first = rng.standard_normal(1) / math.sqrt(1 - rho**2)
        noise = lfilter([1.0], [1.0, -rho], rng.standard_normal(tokens), zi=rho * first)[0]
        return 0.02 * noise, None

    # Noise lasts about 1 / (1 - rho) tokens.
    return Setting(f"{tokens:,} tokens, AR(1), rho {rho:g}", _promised(1 / (1 - rho) / tokens), draw)


def _settings(quick: bool) -> list[Setting]:
    if quick:
        return [_rows(10, 1.5), _hidden(20_000, 250, 0.5, 0.1), _lasting(20_000, 0.9)]
    rows = [_rows(documents, spread) for documents in (10, 30, 100) for spread in (0.0, 1.0, 1.5, 2.0)]
    small = [(250, 0.5), (250, 1.0), (400, 0.5), (400, 1.0), (1_000, 0.0), (1_000, 0.5), (1_000, 1.0), (2_000, 0.5)]
    large = [(1_000, 0.5), (1_000, 1.0), (4_000, 0.5), (4_000, 1.0)]
    hidden = [
        _hidden(tokens, length, spread, rho)
        for tokens, kinds in ((20_000, small), (131_072, large))
        for length, spread in kinds
        for rho in (0.1, 0.5)
    ]
    few = [_hidden(tokens, tokens // part, 0.0, 0.5) for tokens in (2_304, 4_352) for part in (50, 10)]
    skewed = [_hidden(20_000, length, 0.5, 0.5, effect) for effect in _SKEWED for length in (250, 1_000)]
    lasting = [_lasting(20_000, rho) for rho in (0.0, 0.9, 0.99, 0.995, 0.999)]
    return [*rows, *hidden, *few, *skewed, *lasting]


class _Shares(NamedTuple):
    """Shares of PASS, of the verdict FAIL, of 95% intervals that hold the truth, and of PASS by other rules."""

    passed: float
    failed: float
    covered: float
    by_8_cosines: float
    by_20_blocks: float


def _shares(setting: Setting, repetitions: int, rng: np.random.Generator) -> _Shares:
    found = np.zeros(5)
    for _ in range(repetitions):
        noise, rows = setting.draw(rng)
        targets = len(noise)
        windows = np.full(-(-targets // STRIDE), STRIDE, dtype=np.int64)
        windows[-1] = targets - STRIDE * (len(windows) - 1)
        layout = TargetLayout(
            window_targets=windows, window_document=np.zeros_like(windows), running_text=True, row_targets=rows
        )
        sums, counts = layout.of_targets(noise + LIMIT)
        judged = compare_means(
            sums,
            np.zeros(len(sums)),
            counts,
            scale=Scale("lower", exponential=True),
            tolerance=Tolerance(TOLERANCE, relative=True),
            rows=rows is not None,
        )
        bounds = noisy_mean(sums, counts, rows=rows is not None).bounds(0.975)
        covers = bounds is not None and bounds.lower <= LIMIT <= bounds.upper
        found[:3] += judged.decision == "pass", judged.decision == "fail", covers
        if rows is None:
            found[3] += _upper_by_8_cosines(sums, counts) <= LIMIT
            found[4] += _upper_by_20_blocks(noise + LIMIT, windows) <= LIMIT
    return _Shares(*(found / repetitions).tolist())


def _upper_by_8_cosines(sums: Floats, counts: Ints) -> float:
    noise, total = noisy_mean(sums, counts, rows=False), counts.sum()
    middles = (np.cumsum(counts) - counts / 2) / total
    terms = math.sqrt(2) * np.cos(np.pi * np.outer(np.arange(1, 9), middles)) @ (sums - noise.mean * counts)
    stderr = math.sqrt(float((terms**2).mean())) / float(total)
    return student_or_hall(noise.mean, stderr, t_quantile(0.95, 8), noise.skewness).upper


def _upper_by_20_blocks(values: Floats, windows: Ints) -> float:
    middles = np.cumsum(windows) - windows / 2
    block = np.minimum((20 * middles / windows.sum()).astype(np.int64), 19)
    ends = np.cumsum(windows)[np.flatnonzero(np.diff(block, append=20))]
    begins = np.append(0, ends[:-1])
    bounds = clustered_mean(np.add.reduceat(values, begins), ends - begins).bounds(0.95)
    assert bounds is not None
    return bounds.upper


def _table(settings: Sequence[Setting], points: Sequence[_Shares]) -> Iterator[str]:
    yield "| text | PASS promised | PASS | FAIL | 95% interval covers | 8 cosines: PASS | 20 blocks: PASS |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for setting, point in zip(settings, points, strict=True):
        promised = "shown" if setting.promised is None else f"≤ {setting.promised:.0%}"
        others = f"{point.by_8_cosines:.1%} | {point.by_20_blocks:.1%}" if " rows, " not in setting.name else " | "
        shown = f"{promised} | {point.passed:.1%} | {point.failed:.1%} | {point.covered:.1%} | {others} |"
        yield f"| {setting.name} | {shown}"


def running_text(repetitions: int, *, quick: bool, docs: Path | None) -> bool:
    """Simulate, print a table, and write it to `docs`, where given.

    Returns:
        Whether what is promised is kept, within three Monte Carlo standard errors.
    """
    settings, points, broken = _settings(quick), [], []
    for setting, seed in zip(settings, np.random.SeedSequence(12345).spawn(len(settings)), strict=True):
        first, second = seed.spawn(2)
        point, count = _shares(setting, repetitions, np.random.default_rng(first)), repetitions
        if setting.is_broken(point.passed, count):
            # By chance, perhaps: look again, ten times as often.
            count = 10 * repetitions
            point = _shares(setting, count, np.random.default_rng(second))
        if setting.is_broken(point.passed, count):
            promise = f"PASS ≤ {setting.promised:.0%}, found {point.passed:.2%} (room {setting.room(count):.2%})"
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
