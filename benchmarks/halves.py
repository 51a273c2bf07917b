"""Real models: verdicts on random halves of a text, against what the whole text says. The models of example_project.

Each model is measured once, every bulletin on its own, by the package's evaluator. Then 200 random halves of the
bulletins are judged, each as if it were all there is. Halves of one text are not new texts: with half of the documents
drawn without replacement, an estimate varies around the whole text's by ``sqrt(1 - 1/2)`` of its standard error, so the
interval, which is meant for new texts, covers the whole text's change more often than 95%. Narrowed by that factor it
should cover it in 95% of halves, if the standard error is right. That is what is checked.
"""

from __future__ import annotations

__all__ = ["real_models"]

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from sides import compare_means

from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.gates import EvaluationSpec, Tolerance
from pytest_lmgate.settings.requests import Protocol
from pytest_lmgate.settings.session import Options
from pytest_lmgate.stats.comparison import Comparison
from pytest_lmgate.stats.means import clustered_mean
from pytest_lmgate.stats.sample import Scale

EXAMPLE = Path(__file__).parents[1] / "example_project"
REFERENCE, DATASET = "float", "bulletins"
TOLERANCES = {
    "int8": (0.0001, 0.0002, 0.0005, 0.001, 0.01),
    "int4": (0.0025, 0.005, 0.0075, 0.01, 0.02),
    "int3": (0.01, 0.03, 0.04, 0.05, 0.1),
}
HALVES, SEED = 200, 12345
_DECISIONS = ("pass", "inconclusive", "fail")
_SCALE = Scale("lower", exponential=True)


@dataclass(frozen=True)
class Measured:
    """NLL sums of both models by document, and the documents' tokens; each of shape ``[documents]``."""

    candidate: NDArray[np.float64]
    reference: NDArray[np.float64]
    counts: NDArray[np.int64]

    def judged(self, tolerance: float, chosen: NDArray[np.int64] | slice = slice(None)) -> Comparison:
        """Return the package's verdict on the chosen documents."""
        parts = (each[chosen] for each in (self.candidate, self.reference, self.counts))
        return compare_means(*parts, scale=_SCALE, tolerance=Tolerance(tolerance, relative=True))


@dataclass(frozen=True)
class Coverage:
    """Shares of halves whose 95% interval holds the whole text's change: as it is, and narrowed by ``sqrt(1/2)``."""

    as_it_is: float
    narrowed: float
    expected: float

    @property
    def holds(self) -> bool:
        """Whether the narrowed interval covers 95%, within three Monte Carlo standard errors."""
        return self.narrowed >= 0.95 - _room(0.95)


def measure() -> dict[str, Measured]:
    """Measure the example's models; a few seconds each."""
    with tempfile.TemporaryDirectory() as cache:
        evaluator = Evaluator(load_project(EXAMPLE, None), Options(cache=Path(cache), offline=True))
        samples = {}
        for model in (REFERENCE, *TOLERANCES):
            samples[model] = evaluator.evaluate(EvaluationSpec("ppl", model, DATASET, Protocol("document"))).sample
        reference = samples.pop(REFERENCE)
        return {model: Measured(s.sums[:, 0], reference.sums[:, 0], s.counts) for model, s in samples.items()}


def halves(documents: int) -> list[NDArray[np.int64]]:
    """Return random halves of the documents' indices."""
    rng = np.random.default_rng(SEED)
    return [np.sort(rng.permutation(documents)[: documents // 2]) for _ in range(HALVES)]


def coverage(measured: Measured) -> Coverage:
    """Say how often the interval of a half holds the change that the whole text has."""
    differences = measured.candidate - measured.reference
    whole = clustered_mean(differences, measured.counts)
    as_it_is, narrowed, expected = [], [], []
    for half in halves(len(differences)):
        found = clustered_mean(differences[half], measured.counts[half])
        bounds, distance = found.bounds(0.975), whole.mean - found.mean
        assert bounds is not None
        below, above = bounds.lower - found.mean, bounds.upper - found.mean
        margin = (above - below) / 2
        as_it_is.append(below <= distance <= above)
        narrowed.append(below <= distance / math.sqrt(0.5) <= above)
        expected.append(1 - 2 * ndtr(-margin / (found.stderr or math.inf) * math.sqrt(2)))
    return Coverage(*(float(np.mean(each)) for each in (as_it_is, narrowed, expected)))


def real_models(docs: Path | None) -> bool:
    """Measure, judge, print, write.

    Returns:
        Whether every coverage holds.
    """
    measured = measure()
    found = {model: coverage(each) for model, each in measured.items()}
    text = "\n".join([*_coverage_table(measured, found), "", *_verdict_table(measured)])
    print(text)
    if docs is not None:
        docs.mkdir(parents=True, exist_ok=True)
        (docs / "halves.md").write_text(f"{_HEAD}\n{text}\n", encoding="utf-8")
    return all(each.holds for each in found.values())


_HEAD = f"""# Real models: random halves of a text

Written by `python benchmarks/decisions.py --only real --docs docs/figures`: candidates of example_project against its
`{REFERENCE}`, perplexity on `{DATASET}`, each bulletin on its own, {HALVES} random halves, seed {SEED}. What is
expected, and why: [decisions.md](../decisions.md#on-real-models).
"""


def _coverage_table(measured: Mapping[str, Measured], found: Mapping[str, Coverage]) -> list[str]:
    lines = [
        "| candidate | bulletins, tokens | change on the whole text | its one-sided 95% bounds "
        "| 95% interval of a half covers it | expected | narrowed by √½ | expected |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for model, each in measured.items():
        whole, share = each.judged(0.01), found[model]
        narrowed = f"{share.narrowed:.1%} ± {_room(share.narrowed):.1%}"
        lines.append(
            f"| `{model}` | {len(each.counts)}, {int(each.counts.sum()):,} | {whole.change:+.3%} "
            f"| {whole.lower:+.3%} to {whole.upper:+.3%} | {share.as_it_is:.1%} | {share.expected:.1%} "
            f"| {narrowed if share.holds else f'**{narrowed}**'} | 95.0% |"
        )
    return lines


def _verdict_table(measured: Mapping[str, Measured]) -> list[str]:
    lines = [
        "| candidate | tolerance | verdict on the whole text | halves: PASS | INCONCLUSIVE | FAIL | build fails |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for model, each in measured.items():
        change = each.judged(0.01).change
        tolerances = {tolerance: f"{100 * tolerance:g}%" for tolerance in TOLERANCES[model]}
        if change > 0:
            tolerances[change] = f"{change:.3%}, the change itself"
        for tolerance, shown in sorted(tolerances.items()):
            verdicts = [each.judged(tolerance, half) for half in halves(len(each.counts))]
            shares = [np.mean([v.decision == decision for v in verdicts]) for decision in _DECISIONS]
            shares.append(np.mean([v.fails_build() for v in verdicts]))
            cells = " | ".join(f"{share:.1%}" for share in shares)
            lines.append(f"| `{model}` | {shown} | {each.judged(tolerance).decision.upper()} | {cells} |")
    return lines


def _room(share: float) -> float:
    return 3 * math.sqrt(share * (1 - share) / HALVES)
