"""Where a candidate got worse, as the page draws it: texts with a shade for each part, bars with their noise."""

from __future__ import annotations

__all__ = ["Bar", "Bars", "Shaded", "WhereView", "percentiles", "view_of"]

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_lmgate.gates.comparisons.comparison import Comparison
from pytest_lmgate.gates.where import Passage, Where
from pytest_lmgate.report.plot import Axis, Mark
from pytest_lmgate.report.wording.excerpt import ending, excerpt, printable, shortened
from pytest_lmgate.report.wording.where import changed, passage_words, position_words, slope_words, tag_name

_SHADES = 5
_LINE = 300
_BEFORE, _TOKEN, _AFTER = 44, 40, 28


@dataclass(frozen=True)
class Bar:
    """A change with its noise; ends are in percent of the width, `tells` whether it is worse beyond noise."""

    name: str
    label: str
    begin: float
    width: float
    low: float
    high: float
    tells: bool = False


@dataclass(frozen=True)
class Bars:
    """Bars on one axis; `zero` is where they begin, in percent, and `words` what they say together."""

    title: str
    zero: float
    bars: Sequence[Bar]
    ticks: Sequence[Mark]
    words: str = ""


@dataclass(frozen=True)
class Shaded:
    """A passage: each part of its text with a shade, as in ``up3`` or ``down1``, and what to say of it.

    Attributes:
        tokens: Of each token the text before it, itself and the text behind it, and its three numbers in nats.
    """

    title: str
    parts: Sequence[tuple[str, str, str]]
    tokens: Sequence[tuple[tuple[str, str, str], Sequence[str]]]


@dataclass(frozen=True)
class WhereView:
    """Everything that the page shows; `largest` is the change in nats of the darkest shade, empty without shades."""

    largest: str
    passages: Sequence[Shaded]
    plots: Sequence[Bars]
    notes: Sequence[str]


def view_of(found: Comparison, where: Where) -> WhereView:
    """Return what the page shows of where it got worse."""
    told = [tag for tag in where.tags if tag.degradation is not None]
    scale, unit = (100, "%") if found.tolerance.relative else (1, "")
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
            words=slope_words(where),
        ),
        _bars(f"change by tag (rows), the right is worse; all bounds hold together{more}", tags, scale, unit),
    ]
    largest = max((abs(rise or 0) for each in where.passages for _, rise in each.spelled), default=0.0)
    untold = [f"{tag_name(tag)}: {tag.problem}" for tag in where.tags if tag.degradation is None]
    return WhereView(
        largest=f"{largest:.3g}" if largest else "",
        passages=[_shaded(passage, where.per, largest) for passage in where.passages],
        plots=[plot for plot in plots if plot is not None],
        notes=[shortened(printable(note), _LINE) for note in (*where.notes, *untold)],
    )


def percentiles(details: Mapping[str, object]) -> Bars | None:
    """Return the percentiles of the KL divergence of single tokens on a logarithmic axis; None with fewer than two."""
    found = {name: float(value) for name, value in details.items() if isinstance(value, int | float)}
    found = {name: value for name, value in found.items() if _is_percentile(name) and math.isfinite(value)}
    logarithms = [math.log10(value) for value in found.values() if value > 0]
    if len(found) < 2 or not logarithms:
        return None
    powers = range(math.floor(min(logarithms)), math.ceil(max(logarithms)) + 1)
    width = 100 / max(len(powers) - 1, 1)
    ticks = [Mark(round(at * width, 2), f"{10.0**power:g}") for at, power in enumerate(powers)]
    bars = []
    for name, value in sorted(found.items(), key=lambda pair: -pair[1]):
        end = round((math.log10(value) - powers[0]) * width, 2) if value > 0 else 0.0
        bars.append(Bar(name.removesuffix(" KLD"), f"{value:.3g}", 0, end, end, end))
    title = "KL divergence of single tokens in nats, on a logarithmic axis"
    return Bars(title, 0, bars, ticks[:: 1 + len(ticks) // 6])


def _is_percentile(name: str) -> bool:
    return name.endswith("% KLD") or name in ("Maximum KLD", "Median KLD", "Minimum KLD")


def _shaded(passage: Passage, per: str, largest: float) -> Shaded:
    rises = [each.loss - each.reference for each in passage.tokens]
    # As many decimals for all as show three digits of the largest.
    decimals = max(0, min(6, 2 - math.floor(math.log10(max(map(abs, rises), default=0.0) or 1.0))))
    return Shaded(
        title=f"{printable(passage.place)}: {passage_words(passage, per)}",
        parts=[
            (printable(text), _shade(rise, largest), "" if rise is None else f"{rise:+.3g} nats")
            for text, rise in passage.spelled
        ]
        or [(excerpt(passage.begins, _LINE), "", "")],
        tokens=[
            (
                (ending(each.before, _BEFORE), excerpt(each.token, _TOKEN), excerpt(each.after, _AFTER)),
                (f"{rise:+.{decimals}f}", f"{each.reference:.{decimals}f}", f"{each.loss:.{decimals}f}"),
            )
            for each, rise in zip(passage.tokens, rises, strict=True)
        ],
    )


def _shade(rise: float | None, largest: float) -> str:
    if rise is None or largest == 0:
        return ""
    shade = math.ceil(_SHADES * abs(rise) / largest - 0.5)
    return f"{'up' if rise > 0 else 'down'}{shade}" if shade else ""


def _bars(
    title: str,
    rows: Sequence[tuple[str, str, float, float | None, float | None]],
    scale: int = 1,
    unit: str = "",
    words: str = "",
) -> Bars | None:
    """Return the bars of names, labels, changes and bounds; None where there is nothing to draw."""
    drawn = [row for row in rows if math.isfinite(row[2])]
    numbers = [scale * each for row in drawn for each in row[2:] if each is not None]
    axis = Axis.over([0.0, *numbers], form="+", unit=unit)
    if axis is None or not any(numbers):
        return None
    bars = []
    for name, label, change, lower, upper in drawn:
        begin, end = sorted((axis.place(0.0), axis.place(scale * change)))
        low, high = (axis.place(scale * (change if each is None else each)) for each in (lower, upper))
        tells = lower is not None and lower > 0
        bars.append(Bar(name, label, begin, round(end - begin, 2), low, high, tells))
    return Bars(title, axis.place(0.0), bars, axis.ticks, words)
