"""Records of a run's result, for tests of what is made of them."""

from collections.abc import Iterable
from typing import Any

from pytest_lmgate.judge.baseline import BaselineEntry, Provenance
from pytest_lmgate.judge.result import Results, Run, Verdict
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.comparison import Comparison

ENTRY = BaselineEntry(
    metric="ppl",
    model="int8",
    dataset="words",
    value=2.0,
    n=100,
    unit="token",
    signature="protocol:sliding",
    identity={"data": "d"},
    provenance=Provenance("2026-01-31", "abc", "cpu", "a processor", {}),
    clusters=[[100, 69.3]],
)


def record(value: float | None, stderr: float = 1.0, **others: Any) -> Verdict:
    """A gate's verdict with a symmetric interval at 95%."""
    facts: dict[str, Any] = {
        "id": "test_a.py::test_a::ppl_max[m-d]",
        "test": "test_a.py::test_a",
        "marker": "ppl_max",
        "metric": "ppl",
        "model": "m",
        "dataset": "d",
        "limit": 20.0,
        "signature": "protocol:sliding",
        "device": "cpu",
    }
    if value is not None:
        interval = (value - 1.959964 * stderr, value + 1.959964 * stderr)
        facts |= {"verdict": "pass", "value": value, "stderr": stderr, "interval": interval, "n": 1000}
        facts |= {"direction": "lower", "identity": {"data": "a" * 64, "protocol": "sliding"}}
    return Verdict.unmeasured(**facts | others)


def compared(degradation: float, noise: float | None = 0.001) -> Comparison:
    """What a comparison with the model fp16 at a tolerance of 1% found; without `noise` its bounds are infinite."""
    ends = (None, None) if noise is None else (degradation - noise, degradation + noise)
    return Comparison(
        decision="inconclusive",
        candidate=10 * (1 + degradation),
        reference=10.0,
        change=degradation,
        degradation=degradation,
        tolerance=Tolerance(0.01, relative=True),
        confidence=0.95,
        n=1000,
        clusters=40,
        lower=ends[0],
        upper=ends[1],
        bounds="hall",
        against="model 'fp16'",
    )


def results_of(verdicts: Iterable[Verdict] = (), **others: Any) -> Results:
    """The results of a run with these verdicts."""
    return Results(run=others.pop("run", Run()), verdicts=tuple(verdicts), **others)
