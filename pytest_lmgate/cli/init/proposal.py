"""Limits and tolerances proposed from one measurement of each model, each with its reason."""

from __future__ import annotations

__all__ = ["Proposal", "proposal_against", "proposals"]

import math
from dataclasses import dataclass, replace
from typing import Any

from pytest_lmgate.cli.measurements.measuring import Measuring
from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.errors import EngineError, ModelError
from pytest_lmgate.metrics.noise.clusters import INTERVAL_NEEDS
from pytest_lmgate.metrics.noise.student import t_quantile
from pytest_lmgate.metrics.score import Score, sample_of

_METRIC_OF = {"causal": "ppl", "masked": "pppl"}
_CONFIDENCE, _POWER = 0.95, 0.8
_LEAST, _MOST = 0.01, 0.1


@dataclass(frozen=True)
class Proposal:
    """The gates of one model.

    Attributes:
        model: Name in lmgate.yaml, as `dataset` is the dataset's.
        score: What was measured.
        reasons: Why these gates, a sentence each: for the limit, the noise, the tolerances.
        limit: Of ``ppl_max`` or ``pppl_max``; None without such a gate.
        tolerance: Of ``no_regression`` against the baseline, likewise.
        against: Name of another model and the tolerance of ``no_regression`` against it, likewise.
    """

    model: str
    dataset: str
    score: Score
    reasons: tuple[str, ...]
    limit: float | None = None
    tolerance: Tolerance | None = None
    against: tuple[str, Tolerance] | None = None

    @property
    def by_baseline(self) -> dict[str, Any] | None:
        """Arguments of ``no_regression`` against the baseline, by name; None without such a gate."""
        return None if self.tolerance is None else {**self._measured, "tolerance": str(self.tolerance)}

    @property
    def gates(self) -> list[tuple[str, dict[str, Any]]]:
        """Markers with their arguments by name, in the order of a marker's own arguments."""
        found: list[tuple[str, dict[str, Any]]] = []
        if self.limit is not None:
            names = {"model": self.model, "dataset": self.dataset}
            found.append((f"{self.score.metric}_max", {**names, "limit": self.limit}))
        if self.by_baseline is not None:
            found.append(("no_regression", self.by_baseline))
        if self.against is not None:
            other, tolerance = self.against
            found.append(("no_regression", {**self._measured, "tolerance": str(tolerance), "against": other}))
        return found

    @property
    def _measured(self) -> dict[str, Any]:
        return {"metric": self.score.metric, "model": self.model, "dataset": self.dataset}


def proposals(session: Measuring, models: list[str], dataset: str, margin: float) -> list[Proposal]:
    """Measure each model and propose its gates, with limits that are a `margin` above the value, as a fraction.

    Raises:
        LmgateError: A model cannot be measured.
    """
    made = [_proposal(_measured(session, model, dataset), model, dataset, margin) for model in models]
    if len(made) < 2:
        return made
    # With two models there is a real pair, of which the noise of a comparison is known.
    return [_paired(each, made[1] if each is made[0] else made[0]) for each in made]


def proposal_against(session: Measuring, model: str, reference: str, dataset: str) -> Proposal:
    """Measure two models and propose a gate by which one is to be no worse than the reference.

    Raises:
        LmgateError: One cannot be measured, they cannot be compared, or the model is far worse.
    """
    from pytest_lmgate.errors import ComparisonError
    from pytest_lmgate.gates.comparisons.paired import compare

    score, other = (_measured(session, each, dataset) for each in (model, reference))
    if score.metric != other.metric:
        raise ComparisonError(f"{model} and {reference} cannot be compared: one is causal, the other is masked")
    try:
        tolerance = Tolerance(_LEAST, relative=True)
        found = compare(sample_of(score), sample_of(other), tolerance=tolerance, confidence=_CONFIDENCE)
    except ComparisonError as error:
        raise ComparisonError(f"{model} and {reference} cannot be compared: {error}") from None
    worst = found.degradation if found.upper is None else found.upper
    word = "better" if found.degradation < 0 else "worse"
    today = f"{model} is {100 * abs(found.degradation):.2g}% {word} than {reference} today"
    if not worst <= _MOST:
        raise ComparisonError(f"{today}: beyond {100 * _MOST:g}% it is no longer the same model")
    tolerance = Tolerance(max(_LEAST, math.ceil(1000 * worst) / 1000), relative=True)
    bound = "with unknown noise" if found.upper is None else f"at most {100 * worst:.2g}% at 95%"
    reason = f"tolerance {tolerance}: {today}, {bound}"
    return Proposal(model, dataset, score, (reason,), against=(reference, tolerance))


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
    measured = f"the {float(score):.6g} that were measured on {score.n:,} {score.unit}s"
    limit, end = float(f"{score * (1 + margin):.4g}"), (score.interval or (0, 0))[1]
    why = f"limit {limit:g}: {100 * margin:g}% above {measured}"
    if limit < end:  # another text of this kind would fail a limit within the noise
        unit = 10.0 ** (math.floor(math.log10(end)) - 3)
        limit = float(f"{math.ceil(end / unit) * unit:.4g}")
        why = f"limit {limit:g}: beyond the interval of {measured}, which reaches further than {100 * margin:g}%"
    tolerance = Tolerance(_LEAST, relative=True)
    by_tolerance = f"tolerance {tolerance}: at most {tolerance} worse than today's baseline"
    return Proposal(model, dataset, score, (why, _noise(score), by_tolerance), limit, tolerance)


def _noise(score: Score) -> str:
    if score.interval is None or score.stderr is None:
        return f"noise: not known; it needs {INTERVAL_NEEDS}"
    low, high = score.interval
    # As Comparison.detectable, but of one value: what shows without pairing.
    df = float(score.details.get("df", math.inf))
    visible = (t_quantile(_CONFIDENCE, df) + t_quantile(_POWER, df)) * score.stderr / score
    return (
        f"noise: the 95% interval is [{low:.6g}, {high:.6g}]; a limit sees a change of {100 * visible:.2g}%; "
        "no_regression compares with the baseline part by part, and sees smaller changes between similar models"
    )


def _paired(proposal: Proposal, other: Proposal) -> Proposal:
    from pytest_lmgate.errors import ComparisonError
    from pytest_lmgate.gates.comparisons.paired import compare

    assert proposal.tolerance is not None  # each model has a gate by its own baseline
    candidate, reference = sample_of(proposal.score), sample_of(other.score)
    try:
        found = compare(candidate, reference, tolerance=proposal.tolerance, confidence=_CONFIDENCE)
    except ComparisonError:  # they have other tokens, and so no pairs
        return proposal
    if found.detectable is None:
        return proposal
    size = min(1.0, max(_LEAST, math.ceil(1000 * found.detectable) / 1000))  # no tolerance is above 100%
    tolerance = Tolerance(size, relative=True)
    why = (
        f"tolerance {tolerance}: paired with {other.model}, the smallest change that this text shows is "
        f"{100 * found.detectable:.2g}%"
    )
    return replace(proposal, tolerance=tolerance, reasons=(*proposal.reasons[:2], why))
