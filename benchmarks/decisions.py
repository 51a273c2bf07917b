"""How often is a no_regression gate right? Simulated pairs with a known change, and what other methods would say.

    python benchmarks/decisions.py                        # every point, two to three minutes on one core
    python benchmarks/decisions.py --docs docs/figures    # and write the table and the figure there; needs matplotlib
    python benchmarks/decisions.py --quick                # a few small points, seconds

Exits with 1 where a promise is broken. Repetitions are vectorized, so the closed form is written out here for many at
once; some repetitions of every point go through `compare_means` too, and a verdict that differs is an error.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from pytest_lmgate.config.tolerance import Tolerance
from pytest_lmgate.gates.comparison import Scale, compare_means

Floats = NDArray[np.float64]

TOLERANCE, CONFIDENCE, SEED = 0.01, 0.95, 12345
LIMIT = math.log1p(TOLERANCE)
DOCUMENTS, SPREADS = (10, 30, 100, 500), (0.0, 0.5, 1.0, 1.5)
MEDIAN_TOKENS = 400
# One model's own NLL varies far more than the difference of two models: between documents, and between tokens.
OWN_DOCUMENTS, OWN_TOKENS = 0.4, 2.5
TRUTHS = ("at the tolerance", "no change", "no change, adequate sample")
CHUNK, CHECKED = 1000, 5


@dataclass(frozen=True)
class Noise:
    """Differences of NLL between two models, in nats: standard deviation of a document's own effect, and of its tokens.

    Attributes:
        documents: Of the effects.
        tokens: Of a token around its document's mean.
        skewed: Whether effects are exponential, most documents a little better and a few much worse, or normal.
    """

    documents: float
    tokens: float
    skewed: bool = False


MAIN = "documents and tokens"
NOISES = {
    MAIN: Noise(0.02, 0.2),
    "documents alone": Noise(0.02, 0.0),
    "tokens alone": Noise(0.0, 0.3),
    "skewed documents": Noise(0.02, 0.2, skewed=True),
}
JUDGED = ("documents and tokens", "documents alone", "tokens alone")


@dataclass(frozen=True)
class Pairs:
    """Repetitions of one point.

    Attributes:
        true: The true change in nats.
        counts: Tokens, shape ``[repetitions, documents]``.
        sums: Of the differences, likewise.
        iid_variance: Of a token's difference, taking tokens as independent; shape ``[repetitions]``.
        own_variance: Of a token's NLL under one model, likewise.
    """

    true: float
    counts: Floats
    sums: Floats
    iid_variance: Floats
    own_variance: Floats


@dataclass(frozen=True)
class Judged:
    """A method's estimate of the change with its error and quantiles for one and two sides, shape ``[repetitions]``."""

    change: Floats
    stderr: Floats
    one_sided: Floats
    two_sided: Floats


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
        scale = LIMIT / (2 * stdtrit(bell_mccaffrey(counts), CONFIDENCE) * np.sqrt(variance) / total)
    true = LIMIT if truth == TRUTHS[0] else 0.0
    effects = rng.standard_exponential(counts.shape) - 1 if noise.skewed else rng.standard_normal(counts.shape)
    around = rng.standard_normal(counts.shape) / np.sqrt(counts)
    means = true + scale[:, None] * (noise.documents * effects + noise.tokens * around)
    own_means = rng.standard_normal(counts.shape) * np.sqrt(OWN_DOCUMENTS**2 + OWN_TOKENS**2 / counts)
    # Squares within documents are chi-squared, whatever the lengths.
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


def bell_mccaffrey(counts: Floats) -> Floats:
    """Degrees of freedom of docs/noise.md, ``tr(M)^2 / tr(M M)``, for each row of ``[repetitions, clusters]``.

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


def clustered(pairs: Pairs) -> Judged:
    """Ours: CR2 between documents, t with Bell-McCaffrey degrees of freedom."""
    total = pairs.counts.sum(axis=1)
    change = pairs.sums.sum(axis=1) / total
    residuals = pairs.sums - change[:, None] * pairs.counts
    stderr = np.sqrt((residuals**2 / (1 - pairs.counts / total[:, None])).sum(axis=1)) / total
    df = bell_mccaffrey(pairs.counts)
    return Judged(change, stderr, stdtrit(df, CONFIDENCE), stdtrit(df, 0.5 + CONFIDENCE / 2))


def fixed(pairs: Pairs) -> Judged:
    """What CI systems use: the measured change against the tolerance, no noise."""
    return _normal(pairs, np.zeros(len(pairs.sums)))


def llama_cpp(pairs: Pairs) -> Judged:
    """llama.cpp's ``u_r``: paired, every token independent."""
    return _normal(pairs, pairs.iid_variance)


def unpaired(pairs: Pairs) -> Judged:
    """A z-test of two means, each with the error of its own tokens, as if measured on different texts."""
    return _normal(pairs, 2 * pairs.own_variance + pairs.iid_variance)


