"""`Verdict`: what a gate decided, once, in plain values that travel between processes and are rendered many times."""

from __future__ import annotations

__all__ = ["Verdict", "judge_limit"]

import json
import math
from dataclasses import asdict, dataclass
from typing import Literal

from pytest_lmgate.gates.change import Change
from pytest_lmgate.metrics.score import Score

Outcome = Literal["pass", "fail", "inconclusive", "error"]


@dataclass(frozen=True)
class Verdict:
    """One gate's verdict.

    Attributes:
        id: Stable id of the gate.
        test: Node id of the test that carries it.
        marker: Name of the marker.
        metric: Name of the metric.
        model: Model as the user wrote it.
        dataset: Dataset likewise.
        verdict: ``pass``, ``fail``, ``inconclusive`` or ``error``.
        value: Measured value, or None where it could not be measured.
        limit: Limit it was judged by; of a comparison the worst value within the tolerance, None where there was none.
        stderr: Standard error of the value.
        interval: 95 % interval of the value.
        n: Targets or rows.
        unit: What `n` counts.
        signature: How to reproduce the number.
        fingerprint: Address of the measurement.
        cached: Whether it came from the cache.
        seconds: Time of measuring or looking up.
        at_least: Whether the value is only a lower bound, from a measurement stopped early.
        message: What went wrong, for an error.
        cache: What the cache said, where that was asked for.
        worst: Of a failed metric of texts, the worst rows: their number from 0, score, references and output.
        details: Of a metric of two models, everything that was found, by name.
        blocking: Whether an inconclusive verdict fails the build.
        change: Against a reference, where the gate has one.
        arguments: Of the command line, those that decide what is measured.
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
    worst: tuple[tuple[int, float, str, str], ...] = ()
    details: tuple[tuple[str, float | int | str | None], ...] = ()
    blocking: bool = False
    change: Change | None = None
    arguments: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The gate's short name, which tells it from the others of its test; a gate of lmgate.yaml is its test."""
        return self.id.partition("::")[2] if self.id == self.test else self.id.removeprefix(f"{self.test}::")

    @property
    def failed(self) -> bool:
        """Whether the build fails by it."""
        return self.verdict in ("fail", "error") or self.blocking

    def to_json(self) -> str:
        """Return one line of JSON, in Python's dialect: an interval may end at ``Infinity``."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        if data["interval"] is not None:
            data["interval"] = tuple(data["interval"])
        data["details"] = tuple((name, value) for name, value in data["details"])
        data["arguments"] = tuple(data["arguments"])
        data["worst"] = tuple(tuple(row) for row in data["worst"])
        if data["change"] is not None:
            data["change"] = Change(**{**data["change"], "notes": tuple(data["change"]["notes"])})
        return cls(**data)


def judge_limit(score: Score, limit: float) -> Outcome:
    """Compare a score with a limit, unrounded; the limit itself passes.

    ``value <= nan`` is false and ``not (value > nan)`` is true, so finiteness is tested first: what is not a number
    is an error.
    """
    if not math.isfinite(score) or not math.isfinite(limit):
        return "error"
    passed = score <= limit if score.direction == "lower" else score >= limit
    return "pass" if passed else "fail"
