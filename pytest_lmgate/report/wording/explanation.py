"""The failure text: everything a person needs in order to believe a verdict, and to see it again."""

from __future__ import annotations

__all__ = ["conclusion", "explain"]

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from pytest_lmgate.gates.comparisons.comparison import Comparison, no_interval
from pytest_lmgate.gates.verdict import Bounded, Verdict
from pytest_lmgate.metrics.noise.means import Rule
from pytest_lmgate.metrics.score import distinct
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.report.wording.counted import counted
from pytest_lmgate.report.wording.divergence import divergence_lines
from pytest_lmgate.report.wording.excerpt import excerpt, printable
from pytest_lmgate.report.wording.numbers import degradation, interval, number, size, tolerance
from pytest_lmgate.report.wording.where import where_lines

_HELP = '"My build is red: what now?" (docs/howto/red_build.md of pytest-lmgate)'
_RULES: Mapping[Rule, str] = {
    "student": "by Student's t",
    "hall": "by Hall's method",
    "tango": "by Tango's test",
    "wilson": "by Wilson's interval",
    "bootstrap": "by a paired bootstrap",
    "unchanged": "of which none changed",
}


def explain(verdict: Verdict) -> str:
    """Return the explanation of one verdict, several lines."""
    return printable("\n".join(_lines(verdict)))


def _lines(verdict: Verdict) -> list[str]:
    name = METRICS[verdict.metric].title if verdict.metric in METRICS else verdict.metric
    if verdict.value is None:
        done = "judged" if verdict.marker == "no_regression" else "measured"
        return [  # the cause first: CI services and pytest's own summary show one line
            f"{verdict.marker}: {verdict.message}",
            f"  {name} of {verdict.model!r} on {verdict.dataset!r} could not be {done}",
        ]
    if verdict.comparison is not None:
        return _compared(verdict, verdict.comparison, name)
    if verdict.limit is None:
        begin = f"{verdict.marker}: {name} {number(verdict.value)} of {verdict.model!r} on {verdict.dataset!r}"
        return [f"{begin}: {verdict.message}", *_facts(*_how_measured(verdict)), *_next(verdict)]
    value, limit = distinct(verdict.value, verdict.limit)
    at_least = "at least " if verdict.at_least else ""
    noise = "" if verdict.interval is None else f" {interval(*verdict.interval)}"
    outside = verdict.value > verdict.limit if verdict.marker.endswith("_max") else verdict.value < verdict.limit
    relation = ("above" if verdict.value > verdict.limit else "below") if outside else "within"
    excess = verdict.value - verdict.limit
    share = f" ({excess / abs(verdict.limit):+.2%})" if verdict.limit else ""
    details = dict(verdict.details)
    against = f" against {details['reference']!r}" if details else ""
    figures = divergence_lines(details, iid=verdict.iid) if details else ["", "", ""]
    stopped = "stopped early by --lmgate-fail-fast: the sum so far already proves it"
    return [
        f"{verdict.marker}: {name} {at_least}{value}{noise} of {verdict.model!r}{against} on {verdict.dataset!r} "
        f"is {relation} the limit {limit}",
        *_facts(
            ("by", f"{at_least}{excess:+.4g}{share}"),
            ("verdict", conclusion(verdict)),
            *_how_measured(verdict),
            *zip(("perplexity", "KL", "tokens"), figures, strict=True),
            ("note", stopped if verdict.at_least else ""),
        ),
        *_worst(verdict),
        *_next(verdict),
    ]


def _compared(verdict: Verdict, found: Comparison, name: str) -> list[str]:
    assert verdict.value is not None
    value, reference = distinct(verdict.value, found.reference)
    worse = f"{size(found, abs(found.degradation))} {'worse' if found.degradation > 0 else 'better'}"
    relation = "the same as" if found.degradation == 0 else f"{worse} than"
    p_value = "" if found.p_value is None else f"p = {found.p_value:.4f} (two-sided, as sacrebleu's paired bootstrap)"
    power = ""
    if found.detectable is not None and found.detectable > found.tolerance.size and verdict.verdict != "fail":
        power = f"the smallest change this gate can see is {size(found, found.detectable)}"
    return [
        f"{verdict.marker}: {name} {value} of {verdict.model!r} on {verdict.dataset!r} is {relation} "
        f"{reference} of the {found.against}: {verdict.verdict.upper()} at a tolerance of "
        f"{tolerance(found, verdict.metric)}",
        *_facts(
            ("degraded", f"{degradation(found)}{_level(found)}"),
            ("verdict", conclusion(verdict)),
            ("noise", _noise(found.clusters, found.clustered_by, found.bounds)),
            ("power", power),
            ("bootstrap", p_value),
            *(("note", note) for note in found.notes),
            *_how_measured(verdict),
        ),
        *([] if verdict.where is None else where_lines(found, verdict.where)),
        *_worst(verdict),
        *_next(verdict),
    ]


def conclusion(verdict: Verdict) -> str:
    """Return in words why bounds led to the verdict, and what would settle it; empty where a value was judged."""
    if verdict.comparison is not None:
        return _of_comparison(verdict, verdict.comparison)
    return "" if verdict.bounded is None else _of_bounds(verdict, verdict.bounded)


