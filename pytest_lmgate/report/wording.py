"""What every report says in the same words: numbers, a row for each gate, counts, and which run it was."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_lmgate.judge.result import OUTCOMES, Results, Verdict
from pytest_lmgate.metrics.score import AnswerCounts, distinct
from pytest_lmgate.report.text import counted
from pytest_lmgate.settings.metrics import METRICS, USERS_METRIC
from pytest_lmgate.stats.comparison import Comparison


def number(value: float) -> str:
    return f"{value:.6g}"


def rounded(value: float, limit: float | None = None) -> str:
    """Return a value in three digits, or as many more as keep it on its side of the limit."""
    texts = (f"{value:#.{digits}g}" for digits in range(3, 18))
    text = next(text for text in texts if limit is None or _side(float(text), limit) == _side(value, limit))
    return f"{float(text):,.15g}" if 1e3 <= abs(value) < 1e6 else text.rstrip(".")


def _side(value: float, limit: float) -> tuple[bool, bool]:
    return value > limit, value < limit


def answer_counts(answers: AnswerCounts | None, *, always: bool = False) -> str:
    """Say how many texts have no answer, or were cut; without `always`, only if there are any."""
    if answers is None:
        return ""
    counts = ((answers.without, "texts without an answer"), (answers.cut, "texts cut at max_new_tokens"))
    return ", ".join(
        f"{count:,} of {answers.rows:,} {what} ({100 * count / answers.rows:.3g}%)"
        for count, what in counts
        if count is not None and (count or always)
    )


def interval(low: float, high: float) -> str:
    """Return both ends in six digits: ``[17.25, 19.0625]``."""
    return f"[{number(low)}, {number(high)}]"


def size(comparison: Comparison, value: float, form: str = ".4g") -> str:
    """Return a change in the unit of the tolerance: in percent, or in the metric's own."""
    return f"{100 * value:{form}}%" if comparison.tolerance.relative else f"{value:{form}}"


def tolerance(comparison: Comparison, metric: str) -> str:
    """Return a tolerance as written and converted: ``5% (2.5 points)``, ``1.5 ppl (41%)``.

    A percentage is relative to the reference's value; for a share it is not a number of points.
    """
    row, written, amount = METRICS.get(metric, USERS_METRIC), comparison.tolerance.written, comparison.tolerance.size
    reference = abs(comparison.reference)
    share = "" if comparison.tolerance.relative or not reference else f"{_short(100 * amount / reference)}%"
    if comparison.tolerance.relative:
        amount *= reference
    points = _short(amount * (100 if row.highest == 1 else 1))
    in_points = f"{points} point{'s' * (points != '1')}" if row.unit == "points" else ""
    if not (comparison.tolerance.relative or row.highest == 1):
        written, in_points = in_points or f"{written} {row.unit}".rstrip(), ""
    more = ", ".join(filter(None, (in_points, share)))
    written = f"{'±' if comparison.tolerance.two_sided else ''}{written}"
    return f"{written} ({more})" if more else written


