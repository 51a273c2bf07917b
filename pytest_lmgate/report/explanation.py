"""The failure text: everything a person needs in order to believe a verdict, and to see it again."""

from __future__ import annotations

__all__ = ["distinct", "explain", "number"]

import shlex
import shutil

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.excerpt import excerpt, printable

_NAMES = {
    "ppl": "perplexity",
    "bpb": "bits per byte",
    "pppl": "pseudo-perplexity",
    "bleu": "BLEU",
    "chrf": "chrF",
    "ter": "TER",
    "rouge": "ROUGE",
    "exact": "exact match",
}


def explain(verdict: Verdict) -> str:
    """Return the explanation of one verdict, several lines."""
    return printable("\n".join(_lines(verdict)))


def _lines(verdict: Verdict) -> list[str]:
    name = _NAMES.get(verdict.metric, verdict.metric)
    if verdict.value is None:
        return [
            f"{verdict.marker}: {name} of {verdict.model!r} on {verdict.dataset!r} could not be measured",
            f"  {verdict.message}",
        ]
    value, limit = distinct(verdict.value, verdict.limit)
    at_least = "at least " if verdict.at_least else ""
    interval = ""
    if verdict.interval is not None:
        interval = f" [{number(verdict.interval[0])}, {number(verdict.interval[1])}]"
    beyond = "above" if verdict.value > verdict.limit else "below"
    relation = beyond if verdict.failed else "within"
    excess = verdict.value - verdict.limit
    lines = [
        f"{verdict.marker}: {name} {at_least}{value}{interval} of {verdict.model!r} on {verdict.dataset!r} "
        f"is {relation} the limit {limit}",
        _line("by", f"{at_least}{excess:+.4g}" + (f" ({excess / abs(verdict.limit):+.2%})" if verdict.limit else "")),
        _line("signature", verdict.signature),
        _line("targets", _targets(verdict)),
        _line("measured", _provenance(verdict)),
        _line("reproduce", f"pytest {shlex.quote(verdict.test)} --lmgate-refresh"),
    ]
    if verdict.at_least:
        lines.append(_line("note", "stopped early by --lmgate-fail-fast: the sum so far already proves it"))
    if verdict.worst:
        lines += [_line("worst rows", "row (from 0), score, reference, output"), *_worst_rows(verdict)]
    return lines


def _worst_rows(verdict: Verdict) -> list[str]:
    """One line for the reference and one for the output of each row, cut to the terminal."""
    digits = max(len(f"{row:,}") for row, *_ in verdict.worst)
    lines = []
    for row, score, reference, output in verdict.worst:
        begin = f"    {row:{digits},}  {score:8.4g}  "
        width = max(20, shutil.get_terminal_size().columns - len(begin))
        lines.append(begin + (excerpt(reference, width) or "(empty)"))
        lines.append(" " * len(begin) + (excerpt(output, width) or "(empty)"))
    return lines


def distinct(a: float, b: float) -> tuple[str, str]:
    """Format two numbers with as many digits as it takes to see that they differ, if they do."""
    for digits in range(6, 18):
        left, right = f"{a:.{digits}g}", f"{b:.{digits}g}"
        if left != right or a == b:
            break
    return left, right


def number(value: float) -> str:
    """Six significant digits."""
    return f"{value:.6g}"


def _line(key: str, text: str) -> str:
    return f"  {key:<10} {text}"


def _targets(verdict: Verdict) -> str:
    count = f"{verdict.n:,} {verdict.unit}s" if verdict.n is not None else "unknown"
    if verdict.at_least:
        return count
    if verdict.stderr is None:
        rows, text = "all rows are one cluster", "the text is a single cluster (one window or document)"
        return f"{count}; no interval: {rows if verdict.unit == 'row' else text}"
    return f"{count}, standard error {verdict.stderr:.3g}, interval at 95 %"


def _provenance(verdict: Verdict) -> str:
    if not verdict.fingerprint:
        return f"now, in {verdict.seconds:.1f} s; nothing is kept of a function, which has no content to hash"
    where = f"fingerprint {verdict.fingerprint[:12]}"
    if verdict.cached:
        return f"earlier, from the cache ({where})"
    return f"now, in {verdict.seconds:.1f} s ({where})"
