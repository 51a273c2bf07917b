"""`Verdict`: what a gate decided, once, in plain values that travel between processes and are rendered many times."""

from __future__ import annotations

__all__ = ["Bounded", "Former", "Verdict", "judge_bounds", "judge_limit"]

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Literal

import msgspec

from pytest_lmgate.gates.comparisons.comparison import Comparison, needed
from pytest_lmgate.gates.spread import Spread
from pytest_lmgate.gates.where import Where
from pytest_lmgate.metrics.noise.means import Rule
from pytest_lmgate.metrics.noise.student import score_quantile
from pytest_lmgate.metrics.score import Score

Outcome = Literal["pass", "fail", "inconclusive", "error"]


@dataclass(frozen=True)
class Bounded:
    """What a limit gate with a confidence judges by: bounds of the value, not the value; names as in `Comparison`."""

    confidence: float
    lower: float | None = None
    upper: float | None = None
    bounds: Rule | None = None
    clusters: int = 0
    clustered_by: str = "rows"
    needed: int | None = None


@dataclass(frozen=True)
class Former:
    """The entry of the baseline file that a session replaces.

    Attributes:
        value: Its value; None where there was no entry.
        comparison: Of the new value with it; None where they cannot be compared.
        problem: Why they cannot.
    """

    value: float | None = None
    comparison: Comparison | None = None
    problem: str = ""


@dataclass(frozen=True)
class Verdict:
    """One gate's verdict.

    Attributes:
        id: Stable id of the gate.
        test: Node id of the test that carries it.
        model: Model as the user wrote it, as `dataset` is the dataset.
        value: Measured value, or None where it could not be measured; `stderr`, `interval` (95 %), `n`, `unit`,
            `signature`, `iid`, `fingerprint`, `cached` and `seconds` are the score's.
        limit: Limit it was judged by; of a comparison the worst value within the tolerance, None where there was none.
        at_least: Whether the value is only a lower bound, from a measurement stopped early.
        message: What went wrong, for an error.
        cache: What the cache said, where that was asked for.
        worst: Of a failed metric of texts, the worst rows: their number from 0, score, prompt, references and output.
        details: Of a metric of two models, everything that was found, by name.
        blocking: Whether an inconclusive verdict fails the build.
        comparison: Against a reference, where the gate has one; its decision is that before Holm's correction.
        bounded: Of a limit gate with a confidence, the bounds that were judged.
        former: Of a gate whose baseline is measured anew, what its entry was.
        where: Of a comparison that did not pass, where it got worse.
        spread: Of a comparison or a divergence, how its change or distance is spread over rows or blocks; None where
            these are not known.
        arguments: Arguments of the command line that decide what is measured.
        layers: Command that says which layers cost what, where a gate fails whose two models can be mixed.
        direction: ``lower`` if smaller values are better, else ``higher``; empty where nothing was measured.
        device: Where the model ran, as in ``cuda``; empty for texts and functions.
        identity: Digests of what was measured on, and the protocol: values of one identity can be compared.
        file: File in which the gate stands, `line` its line from 1; empty where that is not known.
    """

    id: str
    test: str
    marker: str
    metric: str
    model: str
    dataset: str
    verdict: Outcome
    value: float | None
    limit: float | None
    stderr: float | None = None
    interval: tuple[float, float] | None = None
    n: int | None = None
    unit: str = "token"
    signature: str = ""
    fingerprint: str = ""
    cached: bool = False
    seconds: float = 0.0
    at_least: bool = False
    message: str = ""
    cache: str = ""
    worst: tuple[tuple[int, float, str, str, str], ...] = ()
    iid: bool = False
    details: tuple[tuple[str, float | int | str | None], ...] = ()
    blocking: bool = False
    comparison: Comparison | None = None
    bounded: Bounded | None = None
    former: Former | None = None
    where: Where | None = None
    spread: Spread | None = None
    arguments: tuple[str, ...] = ()
    layers: str = ""
    direction: str = ""
    device: str = ""
    identity: tuple[tuple[str, str], ...] = ()
    file: str = ""
    line: int = 0

    @property
    def label(self) -> str:
        """The gate's short name, which tells it from the others of its test; a gate of lmgate.yaml is its test."""
        return self.id.partition("::")[2] if self.id == self.test else self.id.removeprefix(f"{self.test}::")

    @property
    def failed(self) -> bool:
        """Whether this verdict fails the build."""
        return self.verdict in ("fail", "error") or self.blocking

    @property
    def is_corrected(self) -> bool:
        """Whether Holm's correction for many gates changed the comparison's verdict."""
        return self.comparison is not None and self.comparison.decision != self.verdict

    def to_json(self) -> str:
        """Return one line of JSON, in Python's dialect: an interval may end at ``Infinity``."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        """Read what `to_json` wrote."""
        return msgspec.convert(json.loads(text), cls)


def judge_limit(score: Score, limit: float) -> Outcome:
    """Compare a score with a limit, unrounded; the limit itself passes.

    ``value <= nan`` is false and ``not (value > nan)`` is true, so finiteness is tested first: what is not a number
    is an error.
    """
    if not math.isfinite(score) or not math.isfinite(limit):
        return "error"
    passed = score <= limit if score.direction == "lower" else score >= limit
    return "pass" if passed else "fail"


def judge_bounds(score: Score, limit: float, confidence: float) -> tuple[Outcome, Bounded]:
    """Compare the bounds of a score, each at `confidence`, with a limit: pass if both are within it, fail if beyond."""
    blank = Bounded(confidence)
    measured = judge_limit(score, limit)
    if measured == "error" or score.sample is None:
        return "error", blank
    sample = score.sample
    blank = replace(blank, clusters=sample.clusters, clustered_by=sample.clustered_by)
    bounds = sample.bounds(confidence)
    if bounds is None:
        return "inconclusive", blank
    worse, better = ("upper", "lower") if score.direction == "lower" else ("lower", "upper")
    decisive = better if measured == "fail" else worse
    found = replace(blank, lower=bounds.lower, upper=bounds.upper, bounds=getattr(bounds, f"{decisive}_rule"))
    side = getattr(bounds, decisive)
    if judge_limit(Score(side, direction=score.direction), limit) == measured:
        return measured, found
    # A power of 80 % takes the distance of a normal bound 1.5 times at 95 %.
    df = sample.noise().df if sample.scale is not None and sample.outcomes is None else None
    more = 1 + score_quantile(0.8, df) / score_quantile(confidence, df)
    distance = abs(float(score) - limit)
    return "inconclusive", replace(found, needed=needed(score.n, more * abs(side - float(score)), distance))
