"""The properties of a test case in JUnit's XML: each a plain value, under ``lmgate.<gate>.<key>``."""

from __future__ import annotations

__all__ = ["properties"]

from pytest_lmgate.gates.verdict import Verdict

_KEYS = ("verdict", "value", "limit", "stderr", "n", "unit", "signature", "message")
_OF_A_COMPARISON = ("reference", "degradation", "lower", "upper", "tolerance", "confidence")


def properties(verdict: Verdict) -> dict[str, str | float]:
    """Return the properties of a verdict; keys without a value are left out.

    A comparison has besides its reference, the degradation with its one-sided bounds, and the tolerance.
    """
    found = {key: getattr(verdict, key) for key in _KEYS}
    if verdict.comparison is not None:
        found |= {key: getattr(verdict.comparison, key) for key in _OF_A_COMPARISON}
        found["tolerance"] = str(verdict.comparison.tolerance)
    return {key: value for key, value in found.items() if value is not None and value != ""}