def _short(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"


def degradation(comparison: Comparison) -> str:
    """Return the change with its one-sided bounds: ``+0.65% [+0.52, +0.78]``; plus is worse."""
    if comparison.lower is None or comparison.upper is None:
        return f"{size(comparison, comparison.degradation, '+.4g')} (no bounds)"
    scale, unit = (100, "%") if comparison.tolerance.relative else (1, "")
    shown = [scale * value for value in (comparison.degradation, comparison.lower, comparison.upper)]
    limit = scale * comparison.tolerance.size
    decimals = _decimals(shown, (limit, -limit) if comparison.tolerance.two_sided else (limit,))
    measured, lower, upper = (
        f"{value + 0:+.4g}" if decimals is None else f"{value + 0:+.{decimals}f}" for value in shown
    )
    return f"{measured}{unit} [{lower}, {upper}]"


def _decimals(shown: Sequence[float], limits: Sequence[float]) -> int | None:
    """Decimals that show two digits of the noise, and keep each number on its side of the limits."""
    width = (max(shown) - min(shown)) / 2
    if not 0 < width < math.inf or max(map(abs, shown)) >= 1e6:
        return None
    fewest = max(0, 1 - math.floor(math.log10(width)))
    sides = [_side(value, limit) for value in shown for limit in limits]
    for decimals in range(fewest, fewest + 18):  # with which a float is itself
        rounded = [round(value, decimals) for value in shown]
        if sides == [_side(value, limit) for value in rounded for limit in limits]:
            return decimals
    return None


_PROPERTIES = ("verdict", "value", "limit", "stderr", "n", "unit", "signature", "message")
_PROPERTIES_OF_A_COMPARISON = ("reference", "degradation", "lower", "upper", "confidence")


@dataclass(frozen=True)
class Row:
    """A verdict's texts; empty if there is nothing to say."""

    outcome: str
    value: str
    interval: str
    limit: str  # of a comparison the reference's value
    change: str
    tolerance: str
    scored: str
    seconds: str

    @classmethod
    def of(cls, verdict: Verdict) -> Row:
        comparison = verdict.comparison
        bound = verdict.limit if comparison is None else comparison.reference
        value, limit = ("" if shown is None else number(shown) for shown in (verdict.value, bound))
        if comparison is not None and comparison.degradation == 0:
            value = limit  # they differ by the order of adding, if at all
        elif verdict.value is not None and bound is not None:
            value, limit = distinct(verdict.value, bound)
        if verdict.marker == "no_regression" and verdict.verdict == "pass" and comparison is None:  # it was not judged
            limit = "new baseline"
        return cls(
            outcome=verdict.shown,
            value=value,
            interval="" if verdict.interval is None else interval(*verdict.interval),
            limit=limit,
            change="" if comparison is None else degradation(comparison),
            tolerance="" if comparison is None else tolerance(comparison, verdict.metric),
            scored="" if verdict.n is None else counted(verdict.n, verdict.unit),
            seconds="cached" if verdict.cached else f"{verdict.seconds:.1f}",
        )


def when(date: str) -> str:
    """Return a record's date for people: ``2026-01-31 18:00``."""
    return date[:16].replace("T", " ")


def run_facts(results: Results) -> dict[str, str]:
    """Return the known facts that identify the run, by key."""
    run, environment = results.run, results.environment
    if not run.date:
        return {}
    packages = {"Python": environment.python, **environment.packages}
    hardware = f"{run.hardware}, driver {run.driver}" if run.driver else run.hardware
    facts = {
        "project": run.project,
        "commit": " on ".join(filter(None, [run.commit, run.branch])),
        "date": f"{when(run.date)} UTC",
        "device": f"{run.device} ({hardware})" if run.device and hardware else run.device or hardware,
        "versions": ", ".join(f"{name} {version}" for name, version in packages.items() if version != "absent"),
        "command": run.command,
    }
    return {key: text for key, text in facts.items() if text}


def properties(verdict: Verdict) -> dict[str, str | float]:
    facts = {key: getattr(verdict, key) for key in _PROPERTIES} | ({"advisory": "true"} if verdict.advisory else {})
    if verdict.comparison is not None:
        facts |= {key: getattr(verdict.comparison, key) for key in _PROPERTIES_OF_A_COMPARISON}
        facts["tolerance"] = str(verdict.comparison.tolerance)
    return {key: value for key, value in facts.items() if value is not None and value != ""}


def names(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a name for each gate: with its test only if its label is not unique."""
    labels = Counter(verdict.label for verdict in verdicts)
    return [verdict.label if labels[verdict.label] == 1 else verdict.id for verdict in verdicts]


def counts(verdicts: Sequence[Verdict]) -> str:
    """Return the number of gates by verdict: ``3 gates: 2 pass, 1 fail``."""
    counter: Counter[str] = Counter(verdict.outcome for verdict in verdicts)
    text = ", ".join(f"{counter[outcome]} {outcome}" for outcome in OUTCOMES if counter[outcome])
    if blocking := sum(verdict.fails and verdict.verdict == "inconclusive" for verdict in verdicts):
        text = text.replace(" inconclusive", f" inconclusive ({blocking} fail{'s' * (blocking == 1)} the build)", 1)
    return f"{counted(len(verdicts), 'gate')}: {text}" if verdicts else "0 gates"


def headline(results: Results) -> str:
    """Return the number of gates by verdict, and of problems, which fail a run whose gates all pass."""
    problems = f"; {counted(len(results.problems), 'problem')}" if results.problems else ""
    return f"{counts(results.verdicts)}{problems}"


_IID = ", iid stderr (tokens as independent)"
# Each line of figures; those of the probabilities are shown as percentages.
_SHOWN = (
    ("Mean PPL(Q)", "Mean PPL(base)", "Mean ln(PPL(Q)/PPL(base))", "Mean PPL(Q)/PPL(base)"),
    ("Mean KLD", "Median KLD", "99.0% KLD", "99.9% KLD", "Maximum KLD"),
    ("Mean Δp", "1.0% Δp", "99.0% Δp", "RMS Δp", "Same top p"),
)


def divergence_lines(details: Mapping[str, object], *, iid: bool) -> list[str]:
    """Return the details of two models in lines, with llama.cpp's errors (`iid`) or those of clusters."""
    return [", ".join(_figure(name, details, iid) for name in names if name in details) for names in _SHOWN]


def _figure(name: str, details: Mapping[str, object], iid: bool) -> str:
    value, error = _finite(details[name]), _finite(details.get(f"{name}{_IID if iid else ', stderr'}"))
    percent = "Δp" in name or name == "Same top p"
    return f"{name} {_number(value, percent)}" + ("" if error is None else f" ± {_number(error, percent)}")


def _finite(value: object) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _number(value: float | None, percent: bool) -> str:
    if value is None:
        return "not finite"
    return f"{100 * value:.4g}%" if percent else f"{value:.5g}"
