"""Axes with round ticks, and where the marks of a gate's plot stand on one; the page draws them."""

from __future__ import annotations

__all__ = ["Axis", "Mark", "Plot", "axis", "plot_of"]

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.wording.excerpt import excerpt
from pytest_lmgate.report.wording.numbers import rounded
from pytest_lmgate.report.wording.rows import Row

_NAME = 300
_MARGIN = 12.0  # percent of the axis on each side, for labels
_ROOM = 0.08  # of the range, beyond the outermost number on each side


@dataclass(frozen=True)
class Mark:
    """A number on the axis: `at` is in percent from the left, `label` what stands beside it."""

    at: float
    label: str

    @property
    def side(self) -> str:
        """The class of a long label: which of its ends stands at the mark, so that it stays within the plot."""
        return "first" if self.at < 30 else "last" if self.at > 70 else ""


@dataclass(frozen=True)
class Axis:
    """A linear axis, of which places are in percent; its ticks stand at round numbers."""

    low: float
    high: float
    ticks: Sequence[Mark]

    @classmethod
    def over(cls, numbers: Iterable[float | None], *, most: int = 7, form: str = "", unit: str = "") -> Axis | None:
        """Return an axis that shows all numbers that are finite; None if they are too far apart to be drawn.

        It has room on both sides. Without signs it ends at 0 and at 1 where the numbers do: a share ends there.
        """
        shown = [number for number in numbers if number is not None and math.isfinite(number)] or [0.0]
        low, high = min(shown), max(shown)
        room = max(_ROOM * (high - low), 1e-6 * max(abs(low), abs(high))) or 1.0
        begin, end = low - room, high + room
        if not form:
            begin, end = max(begin, 0.0) if low >= 0 else begin, min(end, 1.0) if high <= 1 else end
        return cls.between(begin, end, most=most, form=form, unit=unit)

    @classmethod
    def between(cls, low: float, high: float, *, most: int = 7, form: str = "", unit: str = "") -> Axis | None:
        """Return an axis with these ends and so many ticks at most; None if it cannot be drawn."""
        if not 1e-300 < high - low < math.inf:
            return None
        least = (high - low) / most
        magnitude = 10.0 ** math.floor(math.log10(least))
        step = next(size * magnitude for size in (1, 2, 5, 10) if size * magnitude >= least)
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        style = f"{form},.{decimals}f" if decimals < 6 and max(abs(low), abs(high)) < 1e6 else f"{form}.3g"
        plain = cls(low, high, ())
        numbers = [count * step for count in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
        return cls(
            low, high, [Mark(plain.place(number), f"{number:{style}}{unit}" if number else "0") for number in numbers]
        )

    def place(self, number: float) -> float:
        """Return where a number stands; what is beyond the axis stands at its end."""
        if number in (math.inf, -math.inf):
            return 100.0 if number > 0 else 0.0
        return round(min(max(100 * (number - self.low) / (self.high - self.low), 0.0), 100.0), 1)


@dataclass(frozen=True)
class Plot:
    """A number with its noise against its limit, and against zero change where there is a reference.

    Attributes:
        title: What the axis shows.
        value: The number that was judged.
        low: Left end of its noise, in percent, as `high` is the right end; equal where there is none.
        limit: The limit or the tolerance.
        reference: Where the reference stands, in percent, if there is one.
        fails_from: Left end of the part of the axis that fails, in percent, as `fails_to` is its right end.
    """

    title: str
    axis: Axis
    value: Mark
    low: float
    high: float
    limit: Mark
    reference: float | None
    fails_from: float
    fails_to: float


def plot_of(verdict: Verdict) -> Plot | None:
    """Return the plot of a verdict: of a comparison its degradation, else its value. None without numbers to draw."""
    row, found = Row.of(verdict), verdict.comparison
    scale, form, unit = 1.0, "", ""
    if found is not None:
        scale, unit = (100.0, "%") if found.tolerance.relative else (1.0, "")
        form, fails_above = "+", True
        against = excerpt(found.against, _NAME)
        title = f"change from {row.limit}, the value of the {against}, with one-sided bounds; the right is worse"
        numbers, bounds = (found.degradation, found.tolerance.size), (found.lower, found.upper)
        labels = (row.change.partition(" [")[0], f"tolerance {row.tolerance}")
    elif verdict.value is not None and verdict.limit is not None:
        title = "value with its 95% interval"
        bounds = verdict.interval or (None, None)
        if verdict.bounded is not None and verdict.bounded.lower is not None:
            title = f"value with its one-sided {100 * verdict.bounded.confidence:g}% bounds"
            bounds = (verdict.bounded.lower, verdict.bounded.upper)
        numbers, fails_above = (verdict.value, verdict.limit), verdict.marker.endswith("_max")
        labels = (rounded(*numbers), f"limit {row.limit}")
    else:
        return None
    shown = [scale * number for number in (*numbers, *(each for each in bounds if each is not None))]
    line = Axis.over([*shown, None if found is None else 0.0], form=form, unit=unit)
    if line is None or not all(map(math.isfinite, numbers)):
        return None
    value, limit = (Mark(line.place(scale * each), label) for each, label in zip(numbers, labels, strict=True))
    low, high = (value.at if bound is None else line.place(scale * bound) for bound in bounds)
    return Plot(
        title=title,
        axis=line,
        value=value,
        low=low,
        high=high,
        limit=limit,
        reference=None if found is None else line.place(0.0),
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
