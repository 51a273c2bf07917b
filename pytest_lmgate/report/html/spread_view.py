"""How a change or a distance is spread over rows, as the page draws it: a histogram."""

from __future__ import annotations

__all__ = ["SpreadView", "spread_view"]

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from pytest_lmgate.gates.spread import Spread
from pytest_lmgate.report.plot import Axis
from pytest_lmgate.report.wording.excerpt import excerpt

HEIGHT = 60
_LINE = 100


@dataclass(frozen=True)
class SpreadView:
    """A histogram, ``[bins, 60]`` units large.

    Attributes:
        words: What the numbers say together.
        bins: How many there are; 0 where nothing is drawn.
        paths: Class and path of those that are better, worse, or apart from the reference; none for an empty one.
        x: Axis of the changes.
        y: Axis of the counts.
    """

    words: str
    bins: int = 0
    paths: Sequence[tuple[str, str]] = ()
    x: Axis | None = None
    y: Axis | None = None


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

    def words_of(value: float) -> str:
        return f"{value:{sign}.3g}" if value else "0"

    most = [(90, spread.p90), (99, spread.p99)]
    parts = [f"median {words_of(spread.median)}"]
    parts += [f"{share}% at most {words_of(value)}" for share, value in most if value is not None]
    words += f"; {', '.join(parts)}, from {words_of(spread.lowest)} to {words_of(spread.highest)}"
    first, last = spread.begin, spread.begin + len(bins) * width
    ends = [name for name, is_open in (("first", spread.lowest < first), ("last", spread.highest > last)) if is_open]
    words += f"; the {' and the '.join(ends)} bin is open" * bool(ends)
    at = round(-spread.begin / width)
    sides = [("better", bins[:at], 0), ("apart" if is_distance else "worse", bins[at:], at)]
    return SpreadView(
        words=words,
        bins=len(bins),
        paths=[(name, path) for name, side, begin in sides if (path := _path(side, begin, max(bins)))],
        x=Axis.between(first, last, form=sign),
        y=Axis.between(0, max(bins), most=3),
    )


def _path(bins: Sequence[int], begin: int, most: int) -> str:
    """Return the outline of some bins; a bin that holds anything can be seen."""
    if not any(bins):
        return ""
    tops = [HEIGHT - max(round(HEIGHT * count / most), count > 0) for count in bins]
    steps = "".join(f"V{top}h{len(list(same))}" for top, same in groupby(tops))
    return f"M{begin} {HEIGHT}{steps}V{HEIGHT}z"
