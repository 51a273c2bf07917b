"""Limits and tolerances proposed from one measurement of each model, each with its reason."""

from __future__ import annotations

__all__ = ["Proposal", "proposals"]

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_lmgate.cli.measuring import Measuring
from pytest_lmgate.config.tolerance import Tolerance
from pytest_lmgate.errors import EngineError, ModelError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.student import t_quantile

if TYPE_CHECKING:
    from pytest_lmgate.metrics.sample import Sample

_METRIC_OF = {"causal": "ppl", "masked": "pppl"}
_CONFIDENCE, _POWER = 0.95, 0.8
_LEAST = 0.01


@dataclass(frozen=True)
class Proposal:
    """The gates of one model.

    Attributes:
        model: Name in lmgate.yaml, as `dataset` is the dataset's.
        score: What was measured.
        limit: Of ``ppl_max`` or ``pppl_max``.
        tolerance: Of ``no_regression``.
        reasons: Why these, a sentence each: for the limit, the noise, the tolerance.
    """

    model: str
    dataset: str
    score: Score
    limit: float
    tolerance: Tolerance
    reasons: tuple[str, ...]

    @property
    def gates(self) -> list[tuple[str, dict[str, Any]]]:
        """Markers with their arguments by name, in the order of a marker's own arguments."""
        names = {"model": self.model, "dataset": self.dataset}
        return [
            (f"{self.score.metric}_max", {**names, "limit": self.limit}),
            ("no_regression", {"metric": self.score.metric, **names, "tolerance": str(self.tolerance)}),
        ]


def proposals(session: Measuring, models: list[str], dataset: str, margin: float) -> list[Proposal]:
    """Measure each model and propose its gates.

    Args:
        session: Knows the models and the dataset.
        models: Names.
        dataset: Name.
        margin: How far above the measured value the limit is, as a fraction.

    Raises:
        LmgateError: A model cannot be measured.
    """
    made = [_proposal(_measured(session, model, dataset), model, dataset, margin) for model in models]
    if len(made) < 2:
        return made
    # With two models there is a real pair, of which the noise of a comparison is known.
    return [_paired(each, made[1] if each is made[0] else made[0]) for each in made]


def _measured(session: Measuring, model: str, dataset: str) -> Score:
    kind = session.evaluator.resolver.model(model).kind
    if kind not in _METRIC_OF:
        raise ModelError(
            f"model {model!r}: expected a causal or a masked model, got an {kind} one; its gates need a dataset with "
            "prompts and references, which docs/texts.md says how to write"
        )
    score = session.measure(_METRIC_OF[kind], model=model, dataset=dataset)
    assert isinstance(score, Score)
    if not score.is_finite:
        raise EngineError(f"the perplexity of {model!r} on {dataset!r} is {float(score)}: no limit can be proposed")
    return score


def _proposal(score: Score, model: str, dataset: str, margin: float) -> Proposal:
    limit = float(f"{score * (1 + margin):.4g}")
    measured = f"the {float(score):.6g} that were measured on {score.n:,} {score.unit}s"
    why = f"limit {limit:g}: {100 * margin:g} % above {measured}"
    tolerance = Tolerance(_LEAST, relative=True)
    by_tolerance = f"tolerance {tolerance}: not worse than today's baseline by more than that"
    return Proposal(model, dataset, score, limit, tolerance, (why, _noise(score), by_tolerance))


def _noise(score: Score) -> str:
    if score.interval is None or score.stderr is None:
        return "noise: not known, the text is a single cluster; a longer text would show smaller changes"
    low, high = score.interval
    # As Comparison.detectable, but of one value: what shows without pairing.
    df = float(score.details.get("df", math.inf))
    visible = (t_quantile(_CONFIDENCE, df) + t_quantile(_POWER, df)) * score.stderr / score
    return (
        f"noise: the 95 % interval is [{low:.6g}, {high:.6g}]; a change of {100 * visible:.2g} % would show without "
        "pairing, and no_regression pairs every token with the baseline's"
    )


def _paired(proposal: Proposal, other: Proposal) -> Proposal:
    from pytest_lmgate.errors import ComparisonError
    from pytest_lmgate.gates.paired import compare

    candidate, reference = _sample(proposal), _sample(other)
    if candidate is None or reference is None:
        return proposal
    try:
        found = compare(candidate, reference, tolerance=proposal.tolerance, confidence=_CONFIDENCE)
    except ComparisonError:  # they have other tokens, and so no pairs
        return proposal
    if found.detectable is None:
        return proposal
    size = max(_LEAST, math.ceil(1000 * found.detectable) / 1000)
    tolerance = Tolerance(size, relative=True)
    why = (
        f"tolerance {tolerance}: paired with {other.model}, the smallest change that this text shows is "
        f"{100 * found.detectable:.2g} %"
    )
    return replace(proposal, tolerance=tolerance, reasons=(*proposal.reasons[:2], why))


def _sample(proposal: Proposal) -> Sample | None:
    return proposal.score.sample
