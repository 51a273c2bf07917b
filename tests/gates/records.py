"""Records of gates, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from pytest_lmgate.gates.record import ComparedRecord, GateRecord


def record(value: float | None, stderr: float = 1.0, **others: Any) -> GateRecord:
    """A gate's record with a symmetric interval at 95 %."""
    facts: dict[str, Any] = {
        "id": "test_a.py::test_a::ppl_max[m-d]",
        "metric": "ppl",
        "model": "m",
        "dataset": "d",
        "verdict": "error" if value is None else "pass",
        "value": value,
        "limit": 20.0,
        "stderr": stderr,
        "interval": None if value is None else (value - 1.959964 * stderr, value + 1.959964 * stderr),
        "n": None if value is None else 1000,
        "unit": "token",
        "signature": "protocol:sliding",
        "direction": "" if value is None else "lower",
        "device": "cpu",
        "identity": {} if value is None else {"data": "a" * 64, "protocol": "sliding"},
    }
    return GateRecord(**facts | others)


def compared(degradation: float, noise: float | None = 0.001) -> ComparedRecord:
    """What a comparison with the model fp16 at a tolerance of 1% found; without `noise` its bounds are infinite."""
    ends = (None, None) if noise is None else (degradation - noise, degradation + noise)
    return ComparedRecord("model 'fp16'", 0.01, True, 10.0, "hall", degradation, *ends)
