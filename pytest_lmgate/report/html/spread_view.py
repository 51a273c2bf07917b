"""How a change or a distance is spread over rows, as the page draws it: a histogram."""

from __future__ import annotations

__all__ = ["SpreadView", "spread_view"]

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from pytest_lmgate.gates.spread import Spread
from pytest_lmgate.report.wording.excerpt import excerpt

HEIGHT = 40
_LINE = 100


@dataclass(frozen=True)
class SpreadView:
    """A histogram, ``[bins, 40]`` units large.

    Attributes:
        words: What the numbers say together.
        bins: How many there are; 0 where nothing is drawn.
        paths: Class and path of those that are better, worse, or apart from the reference; none for an empty one.
        ends: What stands at the left end and at the right end.
    """

    words: str
    bins: int = 0
    paths: Sequence[tuple[str, str]] = ()
    ends: tuple[str, str] = ("", "")


def spread_view(spread: Spread) -> SpreadView:
    """Return what the page shows of a spread."""
    count, unit = spread.worse + spread.same + spread.better, excerpt(spread.unit, _LINE)
    if is_distance := spread.what == "distance":
        words = f"distance of {count:,} {spread.of} from the reference in {unit}: {spread.worse:,} above 0"
    else:
        words = (
            f"change of {count:,} {spread.of} in {unit}, the right is worse: {spread.worse:,} worse, "
            f"{spread.better:,} better, {spread.same:,} the same"
        )
    bins, width = spread.bins, spread.width
    if not bins:
        return SpreadView(words)
    sign = "" if is_distance else "+"
    most = [(90, spread.p90), (99, spread.p99)]
    parts = [f"median {spread.median:{sign}.3g}"]
    parts += [f"{share} % at most {value:{sign}.3g}" for share, value in most if value is not None]
    words += f"; {', '.join(parts)}, from {spread.lowest:{sign}.3g} to {spread.highest:{sign}.3g}"
    first, last = spread.begin, spread.begin + len(bins) * width
    # The first and the last bin hold what lies beyond them too.
    low = f"≤ {first + width:{sign}.2g}" if spread.lowest < first else f"{first:{sign}.2g}"
    high = f"≥ {last - width:{sign}.2g}" if spread.highest > last else f"{last:{sign}.2g}"
    at = round(-spread.begin / width)
    sides = [("better", bins[:at], 0), ("apart" if is_distance else "worse", bins[at:], at)]
    return SpreadView(
        words=words,
        bins=len(bins),
        paths=[(name, path) for name, side, begin in sides if (path := _path(side, begin, max(bins)))],
        ends=(low, high),
    )


def _path(bins: Sequence[int], begin: int, most: int) -> str:
    """Return the outline of some bins; a bin that holds anything can be seen."""
    if not any(bins):
        return ""
    tops = [HEIGHT - max(round(HEIGHT * count / most), count > 0) for count in bins]
    steps = "".join(f"V{top}h{len(list(same))}" for top, same in groupby(tops))
    return f"M{begin} {HEIGHT}{steps}V{HEIGHT}z"
