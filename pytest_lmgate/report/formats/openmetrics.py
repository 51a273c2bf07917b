"""``--lmgate-report openmetrics:FILE``: numbers of gates for GitLab's metrics report, Prometheus and the like.

The text format is that of OpenMetrics 1.0. GitLab compares the series of two branches by name and labels, so that no
label and no number is here that changes while the model does not, such as seconds.
"""

from __future__ import annotations

__all__ = ["openmetrics_report"]

import math
import re
from collections.abc import Callable, Mapping

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.results import Results
from pytest_lmgate.report.wording.excerpt import printable

_OUTCOMES = ("pass", "fail", "inconclusive", "error", "xfail")
_NAME = 500
Reads = Callable[[Verdict], float | None]


def _compared(key: str) -> Reads:
    return lambda verdict: getattr(verdict.comparison, key, None)


_FAMILIES: Mapping[str, tuple[str, Reads]] = {
    "value": ("Measured value, in the unit of the metric.", lambda verdict: verdict.value),
    "stderr": ("Standard error of the value.", lambda verdict: verdict.stderr),
    "lower": ("Lower end of the interval at 95%.", lambda verdict: verdict.interval and verdict.interval[0]),
    "upper": ("Upper end of the interval at 95%.", lambda verdict: verdict.interval and verdict.interval[1]),
    "limit": ("Limit of the value; of a comparison the worst value within the tolerance.", lambda each: each.limit),
    "reference": ("Value of the reference, where a gate has one.", _compared("reference")),
    "degradation": ("How much worse than the reference, as a fraction or in the unit.", _compared("degradation")),
    "degradation_lower": ("One-sided lower bound of the degradation.", _compared("lower")),
    "degradation_upper": ("One-sided upper bound of the degradation.", _compared("upper")),
    "tolerance": ("Largest degradation that passes.", lambda verdict: _tolerance(verdict)),
    "scored": ("Targets or rows that were scored.", lambda verdict: verdict.n),
}


def openmetrics_report(results: Results) -> str:
    """Return a gauge for each number of a gate, and its verdict as a set of states."""
    series = _series(results)
    lines: list[str] = []
    for family, (words, reads) in _FAMILIES.items():
        lines += [f"# TYPE lmgate_{family} gauge", f"# HELP lmgate_{family} {words}"]
        lines += [
            f"lmgate_{family}{{{labels}}} {_number(value)}"
            for labels, verdict in series.items()
            if (value := reads(verdict)) is not None
        ]
    lines += ["# TYPE lmgate_verdict stateset", "# HELP lmgate_verdict Verdict of a gate."]
    lines += [
        f'lmgate_verdict{{{labels},lmgate_verdict="{outcome}"}} {int(results.outcome(verdict) == outcome)}'
        for labels, verdict in series.items()
        for outcome in _OUTCOMES
    ]
    lines += [
        "# TYPE lmgate_problems gauge",
        "# HELP lmgate_problems Problems other than gates that fail the session.",
        f"lmgate_problems {len(results.problems)}",
    ]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _series(results: Results) -> dict[str, Verdict]:
    """Return the verdicts by their labels; gates whose names are the same once they are escaped get a number."""
    series: dict[str, Verdict] = {}
    for verdict in results.verdicts:
        named = {"metric": verdict.metric, "model": verdict.model, "dataset": verdict.dataset}
        rest = ",".join(f'{key}="{_label(value)}"' for key, value in named.items())
        gate, count = _label(verdict.id), 1
        while (labels := f'gate="{gate}{f" no. {count}" * (count > 1)}",{rest}') in series:
            count += 1
        series[labels] = verdict
    return series


def _label(text: str) -> str:
    r"""Return a text as the value of a label.

    GitLab takes ``#`` for the beginning of a comment also in quotes, so that it becomes ``\x23``.
    """
    text = printable(text).replace("#", r"\x23")
    text = text if len(text) <= _NAME else f"{text[: _NAME // 2]}...{text[-_NAME // 2 :]}"
    return re.sub(r'[\\"]', r"\\\g<0>", text).replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else f"{'+' if value > 0 else '-'}Inf"


def _tolerance(verdict: Verdict) -> float | None:
    return None if verdict.comparison is None else verdict.comparison.tolerance.size
