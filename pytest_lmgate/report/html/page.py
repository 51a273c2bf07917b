"""``--lmgate-report html:FILE``: one page that needs no network, for people who look closer.

The template escapes every text, and the page's own policy lets a browser run its one script and fetch nothing: what a
model wrote can neither run nor call home.
"""

from __future__ import annotations

__all__ = ["html_report"]

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

import jinja2

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.html.past_view import PastView, past_view
from pytest_lmgate.report.html.spread_view import SpreadView, spread_view
from pytest_lmgate.report.html.where_view import Bars, WhereView, percentiles, view_of
from pytest_lmgate.report.plot import Plot, plot_of
from pytest_lmgate.report.results import Results
from pytest_lmgate.report.wording.excerpt import excerpt, printable, shortened
from pytest_lmgate.report.wording.explanation import explain
from pytest_lmgate.report.wording.numbers import rounded
from pytest_lmgate.report.wording.rows import Row, counts, names, run_facts

_NAME, _LINE = 300, 2000
_OUTCOMES = ("fail", "error", "inconclusive", "xfail", "pass")
_MANY, _RUNS, _RUNS_OF_MANY = 300, 31, 7
"""With so many gates and more, those that pass show fewer runs and one plot less, so that the page stays small."""


@dataclass(frozen=True)
class _Gate:
    """What the page shows of a verdict."""

    name: str
    words: str
    verdict: Verdict
    row: Row
    value: str
    bound: str
    outcome: str
    fails: bool
    is_detailed: bool
    headline: str
    facts: Sequence[str]
    plot: Plot | None
    percentiles: Bars | None
    worst: Sequence[tuple[int, str, list[str]]]
    where: WhereView | None
    spread: SpreadView | None
    past: PastView | None

    @property
    def measure(self) -> float:
        """The number that gates are sorted by: how far the value is beyond the limit, relative to it."""
        value, limit = self.verdict.value, self.verdict.limit
        if value is None or limit is None:
            return math.inf if value is None else -math.inf
        beyond = value - limit if self.plot is None or self.plot.fails_to == 100 else limit - value
        return beyond / (abs(limit) or 1.0)


def html_report(results: Results) -> str:
    """Return the page."""
    folder = files("pytest_lmgate.report.html").joinpath("templates")
    parts = {
        name: folder.joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "plots.html", "where.html", "page.css", "page.js")
    }
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.DictLoader(parts),
    )
    name_of = dict(zip((verdict.id for verdict in results.verdicts), names(results.verdicts), strict=True))
    text: str = environment.get_template("page.html").render(
        counts=counts(results),
        run={key: shortened(printable(text), _LINE) for key, text in run_facts(results.run).items()},
        fails=sum(map(results.fails, results.verdicts)),
        outcomes=[(name, sum(results.outcome(each) == name for each in results.verdicts)) for name in _OUTCOMES],
        problems=[shortened(printable(problem), _LINE) for problem in results.problems],
        gates=[_gate(results, verdict, name_of[verdict.id]) for verdict in results.worst_first()],
        css=parts["page.css"],
        js=parts["page.js"],
        css_digest=_digest(parts["page.css"]),
        js_digest=_digest(parts["page.js"]),
    )
    return text


def _gate(results: Results, verdict: Verdict, name: str) -> _Gate:
    outcome, found = results.outcome(verdict), verdict.comparison
    row = Row.of(verdict, outcome)
    # Worst rows, and where it got worse, stand in tables and plots of their own, whole.
    headline, *facts = shortened(explain(replace(verdict, where=None, worst=())), _LINE).split("\n")
    is_detailed = verdict.verdict != "pass" or len(results.verdicts) < _MANY
    is_limit = found is None and verdict.limit is not None
    value = "-" if verdict.value is None else rounded(verdict.value, verdict.limit if is_limit else None)
    sign = "≤ " if verdict.marker.endswith("_max") else "≥ "
    return _Gate(
        name=excerpt(name, _NAME),
        words=" ".join(excerpt(text, _NAME) for text in (verdict.test, verdict.model, verdict.dataset)),
        verdict=verdict,
        row=row,
        value=f">= {value}" if verdict.at_least else value,
        bound=row.tolerance or (f"{sign}{row.limit}" if is_limit else row.limit),
        outcome=outcome,
        fails=results.fails(verdict),
        is_detailed=is_detailed,
        headline=headline,
        facts=[line.removeprefix("  ") for line in facts],
        plot=plot_of(verdict),
        percentiles=percentiles(dict(verdict.details)),
        worst=[
            (row, f"{score:.3g}", [shortened(printable(text), _LINE) for text in texts])
            for row, score, *texts in verdict.worst
        ],
        where=None if found is None or verdict.where is None else view_of(found, verdict.where),
        spread=None if verdict.spread is None else spread_view(verdict.spread),
        past=past_view(results.history.get(verdict.id, ()), _RUNS if is_detailed else _RUNS_OF_MANY),
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
