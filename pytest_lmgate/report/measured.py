"""`Measured`: what a fixture such as ``ppl_of`` measured for a test. It has no verdict: the test's own code judges."""

from __future__ import annotations

__all__ = ["Measured", "measured_line"]

from dataclasses import dataclass

from pytest_lmgate.metrics.divergence import Divergence
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.report.wording.numbers import interval, number


@dataclass(frozen=True)
class Measured:
    """One measurement, in plain values that travel between processes; names as in `Verdict`.

    Attributes:
        test: Node id of the test that ran when the fixture was asked.
        details: Of `compare_of`, all figures by name; the value is the mean KL divergence.
    """

    test: str
    fixture: str
    metric: str
    model: str
    dataset: str
    value: float
    stderr: float | None
    interval: tuple[float, float] | None
    n: int
    unit: str
    signature: str
    fingerprint: str
    cached: bool
    seconds: float
    details: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, test: str, fixture: str, found: Score | Divergence) -> Measured:
        """Return what a fixture found for a test."""
        both = {key: getattr(found, key) for key in ("model", "dataset", "n", "fingerprint", "cached", "seconds")}
        both |= {"test": test, "fixture": fixture, "signature": str(found.signature)}
        if isinstance(found, Score):
            own = {key: getattr(found, key) for key in ("metric", "unit", "value", "stderr", "interval")}
            return cls(**both, **own)
        value, stderr, details = found.kl.value, found.kl.stderr, tuple(found.details.items())
        return cls(**both, metric="kl", unit="token", value=value, stderr=stderr, interval=None, details=details)


def measured_line(found: Measured) -> str:
    """Return a measurement in one line."""
    noise = f" {interval(*found.interval)}" if found.interval else ""
    source = f" of {found.model!r} on {found.dataset!r}" if found.model else ""
    cached = ", cached" if found.cached else ""
    return f"measured in {found.test}: {found.fixture} {number(found.value)}{noise}{source}{cached}"
