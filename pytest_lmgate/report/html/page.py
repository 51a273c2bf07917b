"""``--lmgate-report html:FILE``: one page that needs no network, for people who look closer.

The template escapes every text, and the page's own policy lets a browser run its one script and fetch nothing: what a
model wrote can neither run nor call home.
"""

from __future__ import annotations

__all__ = ["html_report"]

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import jinja2

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.html.past_view import PastView, past_view
from pytest_lmgate.report.html.spread_view import SpreadView, spread_view
from pytest_lmgate.report.html.where_view import WhereView, view_of
from pytest_lmgate.report.plot import Plot, plot_of
from pytest_lmgate.report.results import Results
from pytest_lmgate.report.wording.excerpt import excerpt, printable, shortened
from pytest_lmgate.report.wording.explanation import explain
from pytest_lmgate.report.wording.rows import Row, counts, names

_NAME, _LINE = 300, 2000
_OUTCOMES = ("fail", "error", "inconclusive", "pass")
_MANY, _RUNS, _RUNS_OF_MANY = 300, 31, 7
"""With so many gates and more, those that pass show fewer runs, so that the page stays small."""
_OPEN = 3
"""Failures whose explanation is open from the beginning."""


@dataclass(frozen=True)
class _Gate:
    """What the page shows of a verdict."""

    name: str
    words: str
    verdict: Verdict
    row: Row
    fails: bool
    against: str
    explanation: str
    plot: Plot | None
    percentiles: Sequence[tuple[str, str, float]]
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
    found = Counter("fail" if results.fails(verdict) else verdict.verdict for verdict in results.verdicts)
    text: str = environment.get_template("page.html").render(
        counts=counts(results),
        fails=sum(map(results.fails, results.verdicts)),
        outcomes=[(name, sum(each.verdict == name for each in results.verdicts)) for name in _OUTCOMES],
        problems=[shortened(printable(problem), _LINE) for problem in results.problems],
        gates=[_gate(results, verdict, name_of[verdict.id]) for verdict in results.worst_first()],
        to_open=_OPEN if found["fail"] <= _OPEN else 0,
        css=parts["page.css"],
        js=parts["page.js"],
        css_digest=_digest(parts["page.css"]),
        js_digest=_digest(parts["page.js"]),
    )
    return text


def _gate(results: Results, verdict: Verdict, name: str) -> _Gate:
    fails = results.fails(verdict)
    # Worst rows, and where it got worse, stand in tables and plots of their own, whole.
    text, found = explain(replace(verdict, where=None, worst=())), verdict.comparison
    return _Gate(
        name=excerpt(name, _NAME),
        words=" ".join(excerpt(text, _NAME) for text in (verdict.test, verdict.model, verdict.dataset)),
        verdict=verdict,
        row=Row.of(verdict),
        fails=fails,
        against="" if found is None else excerpt(found.against, _NAME),
        explanation=shortened(text, _LINE),
        plot=plot_of(verdict),
        percentiles=_percentiles(dict(verdict.details)),
        worst=[
            (row, f"{score:.4g}", [shortened(printable(text), _LINE) for text in texts])
            for row, score, *texts in verdict.worst
        ],
        where=None if found is None or verdict.where is None else view_of(found, verdict.where),
        spread=None if verdict.spread is None else spread_view(verdict.spread),
        past=past_view(
            results.history.get(verdict.id, ()), _RUNS if fails or len(results.verdicts) < _MANY else _RUNS_OF_MANY
        ),
    )


def _percentiles(details: dict[str, Any]) -> list[tuple[str, str, float]]:
    """Return name, number and length in percent of each percentile of the KL divergence, on a logarithmic scale."""
    found = [(name, float(value)) for name, value in details.items() if _is_percentile(name, value)]
    positive = [math.log10(value) for _, value in found if value > 0]
    if len(found) < 2 or not positive:
        return []
    low, high = min(positive) - 0.5, max(positive)
    return [
        (name, f"{value:.5g}", round(100 * (math.log10(value) - low) / (high - low), 1) if value > 0 else 0.0)
        for name, value in sorted(found, key=lambda pair: -pair[1])
    ]


def _is_percentile(name: str, value: object) -> bool:
    is_name = name.endswith("% KLD") or name in ("Maximum KLD", "Median KLD", "Minimum KLD")
    return is_name and isinstance(value, int | float) and math.isfinite(value)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
