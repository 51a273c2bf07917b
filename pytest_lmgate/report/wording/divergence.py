"""What a failed gate on two models says beside its own number: a few of the figures, under llama.cpp's names."""

from __future__ import annotations

__all__ = ["divergence_lines"]

import math
from collections.abc import Mapping

_IID = ", iid stderr (tokens as independent)"
# Each line of figures; those of the probabilities are shown as percentages.
_SHOWN = (
    ("Mean PPL(Q)", "Mean PPL(base)", "Mean ln(PPL(Q)/PPL(base))", "Mean PPL(Q)/PPL(base)"),
    ("Mean KLD", "Median KLD", "99.0% KLD", "99.9% KLD", "Maximum KLD"),
    ("Mean Δp", "1.0% Δp", "99.0% Δp", "RMS Δp", "Same top p"),
)


def divergence_lines(details: Mapping[str, object], *, iid: bool) -> list[str]:
    """Return the details of a score of two models in lines, with llama.cpp's errors (`iid`) or those of clusters."""
    return [", ".join(_figure(name, details, iid) for name in names if name in details) for names in _SHOWN]


def _figure(name: str, details: Mapping[str, object], iid: bool) -> str:
    value, error = _finite(details[name]), _finite(details.get(f"{name}{_IID if iid else ', stderr'}"))
    percent = "Δp" in name or name == "Same top p"
    return f"{name} {_number(value, percent)}" + ("" if error is None else f" ± {_number(error, percent)}")


def _finite(value: object) -> float | None:
    """Return a finite number; None for any other, and for the null that a JSON report has in its place."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _number(value: float | None, percent: bool) -> str:
    if value is None:
        return "not finite"
    return f"{100 * value:.4g}%" if percent else f"{value:.5g}"
