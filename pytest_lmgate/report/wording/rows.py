"""What every table says of a verdict and of the run: the terminal's, Markdown's and the page's show these texts."""

from __future__ import annotations

__all__ = ["Row", "counts", "names", "run_facts"]

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.metrics.score import distinct
from pytest_lmgate.report.results import Results, Run
from pytest_lmgate.report.wording.counted import counted
from pytest_lmgate.report.wording.numbers import degradation, interval, number, tolerance

_NEW_BASELINE = "new baseline"


@dataclass(frozen=True)
class Row:
    """A verdict's texts; empty where there is nothing to say.

    Attributes:
        outcome: In capitals; an inconclusive verdict that fails the build has a mark, which the eye finds, and a
            failure of a test that is marked xfail says so.
        value: With ``>=`` before a lower bound.
        interval: At 95 %.
        limit: The limit; of a comparison the reference's value.
        change: Of a comparison, how much worse the value is than the reference, with its bounds.
        tolerance: Of a comparison.
        scored: Targets or rows.
        seconds: Or ``cached``.
    """

    outcome: str
    value: str
    interval: str
    limit: str
    change: str
    tolerance: str
    scored: str
    seconds: str

    @classmethod
    def of(cls, verdict: Verdict, outcome: str = "") -> Row:
        """Return a verdict's row; `outcome` is what it counts as."""
        found = verdict.comparison
        bound = verdict.limit if found is None else found.reference
        value, limit = ("" if each is None else number(each) for each in (verdict.value, bound))
        if found is not None and found.degradation == 0:
            value = limit  # they differ by the order of adding, if at all
        elif verdict.value is not None and bound is not None:
            value, limit = distinct(verdict.value, bound)
        if verdict.marker == "no_regression" and verdict.verdict == "pass" and found is None:  # it was not judged
            limit = _NEW_BASELINE
        is_marked = verdict.verdict == "inconclusive" and verdict.blocking
        return cls(
            outcome=verdict.verdict.upper() + (" (xfail)" if outcome == "xfail" else "!" * is_marked),
            value=f">= {value}" if verdict.at_least else value,
            interval="" if verdict.interval is None else interval(*verdict.interval),
            limit=limit,
            change="" if found is None else degradation(found),
            tolerance="" if found is None else tolerance(found, verdict.metric),
            scored="" if verdict.n is None else counted(verdict.n, verdict.unit),
            seconds="cached" if verdict.cached else f"{verdict.seconds:.1f}",
        )


def run_facts(run: Run) -> dict[str, str]:
    """Return which run it was, by key; without keys that are not known."""
    if not run.date:
        return {}
    packages = {"Python": run.environment["python"], **run.environment["packages"]}
    facts = {
        "project": run.project,
        "commit": " on ".join(filter(None, [run.commit, run.branch])),
        "date": f"{run.date[:16].replace('T', ' ')} UTC",
        "device": f"{run.device} ({run.hardware})" if run.device and run.hardware else run.device or run.hardware,
        "versions": ", ".join(f"{name} {version}" for name, version in packages.items() if version != "absent"),
        "command": run.command,
    }
    return {key: text for key, text in facts.items() if text}


def names(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a name for each gate: with its test only where its label alone does not tell it from the others."""
    labels = Counter(verdict.label for verdict in verdicts)
    return [verdict.label if labels[verdict.label] == 1 else verdict.id for verdict in verdicts]


def counts(results: Results) -> str:
    """Return how many gates have which verdict, as in ``3 gates: 2 pass, 1 fail``."""
    verdicts = results.verdicts
    found = Counter(map(results.outcome, verdicts))
    outcomes = ("pass", "fail", "inconclusive", "error", "xfail")
    text = ", ".join(f"{found[outcome]} {outcome}" for outcome in outcomes if found[outcome])
    if blocking := sum(results.fails(verdict) and verdict.verdict == "inconclusive" for verdict in verdicts):
        text = text.replace(" inconclusive", f" inconclusive ({blocking} fail{'s' * (blocking == 1)} the build)")
    return f"{counted(len(verdicts), 'gate')}: {text}" if verdicts else "0 gates"
