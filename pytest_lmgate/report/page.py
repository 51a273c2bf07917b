"""``--lmgate-report html:FILE``: one page that needs no network, for people who look closer.

The template escapes every text, and the page's own policy lets a browser run its one script and fetch nothing: what a
model wrote can neither run nor call home.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import jinja2
from msgspec.structs import replace

from pytest_lmgate.errors import escape_controls
from pytest_lmgate.judge.attribution import ChangeHistogram
from pytest_lmgate.judge.result import PastRun, Results, Verdict, worst_first
from pytest_lmgate.report.explanation import attribution_lines, explain
from pytest_lmgate.report.text import excerpt, shortened
from pytest_lmgate.report.wording import Row, headline, names, rounded, run_facts, when

_NAME, _LINE, _UNIT, _WIDTH = 300, 2000, 100, 140  # characters
_HEIGHT = 60
_ROOM = 0.08  # of an axis, beyond the outermost number on each side
_OUTCOMES = ("fail", "error", "inconclusive", "advisory fail", "advisory inconclusive", "xfail", "pass")
_PERCENTILES = ("% KLD", "Maximum KLD", "Median KLD", "Minimum KLD")
_MANY, _RUNS, _RUNS_OF_MANY = 300, 31, 7
"""With so many gates and more, those that pass show fewer runs and one plot less, so that the page stays small."""


def html_report(results: Results) -> str:
    name_of = dict(zip((verdict.id for verdict in results.verdicts), names(results.verdicts), strict=True))
    return rendered(
        "page.html",
        counts=headline(results),
        run={key: shortened(escape_controls(text), _LINE) for key, text in run_facts(results).items()},
        fails=sum(verdict.fails for verdict in results.verdicts),
        outcomes=[(name, sum(verdict.outcome == name for verdict in results.verdicts)) for name in _OUTCOMES],
        problems=[shortened(escape_controls(problem), _LINE) for problem in results.problems],
        remarks=[shortened(escape_controls(remark), _LINE) for remark in results.remarks],
        gates=[_gate(results, verdict, name_of[verdict.id]) for verdict in worst_first(results.verdicts)],
    )


def rendered(template: str, **shown: Any) -> str:
    loader = jinja2.PackageLoader("pytest_lmgate.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, loader=loader
    )
    css, js = (loader.get_source(environment, name)[0] for name in ("page.css", "page.js"))
    return environment.get_template(template).render(
        shown, css=css, js=js, css_digest=_digest(css), js_digest=_digest(js)
    )


def _gate(results: Results, verdict: Verdict, name: str) -> dict[str, Any]:
    """Return the page's view of a verdict."""
    outcome, comparison = verdict.outcome, verdict.comparison
    row = Row.of(verdict)
    # Worst rows, and where it got worse, have tables and plots of their own.
    headline, *facts = shortened(explain(replace(verdict, where=None, worst=())), _LINE).split("\n")
    is_detailed = verdict.verdict != "pass" or len(results.verdicts) < _MANY
    is_limit = comparison is None and verdict.limit is not None
    value = "-" if verdict.value is None else rounded(verdict.value, verdict.limit if is_limit else None)
    sign = "≤ " if verdict.marker.endswith("_max") else "≥ "
    plot = plot_of(verdict)
    return {
        "name": excerpt(name, _NAME),
        "words": " ".join(excerpt(text, _NAME) for text in (verdict.test, verdict.model, verdict.dataset)),
        "verdict": verdict,
        "row": row,
        "value": value,
        "bound": row.tolerance or (f"{sign}{row.limit}" if is_limit else row.limit),
        "outcome": outcome,
        "fails": verdict.fails,
        "is_detailed": is_detailed,
        "headline": headline,
        "facts": [line.removeprefix("  ") for line in facts],
        "plot": plot,
        "measure": _beyond(verdict, plot),
        "percentiles": percentiles(verdict.details),
        "worst": [
            (
                worst_row.row,
                f"{worst_row.score:.3g}" + ("" if worst_row.before is None else f" ({worst_row.before:.3g})"),
                [
                    (title, shortened(escape_controls(text), _LINE))
                    for title, text in (
                        ("prompt", worst_row.prompt),
                        ("reference", worst_row.reference or "(empty)"),
                        ("output", worst_row.output or "(empty)"),
                        ("answer", worst_row.answer or "(empty)"),
                    )
                    if title != "answer" or worst_row.answer is not None
                ],
            )
            for worst_row in verdict.worst
        ],
        "where": attribution_lines(verdict, most=(5, 5, 20), width=_WIDTH),
        "spread": None if verdict.spread is None else spread_view(verdict.spread),
        "past": past_view(verdict.history, _RUNS if is_detailed else _RUNS_OF_MANY),
    }