def _of_bounds(verdict: Verdict, bounded: Bounded) -> str:
    level = f"{100 * bounded.confidence:.15g}%"
    if bounded.lower is None or bounded.upper is None:
        return f"inconclusive: {no_interval(bounded.clusters, bounded.clustered_by)}"
    noise = _noise(bounded.clusters, bounded.clustered_by, bounded.bounds)
    bounds = f"{interval(bounded.lower, bounded.upper)} ({noise})"
    if verdict.verdict in ("pass", "fail"):
        side = "within" if verdict.verdict == "pass" else "beyond"
        return f"the value is {side} the limit with {level} confidence: {bounds}"
    build = "the build fails" if verdict.blocking else "the build goes on"
    text = f"inconclusive at {level}: the limit lies within the noise {bounds}; {build}"
    return f"{text}; about {bounded.needed:,} {verdict.unit}s would settle it" if bounded.needed else text


def _counted(clusters: int, clustered_by: str) -> str:
    return counted(clusters, clustered_by.removesuffix("s")) + " of text" * (clustered_by == "blocks")


def _noise(clusters: int, clustered_by: str, rule: Rule | None) -> str:
    return "" if rule is None else f"from {_counted(clusters, clustered_by)}, {_RULES[rule]}"


def _level(found: Comparison) -> str:
    return "" if found.bounds is None else f", each end at {100 * found.confidence:.15g}%"


def _of_comparison(verdict: Verdict, found: Comparison) -> str:
    level = f"{100 * found.confidence:.15g}%"
    if verdict.verdict == "pass":
        return found.reason or f"the change is within the tolerance with {level} confidence"
    if verdict.verdict == "fail":
        return f"the change is beyond the tolerance with {level} confidence"
    is_beyond = found.degradation > found.tolerance.size
    if verdict.blocking and not is_beyond:
        build = "--lmgate-strict fails the build"
    else:
        build = f"the build {'fails' if verdict.blocking else 'goes on'}, because the measured change is "
        build += f"{'beyond' if is_beyond else 'within'} the tolerance"
    text = f"inconclusive at {level}: {build}"
    if verdict.is_corrected:
        text += f"; it is {found.decision.upper()} alone, before Holm's correction"
    if found.needed is not None and found.degradation == 0 and found.bounds in ("tango", "unchanged"):
        shown = size(found, found.tolerance.size)
        text += f"; it needs {found.needed:,} {verdict.unit}s without a change to show less than {shown}"
    elif found.needed is not None:
        text += f"; about {found.needed:,} {verdict.unit}s would settle it"
    return f"{text}; {found.reason}" if found.reason else text


def _how_measured(verdict: Verdict) -> list[tuple[str, str]]:
    return [
        ("signature", verdict.signature),
        ("scored", _scored(verdict)),
        ("measured", _provenance(verdict)),
    ]


def _next(verdict: Verdict) -> list[str]:
    """Return what to do next."""
    again = ["pytest", verdict.test, *verdict.arguments]
    if not verdict.failed:
        return _facts(("reproduce", shlex.join(again)))
    file = Path(verdict.file)
    file = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    place = f" in {file}:{verdict.line}" if verdict.file else ""
    accept = f"set another {'limit' if verdict.comparison is None else 'tolerance'}{place}"
    if verdict.comparison is not None and verdict.comparison.against.startswith("baseline"):
        accept = f"{shlex.join([*again, '--lmgate-update'])}, and commit the baseline"
    return _facts(
        ("reproduce", shlex.join(again)),
        ("accept", accept),
        ("layers", verdict.layers),
        ("help", _HELP),
    )


def _worst(verdict: Verdict) -> list[str]:
    """One line for the prompt, the reference and the output of each row, cut to the terminal."""
    if not verdict.worst:
        return []
    digits = max(len(f"{row:,}") for row, *_ in verdict.worst)
    with_prompt = any(prompt for _, _, prompt, *_ in verdict.worst)
    lines = _facts(("worst rows", f"row (from 0), score, {'prompt, ' * with_prompt}reference, output"))
    for row, score, prompt, *texts in verdict.worst:
        begin = f"    {row:{digits},}  {score:8.4g}  "
        width = max(20, shutil.get_terminal_size().columns - len(begin))
        shown = [excerpt(text, width) or "(empty)" for text in ([prompt, *texts] if with_prompt else texts)]
        lines += [(" " * len(begin) if number else begin) + text for number, text in enumerate(shown)]
    return lines


def _facts(*pairs: tuple[str, str]) -> list[str]:
    """Return a line for each key with a text."""
    return [f"  {key:<10} {text}" for key, text in pairs if text]


def _scored(verdict: Verdict) -> str:
    count = f"{verdict.n:,} {verdict.unit}s" if verdict.n is not None else "unknown"
    if verdict.at_least:
        return count
    if (statistic := dict(verdict.details).get("statistic", "mean")) != "mean":
        return f"{count}; no interval: {statistic} is no mean"
    if verdict.stderr is None:
        few = "too few independent rows" if verdict.unit == "row" else "too little text"
        return f"{count}; no interval: {few} to estimate the noise"
    return f"{count}, standard error {verdict.stderr:.3g}, interval at 95%"


def _provenance(verdict: Verdict) -> str:
    if not verdict.fingerprint:
        return f"now, in {verdict.seconds:.1f} s; nothing is kept of a function, which has no content to hash"
    where = f"fingerprint {verdict.fingerprint[:12]}"
    if verdict.cached:
        return f"earlier, from the cache ({where}); --lmgate-refresh measures again"
    return f"now, in {verdict.seconds:.1f} s ({where})"
