"""Where a candidate got worse, as the page draws it: texts with a shade for each part, bars with their noise."""

from __future__ import annotations

__all__ = ["Bar", "Bars", "Shaded", "WhereView", "view_of"]

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_lmgate.gates.comparisons.comparison import Comparison
from pytest_lmgate.gates.where import Passage, Where
from pytest_lmgate.report.wording.excerpt import printable, shortened
from pytest_lmgate.report.wording.where import changed, position_words, slope_words, tag_name

_SHADES = 5
_LINE = 300


@dataclass(frozen=True)
class Bar:
    """A change with its noise; ends are in percent of the width, `tells` whether it is worse beyond noise."""

    name: str
    label: str
    begin: float
    width: float
    low: float
    high: float
    tells: bool


@dataclass(frozen=True)
class Bars:
    """Bars on one axis; `zero` is where no change stands, in percent, and `words` what they say together."""

    title: str
    zero: float
    bars: Sequence[Bar]
    words: str = ""


@dataclass(frozen=True)
class Shaded:
    """A passage: each part of its text with a shade, as in ``up3`` or ``down1``, and what to say of it."""

    place: str
    rise: str
    parts: Sequence[tuple[str, str, str]]
    tokens: Sequence[tuple[str, str, str, str]]


@dataclass(frozen=True)
class WhereView:
    """Everything that the page shows."""

    per: str
    passages: Sequence[Shaded]
    plots: Sequence[Bars]
    notes: Sequence[str]


def view_of(found: Comparison, where: Where) -> WhereView:
    """Return what the page shows of where it got worse."""
    told = [tag for tag in where.tags if tag.degradation is not None]
    tags = [
        (f"{tag_name(tag)} ({tag.rows:,})", changed(found, tag), tag.degradation or 0.0, tag.lower, tag.upper)
        for tag in told
    ]
    positions = [
        (position_words(each), f"{each.change:+.3g}", each.change, each.lower, each.upper) for each in where.positions
    ]
    more = f"; {where.more_tags:,} more are not shown" if where.more_tags else ""
    plots = [
        _bars(
            "rise of the loss in nats by position in the window; all bounds hold together",
            positions,
            slope_words(where),
        ),
        _bars(f"degradation by tag (rows), the right is worse; all bounds hold together{more}", tags),
    ]
    largest = max((abs(rise or 0) for each in where.passages for _, rise in each.spelled), default=0.0)
    untold = [f"{tag_name(tag)}: {tag.problem}" for tag in where.tags if tag.degradation is None]
    return WhereView(
        per=where.per,
        passages=[_shaded(passage, largest) for passage in where.passages],
        plots=[plot for plot in plots if plot is not None],
        notes=[shortened(printable(note), _LINE) for note in (*where.notes, *untold)],
    )


def _shaded(passage: Passage, largest: float) -> Shaded:
    return Shaded(
        place=printable(passage.place),
        rise=f"{passage.rise / passage.count:+.3g}",
        parts=[
            (printable(text), _shade(rise, largest), "" if rise is None else f"{rise:+.3g} nats")
            for text, rise in passage.spelled
        ]
        or [(printable(passage.begins), "", "")],
        tokens=[
            (printable(each.token), f"{each.loss - each.reference:+.3g}", f"{each.reference:.3g}", f"{each.loss:.3g}")
            for each in passage.tokens
        ],
    )


def _shade(rise: float | None, largest: float) -> str:
    if rise is None or largest == 0:
        return ""
    shade = math.ceil(_SHADES * abs(rise) / largest - 0.5)
    return f"{'up' if rise > 0 else 'down'}{shade}" if shade else ""


def _bars(
    title: str, rows: Sequence[tuple[str, str, float, float | None, float | None]], words: str = ""
) -> Bars | None:
    """Return the bars of names, labels, changes and bounds; None where there is nothing to draw."""
    drawn = [row for row in rows if math.isfinite(row[2])]
    numbers = [each for row in drawn for each in row[2:] if each is not None and math.isfinite(each)]
    low, high = min([0.0, *numbers]), max([0.0, *numbers])
    if not drawn or not 0 < high - low < math.inf:
        return None

    def place(number: float | None, instead: float) -> float:
        number = instead if number is None else min(max(number, low), high)
        return round(100 * (number - low) / (high - low), 2)

    bars = []
    for name, label, change, lower, upper in drawn:
        begin, end = sorted((place(0.0, 0.0), place(change, change)))
        tells = lower is not None and lower > 0
        bars.append(Bar(name, label, begin, round(end - begin, 2), place(lower, change), place(upper, change), tells))
    return Bars(title, place(0.0, 0.0), bars, words)