def _normal(pairs: Pairs, variance: Floats) -> Judged:
    total = pairs.counts.sum(axis=1)
    one, two = (np.full(len(total), ndtri(level)) for level in (CONFIDENCE, 0.5 + CONFIDENCE / 2))
    return Judged(pairs.sums.sum(axis=1) / total, np.sqrt(variance / (total - 1)), one, two)


OURS = "pytest-lmgate"
METHODS: dict[str, Callable[[Pairs], Judged]] = {
    OURS: clustered,
    "fixed tolerance": fixed,
    "llama.cpp": llama_cpp,
    "unpaired z-test": unpaired,
}


def decisions(judged: Judged) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return who passed, who failed, and whose build fails, each of shape ``[repetitions]``."""
    passed = judged.change + judged.one_sided * judged.stderr <= LIMIT
    failed = judged.change - judged.one_sided * judged.stderr > LIMIT
    return passed, failed, failed | (~passed & (judged.change > LIMIT))


def require_same_verdicts(pairs: Pairs, judged: Judged, count: int) -> None:
    """Judge the first `count` repetitions by the package itself.

    Raises:
        AssertionError: A bound or a verdict differs.
    """
    passed, failed, builds = decisions(judged)
    for each in range(min(count, len(pairs.sums))):
        found = compare_means(
            pairs.sums[each],
            np.zeros(len(pairs.sums[each])),
            pairs.counts[each].astype(np.int64),
            scale=Scale("lower", exponential=True),
            tolerance=Tolerance(TOLERANCE, relative=True),
            confidence=CONFIDENCE,
        )
        here = "pass" if passed[each] else "fail" if failed[each] else "inconclusive"
        upper = math.expm1(judged.change[each] + judged.one_sided[each] * judged.stderr[each])
        if (found.decision, found.fails_build()) != (here, builds[each]) or not math.isclose(found.upper or 0.0, upper):
            raise AssertionError(f"repetition {each}: {here}, upper bound {upper}, but compare_means says {found}")


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
                    covered = np.abs(judged.change - pairs.true) <= judged.two_sided * judged.stderr
                    sums[method] += [each.sum() for each in (*decisions(judged), covered)]
            points += [Point(noise, count, spread, truth, method, *sums[method] / repetitions) for method in METHODS]
        yield points


def broken_promises(points: Iterable[Point], repetitions: int) -> list[str]:
    """Return each promise that a point of ours breaks by more than three Monte Carlo standard errors."""
    broken = []
    for point in points:
        if point.method != OURS or point.noise not in JUDGED:
            continue
        promises = [("FAIL", point.failed, 0.05, False)]
        if point.truth == TRUTHS[0]:
            promises += [("PASS", point.passed, 0.05, False), ("coverage", point.covered, 0.95, True)]
        if point.truth == TRUTHS[2]:
            promises += [("PASS", point.passed, 0.95, True), ("FAIL", point.failed, 0.01, False)]
        for what, share, level, at_least in promises:
            room = 3 * math.sqrt(level * (1 - level) / repetitions)
            if share < level - room if at_least else share > level + room:
                sign = ">=" if at_least else "<="
                where = f"{point.noise}, {point.documents} documents, sigma {point.spread}, {point.truth}"
                broken.append(f"{where}: {what} {share:.2%}, promised {sign} {level:.0%} within {room:.2%}")
    return broken


def tables(points: Sequence[Point], repetitions: int) -> str:
    """Return the tables as Markdown."""
    at = {(p.noise, p.documents, p.spread, p.truth, p.method): p for p in points}
    settings = list(dict.fromkeys((p.noise, p.documents, p.spread) for p in points))

    def shown(share: float) -> str:
        return f"{100 * share:.1f} ± {300 * math.sqrt(share * (1 - share) / repetitions):.1f}"

    tolerance, unchanged, adequate = TRUTHS
    lines = [
        "# Decisions: how often a verdict is right",
        "",
        f"Written by `python benchmarks/decisions.py --docs docs/figures`: {repetitions:,} repetitions per point, seed "
        f"{SEED}, tolerance {TOLERANCE:.0%}, confidence {CONFIDENCE:.0%}. Percent of repetitions ± three Monte Carlo "
        "standard errors of that figure.",
        f"Documents have {MEDIAN_TOKENS} tokens in the median, lognormal with the sigma given. How the pairs are made "
        "and what is promised: [no_regression.md](../no_regression.md).",
        "",
    ]
    for noise in dict.fromkeys(p.noise for p in points):
        kind = NOISES[noise]
        effects = "exponential" if kind.skewed else "normal"
        promised = "" if noise in JUDGED else " Outside the working model: shown, not promised."
        lines += [
            f"## pytest-lmgate, noise of {noise}",
            "",
            f"Differences of NLL vary by {kind.documents:g} nat between documents ({effects}) and by {kind.tokens:g} "
            f"nat between tokens.{promised}",
            "",
            "| documents | sigma | change = tolerance: PASS | FAIL | 95 % interval covers | no change: PASS | FAIL "
            "| build fails | no change, adequate sample: PASS | FAIL | build fails |",
            "|--:|--:" + "|--:" * 9 + "|",
        ]
        for _, count, spread in (setting for setting in settings if setting[0] == noise):
            t, u, a = (at[noise, count, spread, truth, OURS] for truth in TRUTHS)
            shares = [t.passed, t.failed, t.covered, u.passed, u.failed, u.builds, a.passed, a.failed, a.builds]
            lines.append(f"| {count} | {spread:g} | " + " | ".join(map(shown, shares)) + " |")
        lines.append("")
    columns: list[tuple[str, str, Callable[[Point], float]]] = [
        ("Change = tolerance: PASS", tolerance, lambda p: p.passed),
        ("Change = tolerance: the 95 % interval covers", tolerance, lambda p: p.covered),
        ("No change: PASS", unchanged, lambda p: p.passed),
        ("No change: verdict FAIL", unchanged, lambda p: p.failed),
        ("No change, adequate sample: PASS", adequate, lambda p: p.passed),
    ]
    for title, truth, share in columns:
        lines += [
            f"## {title}",
            "",
            f"| documents | sigma | {' | '.join(METHODS)} |",
            "|--:|--:|" + "--:|" * len(METHODS),
        ]
        for noise, count, spread in settings:
            if noise == MAIN:
                cells = [shown(share(at[noise, count, spread, truth, method])) for method in METHODS]
                lines.append(f"| {count} | {spread:g} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def load_matplotlib() -> Any:
    """Return pyplot, drawing to files.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise SystemExit(
            "the figure needs matplotlib: pip install matplotlib, or leave it out with --no-figure"
        ) from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "decisions"
    return importlib.import_module("matplotlib.pyplot")


