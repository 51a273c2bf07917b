"""Numbers as people read them: values, intervals, changes with their bounds."""

from __future__ import annotations

__all__ = ["degradation", "interval", "number", "rounded", "size", "tolerance"]

import math
from collections.abc import Sequence

from pytest_lmgate.gates.comparisons.comparison import Comparison
from pytest_lmgate.gates.record import ComparedRecord
from pytest_lmgate.metrics.table import METRICS, USERS_METRIC


def number(value: float) -> str:
    """Six significant digits."""
    return f"{value:.6g}"


def rounded(value: float, limit: float | None = None) -> str:
    """Return a value in three digits, or in as many more as it takes to stand on its side of the limit."""
    for digits in range(3, 18):
        text = f"{value:#.{digits}g}"
        sides = [(each > limit, each < limit) for each in (value, float(text))] if limit is not None else [0, 0]
        if sides[0] == sides[1]:
            break
    return f"{float(text):,.15g}" if 1e3 <= abs(value) < 1e6 else text.rstrip(".")


def interval(low: float, high: float) -> str:
    """Return both ends in six digits each, as in ``[17.25, 19.0625]``."""
    return f"[{number(low)}, {number(high)}]"


def size(found: Comparison | ComparedRecord, value: float, form: str = ".4g") -> str:
    """Return a change in the unit of the tolerance: in percent, or in the metric's own."""
    return f"{100 * value:{form}}%" if found.tolerance.relative else f"{value:{form}}"


def tolerance(found: Comparison | ComparedRecord, metric: str) -> str:
    """Return a tolerance as it was written and what it comes to: ``5% (2.5 points)``, ``1.5 ppl (41%)``.

    A percentage is one of the reference's value, which for a share is not a number of points.
    """
    row, written, amount = METRICS.get(metric, USERS_METRIC), str(found.tolerance), found.tolerance.size
    reference = abs(found.reference or 0.0)
    share = "" if found.tolerance.relative or not reference else f"{_short(100 * amount / reference)}%"
    if found.tolerance.relative:
        amount *= reference
    points = _short(amount * (100 if row.scale == 1 else 1))
    in_points = f"{points} point{'s' * (points != '1')}" if row.unit == "points" else ""
    if not (found.tolerance.relative or row.scale == 1):
        written, in_points = in_points or f"{written} {row.unit}".rstrip(), ""
    more = ", ".join(filter(None, (in_points, share)))
    return f"{written} ({more})" if more else written


def _short(value: float) -> str:
    """Two significant digits, without an exponent where a person would not write one."""
    return f"{float(f'{value:.2g}'):g}"


def degradation(found: Comparison | ComparedRecord) -> str:
    """Return the change with its one-sided bounds, as in ``+0.65% [+0.52, +0.78]``; plus is worse."""
    if found.lower is None or found.upper is None:
        return f"{size(found, found.degradation, '+.4g')} (no bounds)"
    scale, unit = (100, "%") if found.tolerance.relative else (1, "")
    shown = [scale * value for value in (found.degradation, found.lower, found.upper)]
    decimals = _decimals(shown, scale * found.tolerance.size)
    measured, lower, upper = (
        f"{value + 0:+.4g}" if decimals is None else f"{value + 0:+.{decimals}f}" for value in shown
    )
    return f"{measured}{unit} [{lower}, {upper}]"


def _decimals(shown: Sequence[float], tolerance: float) -> int | None:
    """Decimals that show two digits of the noise and each number on its side of the tolerance, where there are such."""
    width = (max(shown) - min(shown)) / 2
    if not 0 < width < math.inf or max(map(abs, shown)) >= 1e6:
        return None
    fewest = max(0, 1 - math.floor(math.log10(width)))
    sides = [(value > tolerance) - (value < tolerance) for value in shown]
    for decimals in range(fewest, fewest + 18):  # with which a float is itself
        rounded = [round(value, decimals) for value in shown]
        if sides == [(value > tolerance) - (value < tolerance) for value in rounded]:
            return decimals
    return None
