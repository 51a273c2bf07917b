"""How often is a no_regression gate right? Simulated pairs with a known change, and other methods.

    python benchmarks/decisions.py                        # about five minutes on one core
    python benchmarks/decisions.py --docs docs/figures    # and write the tables there
    python benchmarks/decisions.py --quick                # a few small points, seconds

A repetition is a text with its documents; all are drawn at once, as arrays of shape ``[repetitions, documents]``.
Tokens are not drawn one by one: a document's mean is normal around its effect, and squares around it are chi-squared.
The closed form is written out for many repetitions at once; some of every point go through the package's own comparison
too, and a verdict that differs is an error. Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from decision_tables import (
    CONFIDENCE,
    MEDIAN_TOKENS,
    NOISES,
    OURS,
    SEED,
    STUDENT,
    TOLERANCE,
    TRUTHS,
    Noise,
    Point,
    broken_promises,
    tables,
    worse_than_student,
)  # fmt: skip
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.sample import Sample, Scale

Floats = NDArray[np.float64]
LIMIT = math.log1p(TOLERANCE)
# One model's own NLL varies far more than the difference of two models: between documents, and between tokens.
OWN_DOCUMENTS, OWN_TOKENS = 0.4, 2.5
DOCUMENTS, SPREADS = (10, 30, 100, 500), (0.0, 0.5, 1.0, 1.5)
CHUNK, CHECKED = 1000, 5


def degrees_of_freedom(counts: Floats) -> Floats:
    """Return ``tr(M)^2 / tr(M M)`` for each row of `counts`, shape ``[repetitions, clusters]``.

    ``M = D - (u v' + v u') / N + k v v'`` with ``v = n w``, ``u = n^2 w``, ``D = diag(v^2)``, ``w^2 = 1 / (1 - h)`` and
    ``k = sum n^2 / N^2``, so that both traces are sums over clusters.
    """
    n = counts
    total = n.sum(axis=1)
    k = (n**2).sum(axis=1) / total**2
    vv = n**2 / (1 - n / total[:, None])
    uv, uu, d4, d5 = vv * n, vv * n**2, vv**2, vv**2 * n
    s_vv, s_uv, s_uu, s_d4, s_d5 = (part.sum(axis=1) for part in (vv, uv, uu, d4, d5))
    trace = s_vv - 2 * s_uv / total + k * s_vv
    square = s_d4 + 2 * (s_uu * s_vv + s_uv**2) / total**2 + k**2 * s_vv**2
    square += 2 * (-2 * s_d5 / total + k * s_d4 - 2 * k * s_uv * s_vv / total)
    df: Floats = trace**2 / square
    return df


def _lognormal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return (rng.lognormal(0, 1, shape) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)


EFFECTS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Floats]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "exponential": lambda rng, shape: rng.standard_exponential(shape) - 1,
    "lognormal": _lognormal,
}


@dataclass(frozen=True)
class Pairs:
    """Repetitions of one point.

    Attributes:
        true: The true change in nats.
        counts: Tokens, shape ``[repetitions, documents]``.
        sums: The same of the differences.
        iid_variance: Of a token's difference, taking tokens as independent; shape ``[repetitions]``.
        own_variance: The same of a token's NLL under one model.
    """

    true: float
    counts: Floats
    sums: Floats
    iid_variance: Floats
    own_variance: Floats


def simulate(rng: np.random.Generator, noise: Noise, documents: int, spread: float, truth: str, size: int) -> Pairs:
    """Draw `size` repetitions: document lengths, then the differences.

    A sample is adequate where the tolerance is ``2 t_.95 se``, se the true standard error for these lengths and t at
    the Bell-McCaffrey degrees of freedom; the noise is scaled so that each is just that.
    """
    lengths = MEDIAN_TOKENS * np.exp(spread * rng.standard_normal((size, documents)))
    counts = np.maximum(1.0, np.round(lengths))
    total = counts.sum(axis=1)
    scale = np.ones(size)
    if truth == TRUTHS[2]:
        variance = (counts**2).sum(axis=1) * noise.documents**2 + total * noise.tokens**2
        scale = LIMIT / (2 * stdtrit(degrees_of_freedom(counts), CONFIDENCE) * np.sqrt(variance) / total)
    true = LIMIT if truth == TRUTHS[0] else 0.0
    effects = EFFECTS[noise.effects](rng, counts.shape)
    around = rng.standard_normal(counts.shape) / np.sqrt(counts)
    means = true + scale[:, None] * (noise.documents * effects + noise.tokens * around)
    own_means = rng.standard_normal(counts.shape) * np.sqrt(OWN_DOCUMENTS**2 + OWN_TOKENS**2 / counts)
    # Squares within documents are chi-squared, for any lengths.
    within = rng.chisquare(np.maximum(total - documents, 1), size)
    own_within = rng.chisquare(np.maximum(total - documents, 1), size)
    return Pairs(
        true,
        counts,
        counts * means,
        (_between(counts, means) + (scale * noise.tokens) ** 2 * within) / total,
        (_between(counts, own_means) + OWN_TOKENS**2 * own_within) / total,
    )


def _between(counts: Floats, means: Floats) -> Floats:
    overall = (counts * means).sum(axis=1) / counts.sum(axis=1)
    squares: Floats = (counts * (means - overall[:, None]) ** 2).sum(axis=1)
    return squares


@dataclass(frozen=True)
class Trial:
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


def clustered(pairs: Pairs) -> Trial:
    """Ours: CR2 between documents, the wider of Student's and Hall's bounds, Bell-McCaffrey degrees of freedom."""
    return _clustered(pairs, skewed=True)


def student(pairs: Pairs) -> Trial:
    """The same without Hall's correction: what skewed damage gets past."""
    return _clustered(pairs, skewed=False)


