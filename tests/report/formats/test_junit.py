"""The properties of a test case in JUnit's XML: plain values."""

from __future__ import annotations

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.formats.junit import properties


def test_a_comparison_adds_its_reference_bounds_and_tolerance(failed: Verdict, compared: Verdict) -> None:
    assert list(properties(failed)) == ["verdict", "value", "limit", "stderr", "n", "unit", "signature"]
    assert properties(compared) == {
        **properties(failed),
        "reference": 16.5,
        "degradation": 0.1,
        "lower": 0.09,
        "upper": 0.11,
        "tolerance": "1%",
        "confidence": 0.95,
    }