def _beyond(verdict: Verdict, plot: Plot | None) -> float:
    """Return how far a value is beyond its limit, as a share of the limit, by which the page sorts."""
    value, limit = verdict.value, verdict.limit
    if value is None or limit is None:
        return math.inf if value is None else -math.inf
    beyond = value - limit if plot is None or plot.fails_to == 100 else limit - value
    return beyond / (abs(limit) or 1.0)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@dataclass(frozen=True)
class Mark:
    """A number on the axis: `at` is in percent from the left."""

    at: float
    label: str

    @property
    def side(self) -> str:
        """The class of a long label, so that it stays within the plot."""
        return "first" if self.at < 30 else "last" if self.at > 70 else ""


@dataclass(frozen=True)
class Axis:
    """A linear axis in percent, with round ticks."""

    low: float
    high: float
    ticks: Sequence[Mark]

    @classmethod
    def over(cls, numbers: Iterable[float | None], *, most: int = 7, form: str = "", unit: str = "") -> Axis | None:
        """Return an axis that shows all finite numbers; None if they are too far apart.

        It has room on both sides. Without signs it ends at 0 and 1 if the numbers do, as for a share.
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
        """Return an axis with these ends and at most so many ticks; None if it cannot be drawn."""
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
        """Return the place of a number; numbers beyond the axis are at its end."""
        if number in (math.inf, -math.inf):
            return 100.0 if number > 0 else 0.0
        return round(min(max(100 * (number - self.low) / (self.high - self.low), 0.0), 100.0), 1)


@dataclass(frozen=True)
class Plot:
    """A number with its noise against its limit, and against zero change if there is a reference; places in percent."""

    title: str  # what the axis shows
    axis: Axis
    value: Mark  # the number that was judged
    low: float  # left end of its noise, and its right end; equal if there is none
    high: float
    limit: Mark  # or tolerance
    reference: float | None  # place of the reference, if any
    fails_from: float  # where the part of the axis that fails begins, and where it ends
    fails_to: float
    gains_to: float = 0.0  # where the gains end that fail with a two-sided tolerance


def plot_of(verdict: Verdict) -> Plot | None:
    row, comparison = Row.of(verdict), verdict.comparison
    scale, form, unit = 1.0, "", ""
    if comparison is not None:
        scale, unit = (100.0, "%") if comparison.tolerance.relative else (1.0, "")
        form, fails_above = "+", True
        against = excerpt(comparison.against, _NAME)
        title = f"change from {row.limit}, the value of the {against}, with one-sided bounds; the right is worse"
        numbers, bounds = (comparison.degradation, comparison.tolerance.size), (comparison.lower, comparison.upper)
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
    shown = [scale * number for number in (*numbers, *(bound for bound in bounds if bound is not None))]
    is_two_sided = comparison is not None and comparison.tolerance.two_sided
    shown += [] if comparison is None else [0.0, *([-scale * numbers[1]] if is_two_sided else [])]
    line = Axis.over(shown, form=form, unit=unit)
    if line is None or not all(map(math.isfinite, numbers)):
        return None
    value, limit = (Mark(line.place(scale * number), label) for number, label in zip(numbers, labels, strict=True))
    low, high = (value.at if bound is None else line.place(scale * bound) for bound in bounds)
    return Plot(
        title=title,
        axis=line,
        value=value,
        low=low,
        high=high,
        limit=limit,
        reference=None if comparison is None else line.place(0.0),
        fails_from=limit.at if fails_above else 0.0,
        fails_to=100.0 if fails_above else limit.at,
        gains_to=line.place(-scale * numbers[1]) if is_two_sided else 0.0,
    )


@dataclass(frozen=True)
class Bar:
    """A named bar; its width is in percent."""

    name: str
    label: str
    width: float


@dataclass(frozen=True)
class Bars:
    title: str
    bars: Sequence[Bar]
    ticks: Sequence[Mark]


def percentiles(details: Mapping[str, object]) -> Bars | None:
    """Return the percentiles of the tokens' KL divergence on a logarithmic axis; None with fewer than two."""
    percentiles = {
        name: float(value)
        for name, value in details.items()
        if name.endswith(_PERCENTILES) and isinstance(value, int | float) and math.isfinite(value)
    }
    logarithms = [math.log10(value) for value in percentiles.values() if value > 0]
    if len(percentiles) < 2 or not logarithms:
        return None
    powers = range(math.floor(min(logarithms)), math.ceil(max(logarithms)) + 1)
    width = 100 / max(len(powers) - 1, 1)
    ticks = [Mark(round(at * width, 2), f"{10.0**power:g}") for at, power in enumerate(powers)]
    bars = []
    for name, value in sorted(percentiles.items(), key=lambda pair: -pair[1]):
        end = round((math.log10(value) - powers[0]) * width, 2) if value > 0 else 0.0
        bars.append(Bar(name.removesuffix(" KLD"), f"{value:.3g}", end))
    title = "KL divergence of single tokens in nats, on a logarithmic axis"
    return Bars(title, bars, ticks[:: 1 + len(ticks) // 6])


@dataclass(frozen=True)
class SpreadView:
    """A histogram, ``[bins, 60]`` units large."""

    words: str
    bins: int = 0  # nothing is drawn
    paths: Sequence[tuple[str, str]] = ()  # class and path of the better, the worse, or those apart from the reference
    x: Axis | None = None
    y: Axis | None = None


def spread_view(spread: ChangeHistogram) -> SpreadView:
    count, unit = spread.worse + spread.same + spread.better, excerpt(spread.unit, _UNIT)
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

    def shown(value: float) -> str:
        return f"{value:{sign}.3g}" if value else "0"

    words += (
        f"; median {shown(spread.median)}, 90% at most {shown(spread.p90)}, 99% at most {shown(spread.p99)}, "
        f"from {shown(spread.lowest)} to {shown(spread.highest)}"
    )
    first, last = spread.begin, spread.begin + len(bins) * width
    ends = [name for name, is_open in (("first", spread.lowest < first), ("last", spread.highest > last)) if is_open]
    if ends:
        words += f"; the {' and the '.join(ends)} bin is open"
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
    """Return the outline of some bins; non-empty bins are always visible."""
    if not any(bins):
        return ""
    tops = [_HEIGHT - max(round(_HEIGHT * count / most), count > 0) for count in bins]
    steps = "".join(f"V{top}h{len(list(same))}" for top, same in groupby(tops))
    return f"M{begin} {_HEIGHT}{steps}V{_HEIGHT}z"


@dataclass(frozen=True)
class End:
    """The first or the last run: its place in percent from the left, and its words."""

    at: float
    date: str
    commit: str

    @property
    def side(self) -> str:
        """The class of the label, so that it stays within the plot."""
        return "first" if self.at < 20 else "last" if self.at > 80 else ""


@dataclass(frozen=True)
class PastView:
    """Runs side by side, the first at 0; y grows downward to 60. Most fields are SVG paths."""

    words: str
    runs: int
    noise: str
    values: str
    limits: str
    changes: str
    passed: str  # dots of earlier runs that passed
    dots: Sequence[tuple[str, str]]  # class and path of the runs that did not pass, and of this one
    axis: Axis | None  # None if values are too far apart
    ends: Sequence[End]
    notes: Sequence[str]


def past_view(past: Sequence[PastRun], most: int) -> PastView | None:
    """Return the plot of at most so many runs of a gate, newest last; None without two values."""
    runs = list(past[-most:])
    valued = [(at, run, run.value) for at, run in enumerate(runs) if run.value is not None]
    if len(valued) < 2:
        return None
    numbers = [number for run in runs for number in (run.value, run.limit, *(run.interval or ())) if number is not None]
    axis = Axis.over(numbers, most=4)

    def y(value: float) -> int:
        return _HEIGHT // 2 if axis is None else round(_HEIGHT * (1 - axis.place(value) / 100))

    noise = [f"M{at} {y(run.interval[1])}V{y(run.interval[0])}" for at, run, _ in valued if run.interval is not None]
    dots, passed = {run.verdict: "" for run in runs}, ""
    for at, run, value in valued:
        if run.verdict != "pass" or run is runs[-1]:
            dots[run.verdict] += f"M{at} {y(value)}h0"
        else:
            passed += f"M{at} {y(value)}h0"
    return PastView(
        words=f"the last {len(runs)} runs, with 95% intervals; the dashed line is the limit",
        runs=len(runs),
        noise="".join(noise),
        values="M" + " ".join(f"{at} {y(value)}" for at, _, value in valued),
        limits=_steps([None if run.limit is None else y(run.limit) for run in runs]),
        changes="".join(f"M{at} 0V{_HEIGHT}" for at, run in enumerate(runs) if _is_change(run)),
        passed=passed,
        dots=[(verdict, path) for verdict, path in dots.items() if path],
        axis=axis,
        ends=[_end(run, 100 * (at + 0.5) / len(runs)) for at, run in ((0, runs[0]), (len(runs) - 1, runs[-1]))],
        notes=[excerpt(_note(run), _NAME) for run in runs if _is_change(run) or (run.kind == "first" and run.words)],
    )


def _steps(heights: Sequence[int | None]) -> str:
    """Return a line at each run's height, in one stroke while the height stays."""
    path, at = "", 0
    for height, same in groupby(heights):
        length = len(list(same))
        path += "" if height is None else f"M{at - 0.5:g} {height}h{length}"
        at += length
    return path


def _is_change(run: PastRun) -> bool:
    return run.kind in ("worse", "better")


def _end(run: PastRun, at: float) -> End:
    return End(round(at, 1), excerpt(run.date[:10], 20), excerpt(f" {run.commit[:7]}", 20) if run.commit else "")


def _note(run: PastRun) -> str:
    where = f"{when(run.date)} {run.commit}".rstrip()
    return f"{where}: {run.kind if _is_change(run) else 'a new comparison starts here'}: {run.words}"