def _clustered(pairs: Pairs, *, skewed: bool) -> Trial:
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
    return Trial(change, *ends)


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


def fixed(pairs: Pairs) -> Trial:
    """What CI systems use: the measured change against the tolerance, no noise."""
    return _normal(pairs, np.zeros(len(pairs.sums)))


def llama_cpp(pairs: Pairs) -> Trial:
    """llama.cpp's ``u_r``: paired, every token independent."""
    return _normal(pairs, pairs.iid_variance)


def unpaired(pairs: Pairs) -> Trial:
    """A z-test of two means, each with the error of its own tokens, as if measured on different texts."""
    return _normal(pairs, 2 * pairs.own_variance + pairs.iid_variance)


def _normal(pairs: Pairs, variance: Floats) -> Trial:
    total = pairs.counts.sum(axis=1)
    change, stderr = pairs.sums.sum(axis=1) / total, np.sqrt(variance / (total - 1))
    one, two = (ndtri(level) * stderr for level in (CONFIDENCE, 0.5 + CONFIDENCE / 2))
    return Trial(change, change - one, change + one, change - two, change + two)


METHODS: dict[str, Callable[[Pairs], Trial]] = {
    OURS: clustered,
    STUDENT: student,
    "fixed tolerance": fixed,
    "llama.cpp": llama_cpp,
    "unpaired z-test": unpaired,
}


def decisions(judged: Trial) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return who passed, who failed, and whose build fails, each of shape ``[repetitions]``."""
    passed, failed = judged.upper <= LIMIT, judged.lower > LIMIT
    return passed, failed, failed | (~passed & (judged.change > LIMIT))


def require_same_verdicts(pairs: Pairs, judged: Trial, count: int) -> None:
    """Judge the first `count` repetitions by the package itself.

    Raises:
        AssertionError: A bound or a verdict differs.
    """
    passed, failed, builds = decisions(judged)
    for each in range(min(count, len(pairs.sums))):
        found = compare(
            *(
                Sample(sums[:, None], pairs.counts[each].astype(np.int64), Scale("lower", exponential=True), rows=True)
                for sums in (pairs.sums[each], np.zeros(len(pairs.sums[each])))
            ),
            tolerance=Tolerance(TOLERANCE, relative=True),
            confidence=CONFIDENCE,
        )
        here = "pass" if passed[each] else "fail" if failed[each] else "inconclusive"
        upper = math.expm1(judged.upper[each])
        if (found.decision, found.fails_build()) != (here, builds[each]) or not math.isclose(found.upper or 0.0, upper):
            raise AssertionError(f"repetition {each}: {here}, upper bound {upper}, but the package says {found}")


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
