"""Where the marks of a gate's plot stand on its axis; the page draws them."""

from __future__ import annotations

__all__ = ["Mark", "Plot", "axis", "plot_of"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.wording.rows import Row

_MARGIN = 12.0  # percent of the axis on each side, for labels


@dataclass(frozen=True)
class Mark:
    """A number on the axis: `at` is in percent from the left, `label` what stands beside it."""

    at: float
    label: str

    @property
    def anchor(self) -> str:
        """How the label is aligned, so that it stays within the plot."""
        return "start" if self.at < 30 else "end" if self.at > 70 else "middle"


@dataclass(frozen=True)
class Plot:
    """A number with its noise against its limit, and against zero change where there is a reference.

    Attributes:
        title: What the axis shows.
        value: The number that was judged.
        low: Left end of its noise, in percent, as `high` is the right end; equal where there is none.
        limit: The limit or the tolerance.
        reference: Where the reference stands, if there is one.
        fails_from: Left end of the part of the axis that fails, in percent, as `fails_to` is its right end.
    """

    title: str
    value: Mark
    low: float
    high: float
    limit: Mark
    reference: Mark | None
    fails_from: float
    fails_to: float


def plot_of(verdict: Verdict) -> Plot | None:
    """Return the plot of a verdict: of a comparison its degradation, else its value. None without numbers to draw."""
    row, found = Row.of(verdict), verdict.comparison
    if found is not None:
        title = "degradation with its one-sided bounds; the right is worse"
        bounds = (found.lower, found.upper)
        numbers = (found.degradation, found.tolerance.size)
        labels, fails_above = (row.change, f"tolerance {row.tolerance}"), True
    elif verdict.value is not None and verdict.limit is not None:
        title = "value with its interval at 95%"
        bounds = verdict.interval or (None, None)
        if verdict.bounded is not None and verdict.bounded.lower is not None:
            title = f"value with its one-sided bounds at {100 * verdict.bounded.confidence:g}%"
            bounds = (verdict.bounded.lower, verdict.bounded.upper)
        numbers = (verdict.value, verdict.limit)
        labels, fails_above = (row.value, f"limit {row.limit}"), verdict.marker.endswith("_max")
    else:
        return None
    zero = [0.0] if found is not None else []
    shown = [number for number in (*numbers, *bounds, *zero) if number is not None and math.isfinite(number)]
    if not all(map(math.isfinite, numbers)):
        return None
    place = axis(shown)
    value, limit = (Mark(place(number), label) for number, label in zip(numbers, labels, strict=True))
    low, high = (value.at if bound is None else place(bound) for bound in bounds)
    return Plot(
        title=title,
        value=value,
        low=low,
        high=high,
        limit=limit,
        reference=None if found is None else Mark(place(0.0), f"reference {row.limit}"),
        fails_from=limit.at if fails_above else 0.0,
        fails_to=100.0 if fails_above else limit.at,
    )


def axis(shown: Sequence[float]) -> Callable[[float], float]:
    """Return what turns a number into percent of the plot's width; what is infinite stands at its edge."""
    low, width = min(shown), max(shown) - min(shown)

    def place(number: float) -> float:
        if not math.isfinite(number):
            return 100.0 if number > 0 else 0.0
        share = (number - low) / width if 0 < width < math.inf else 0.5
        return round(_MARGIN + share * (100 - 2 * _MARGIN), 2)

    return place