def draw(plt: Any, points: Sequence[Point], path: Path) -> None:
    """Draw what each method says against the number of documents: a row per truth, a column per sigma."""
    rows: list[tuple[str, str, Callable[[Point], float]]] = [
        ("PASS, %\n(change = tolerance)", TRUTHS[0], lambda p: p.passed),
        ("PASS, %\n(no change)", TRUTHS[1], lambda p: p.passed),
    ]
    main = [p for p in points if p.noise == MAIN]
    spreads = list(dict.fromkeys(p.spread for p in main))
    figure, axes = plt.subplots(
        2, len(spreads), figsize=(2.6 * len(spreads), 5), sharex=True, sharey="row", squeeze=False
    )
    for row, (label, truth, share) in enumerate(rows):
        for axis, spread in zip(axes[row], spreads, strict=True):
            for method in METHODS:
                chosen = [p for p in main if (p.spread, p.truth, p.method) == (spread, truth, method)]
                axis.plot(
                    [p.documents for p in chosen], [100 * share(p) for p in chosen], "o-", ms=3, lw=1.2, label=method
                )
            axis.axhline(5 if truth == TRUTHS[0] else 95, color="0.5", lw=0.8, ls=":")
            axis.set(xscale="log", ylim=(-2, 60 if truth == TRUTHS[0] else 102))
        axes[row][0].set_ylabel(label)
    for axis, spread in zip(axes[0], spreads, strict=True):
        axis.set_title(f"lengths: sigma {spread:g}", fontsize=9)
    for axis in axes[1]:
        axis.set_xlabel("documents")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=len(METHODS), frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, print, write; return the exit status."""
    parser = argparse.ArgumentParser(description="How often the verdicts of a no_regression gate are right.")
    parser.add_argument("--quick", action="store_true", help="a few small points with 400 repetitions")
    parser.add_argument("--repetitions", type=int, default=20_000, help="per point (default: %(default)s)")
    parser.add_argument("--docs", type=Path, help="folder for decisions.md and decisions.svg")
    parser.add_argument("--no-figure", action="store_true", help="write the table alone")
    options = parser.parse_args(arguments)
    if options.repetitions < 1:
        parser.error(f"--repetitions: expected at least 1, got {options.repetitions}")
    plt = None if options.docs is None or options.no_figure else load_matplotlib()
    repetitions = 400 if options.quick else options.repetitions
    documents, spreads = ((10, 30), (0.0, 1.5)) if options.quick else (DOCUMENTS, SPREADS)
    points: list[Point] = []
    for found in run(NOISES, documents, spreads, repetitions):
        points += found
        ours = [p for p in found if p.method == OURS]
        shares = ", ".join(f"{p.truth}: {p.passed:.1%} pass, {p.failed:.1%} fail, {p.builds:.1%} builds" for p in ours)
        print(f"{ours[0].noise}, {ours[0].documents} documents, sigma {ours[0].spread:g}: {shares}", flush=True)
    if options.docs is not None:
        options.docs.mkdir(parents=True, exist_ok=True)
        (options.docs / "decisions.md").write_text(tables(points, repetitions), encoding="utf-8")
        if plt is not None:
            draw(plt, points, options.docs / "decisions.svg")
    broken = broken_promises(points, repetitions)
    for promise in broken:
        print(f"BROKEN {promise}")
    print(f"{len(broken)} promises broken, {repetitions:,} repetitions at each of {len(points) // len(METHODS)} points")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
