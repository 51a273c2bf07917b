"""The failure text: everything a person needs in order to believe a verdict, and to see it again."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from pytest_lmgate.errors import escape_controls
from pytest_lmgate.judge.attribution import Attribution, TagChange, TokenChange
from pytest_lmgate.judge.result import Bounded, Verdict
from pytest_lmgate.metrics.score import distinct
from pytest_lmgate.report.text import counted, ending, excerpt
from pytest_lmgate.report.wording import answer_counts, degradation, divergence_lines, interval, number, size, tolerance
from pytest_lmgate.settings.metrics import METRICS, NO_REGRESSION
from pytest_lmgate.stats.comparison import Comparison, no_interval
from pytest_lmgate.stats.means import INTERVAL_NEEDS, Rule

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
    return escape_controls("\n".join(_lines(verdict)))


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
    noise = "" if verdict.interval is None else f" {interval(*verdict.interval)}"
    outside = verdict.value > verdict.limit if verdict.marker.endswith("_max") else verdict.value < verdict.limit
    relation = ("above" if verdict.value > verdict.limit else "below") if outside else "within"
    excess = verdict.value - verdict.limit
    share = f" ({excess / abs(verdict.limit):+.2%})" if verdict.limit else ""
    details = verdict.details
    against = f" against {details['reference']!r}" if details else ""
    figures = divergence_lines(details, iid=verdict.iid) if details else ["", "", ""]
    return [
        f"{verdict.marker}: {name} {value}{noise} of {verdict.model!r}{against} on {verdict.dataset!r} "
        f"is {relation} the limit {limit}{' (advisory)' if verdict.advises else ''}",
        *_facts(
            ("by", f"{excess:+.4g}{share}"),
            ("verdict", conclusion(verdict)),
            *_how_measured(verdict),
            *zip(("perplexity", "KL", "tokens"), figures, strict=True),
        ),
        *_worst(verdict),
        *_next(verdict),
    ]


def _compared(verdict: Verdict, comparison: Comparison, name: str) -> list[str]:
    assert verdict.value is not None
    value, reference = distinct(verdict.value, comparison.reference)
    worse = f"{size(comparison, abs(comparison.degradation))} {'worse' if comparison.degradation > 0 else 'better'}"
    relation = "the same as" if comparison.degradation == 0 else f"{worse} than"
    p_value = (
        ""
        if comparison.p_value is None
        else f"p = {comparison.p_value:.4f} (two-sided, as sacrebleu's paired bootstrap)"
    )
    level = "" if comparison.bounds is None else f", each end at {100 * comparison.confidence:.15g}%"
    power = ""
    if (
        comparison.detectable is not None
        and comparison.detectable > comparison.tolerance.size
        and verdict.verdict != "fail"
    ):
        power = f"the smallest change this gate can see is {size(comparison, comparison.detectable)}"
    return [
        f"{verdict.marker}: {name} {value} of {verdict.model!r} on {verdict.dataset!r} is {relation} "
        f"{reference} of the {comparison.against}: {verdict.named} at a tolerance of "
        f"{tolerance(comparison, verdict.metric)}",
        *_facts(
            ("degraded", f"{degradation(comparison)}{level}"),
            ("verdict", conclusion(verdict)),
            ("noise", _noise(verdict, comparison)),
            ("power", power),
            ("bootstrap", p_value),
            ("runs", _within_runs(comparison)),
            *(("note", note) for note in comparison.notes),
            *_how_measured(verdict),
        ),
        *attribution_lines(verdict),
        *_worst(verdict),
        *_next(verdict),
    ]


def _within_runs(comparison: Comparison) -> str:
    if not comparison.is_within_runs:
        return ""
    return (
        f"the change is within {comparison.varies_by:.3g}, by which lmgate calibrate saw the unchanged model vary here"
    )


def undecidable(verdict: Verdict) -> str:
    """Say why a gate that goes by noise can never tell a worse model from it; empty if it can."""
    bounds = verdict.comparison or verdict.bounded
    if bounds is not None:
        reason = no_interval(bounds.clusters, bounds.clustered_by)
    else:
        is_new = verdict.marker == NO_REGRESSION and verdict.value is not None and verdict.interval is None
        reason = f"its noise is not known, which needs {INTERVAL_NEEDS}" if is_new else ""
    return f"this gate can never decide: {reason}" if reason else ""


def unseen(share: float | None) -> str:
    """Name the damage that a PASS says nothing of; empty for a metric with a finite range."""
    return "" if share is None else f"damage to fewer than {100 * share:.2g}% of such rows is not ruled out"


def conclusion(verdict: Verdict) -> str:
    """Return why the bounds led to the verdict, and how to settle it; empty without bounds."""
    if verdict.comparison is not None:
        return _of_comparison(verdict, verdict.comparison)
    return "" if verdict.bounded is None else _of_bounds(verdict, verdict.bounded)


def _of_bounds(verdict: Verdict, bounded: Bounded) -> str:
    level = f"{100 * bounded.confidence:.15g}%"
    if bounded.lower is None or bounded.upper is None:
        return f"inconclusive: {undecidable(verdict)}"
    noise = _noise(verdict, bounded)
    bounds = f"{interval(bounded.lower, bounded.upper)} ({noise})"
    if verdict.verdict in ("pass", "fail"):
        side = "within" if verdict.verdict == "pass" else "beyond"
        text = f"the value is {side} the limit with {level} confidence: {bounds}"
        return "; ".join(filter(None, (text, unseen(bounded.unseen) if verdict.verdict == "pass" else "")))
    build = "the build fails" if verdict.blocking else "the build does not fail"
    text = f"inconclusive at {level}: the limit lies within the noise {bounds}; {build}"
    return f"{text}; about {bounded.needed:,} {verdict.unit}s would settle it" if bounded.needed else text


def cluster_name(verdict: Verdict, found: Comparison | Bounded) -> str:
    """Return what the noise is between: a block, a row, or a cluster of some of the rows that are scored."""
    if found.clustered_by == "blocks":
        return "block"
    return "cluster" if verdict.unit == "row" and found.clusters != verdict.n else "row"


def _noise(verdict: Verdict, found: Comparison | Bounded) -> str:
    name = cluster_name(verdict, found)
    more = {"block": " of text", "cluster": " of rows"}.get(name, "")
    return "" if found.bounds is None else f"from {counted(found.clusters, name)}{more}, {_RULES[found.bounds]}"


def _of_comparison(verdict: Verdict, comparison: Comparison) -> str:
    level = f"{100 * comparison.confidence:.15g}%"
    if verdict.verdict == "pass":
        if comparison.bounds is None:
            return "; ".join(filter(None, (comparison.reason, undecidable(verdict))))
        within = f"the change is within the tolerance with {level} confidence"
        return "; ".join(filter(None, (within, unseen(comparison.unseen))))
    if verdict.verdict == "fail":
        return f"the change is beyond the tolerance with {level} confidence"
    is_beyond = comparison.is_beyond
    if verdict.advisory:
        build = "the build does not fail, because the gate is advisory"
    elif verdict.blocking and not is_beyond:
        build = f"{'--lmgate-strict' if verdict.test else '--strict'} fails the build"
    else:
        build = f"the build {'fails' if verdict.blocking else 'does not fail'}, because the measured change is "
        build += f"{'beyond' if is_beyond else 'within'} the tolerance"
    text = f"inconclusive at {level}: {build}"
    if comparison.needed is not None and comparison.degradation == 0 and comparison.bounds in ("tango", "unchanged"):
        shown = size(comparison, comparison.tolerance.size)
        text += f"; it needs {comparison.needed:,} {verdict.unit}s without a change to show less than {shown}"
    elif comparison.needed is not None:
        text += f"; about {comparison.needed:,} {verdict.unit}s would settle it"
    return "; ".join(filter(None, (text, undecidable(verdict) or comparison.reason)))


def _how_measured(verdict: Verdict) -> list[tuple[str, str]]:
    return [
        ("signature", verdict.signature),
        ("scored", _scored(verdict)),
        ("answers", answer_counts(verdict.answers, always=True)),
        ("measured", _provenance(verdict)),
    ]


def _next(verdict: Verdict) -> list[str]:
    again = ["pytest", verdict.test, *verdict.arguments] if verdict.test else list(verdict.arguments)
    if not verdict.failed:
        return _facts(("reproduce", shlex.join(again)))
    file = Path(verdict.file)
    file = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    place = f" in {file}:{verdict.line}" if verdict.line else ""
    accept = f"set another {'limit' if verdict.comparison is None else verdict.comparison.tolerance.name}{place}"
    if verdict.comparison is not None and verdict.comparison.against.startswith("baseline"):
        accept = f"{shlex.join([*again, '--lmgate-update'])}, and commit the baseline"
    return _facts(("reproduce", shlex.join(again)), ("accept", accept), ("layers", verdict.layers), ("help", _HELP))


def _worst(verdict: Verdict) -> list[str]:
    """Return a line for prompt, reference and output of each row, cut to the terminal."""
    if not verdict.worst:
        return []
    digits = max(len(f"{row.row:,}") for row in verdict.worst)
    with_prompt = any(row.prompt for row in verdict.worst)
    with_answer = any(row.answer is not None for row in verdict.worst)
    texts_of = f"{'end of the prompt, ' * with_prompt}reference, output{', answer' * with_answer}"
    before = verdict.worst[0].before is not None
    lines = _facts(("worse rows" if before else "worst rows", f"row (from 0), score{' (before)' * before}, {texts_of}"))
    for row in verdict.worst:
        then = "" if row.before is None else f"({row.before:.4g})  "
        begin = f"    {row.row:{digits},}  {row.score:8.4g}  {then}"
        width = max(20, shutil.get_terminal_size().columns - len(begin))
        # The question ends a prompt with examples, and the answer ends a text with reasoning.
        shown = [ending(row.prompt, width)] * with_prompt + [excerpt(row.reference, width)]
        shown += (
            [ending(row.output, width), excerpt(row.answer or "", width)]
            if with_answer
            else [excerpt(row.output, width)]
        )
        shown = [text or "(empty)" for text in shown]
        lines += [(" " * len(begin) if number else begin) + text for number, text in enumerate(shown)]
    return lines


def _facts(*pairs: tuple[str, str]) -> list[str]:
    return [f"  {key:<10} {text}" for key, text in pairs if text]


def _scored(verdict: Verdict) -> str:
    count = f"{verdict.n:,} {verdict.unit}s" if verdict.n is not None else "unknown"
    if (statistic := verdict.details.get("statistic", "mean")) != "mean":
        return f"{count}; no interval: {statistic} is not a mean"
    if verdict.stderr is None:
        few = "too few independent rows" if verdict.unit == "row" else "too little text"
        return f"{count}; no interval: {few} to estimate the noise"
    return f"{count}, standard error {verdict.stderr:.3g}, interval at 95%"


def _provenance(verdict: Verdict) -> str:
    if not verdict.test:  # not by this package
        return f"elsewhere, read from {verdict.file}"
    if not verdict.fingerprint:
        return f"now, in {verdict.seconds:.1f} s; not kept, because a function has no content to hash"
    where = f"fingerprint {verdict.fingerprint[:12]}"
    if verdict.cached:
        return f"earlier, from the cache ({where}); --lmgate-refresh measures again"
    return f"now, in {verdict.seconds:.1f} s ({where})"


def attribution_lines(verdict: Verdict, *, most: tuple[int, int, int] = (3, 2, 5), width: int = 0) -> list[str]:
    """Return where a candidate got worse; `most` says how many passages, tokens of each, and tags to show."""
    where, comparison = verdict.where, verdict.comparison
    if where is None or comparison is None:
        return []
    width = width or shutil.get_terminal_size().columns
    passages, tokens, tags = most
    lines = []
    if where.passages:
        also = ", and at which tokens" if any(passage.tokens for passage in where.passages) else ""
        lines.append(f"  where      parts of the text that cost most: by how much the loss rose{also}")
        for passage in where.passages[:passages]:
            per_token = f"{passage.rise / passage.count:+.2g} each"  # passages are sorted by the rise in all
            rise = f"{passage.rise:+.3g} nats over {counted(passage.count, where.per)} ({per_token})"
            begin = f"    {passage.place}: {rise}  "
            lines.append(f"{begin}{excerpt(passage.begins, max(20, width - len(begin)))}".rstrip())
            lines += [_token(token, width) for token in passage.tokens[:tokens]]
    return lines + _tags(comparison, where, tags) + [f"  note       {excerpt(note, 300)}" for note in where.notes]


def _token(token: TokenChange, width: int) -> str:
    """One line: the token in brackets, with its context."""
    begin = f"      {token.loss - token.reference:+8.3g}  "
    losses = f"  ({token.reference:.3g} to {token.loss:.3g})"
    room = max(20, width - len(begin) - len(losses) - 2)
    shown = excerpt(token.token, room // 2)
    room = max(8, room - len(shown))
    before = ending(token.before, room * 2 // 3)
    return f"{begin}{before}[{shown}]{excerpt(token.after, max(4, room - len(before)))}{losses}"


def _tags(comparison: Comparison, where: Attribution, most: int) -> list[str]:
    worse = [tag for tag in where.tags if tag.is_worse]
    texts = [f"{_tag_name(tag)} {_changed(comparison, tag)}, {counted(tag.rows, 'row')}" for tag in worse[:most]]
    if len(worse) > most:
        texts.append(f"{len(worse) - most} more that got worse beyond noise")
    if others := [tag for tag in where.tags if not tag.is_worse]:
        names = ", ".join(f"{_tag_name(tag)} {_changed(comparison, tag)}" for tag in others[:most])
        more = len(others) - len(others[:most]) + where.more_tags
        texts.append(f"not worse beyond noise: {names}{f' and {more} more' if more else ''}")
    return [f"{' ' * 13 if at else '  tags       '}{text}" for at, text in enumerate(texts)]


def _tag_name(tag: TagChange) -> str:
    """Return column and tag, as in ``language=ko``."""
    return f"{excerpt(tag.column, 40)}={excerpt(tag.value, 40)}"


def _changed(comparison: Comparison, tag: TagChange) -> str:
    """Return a tag's change with its bounds, as a comparison's is written, or why there is no change."""
    if tag.degradation is None:
        return f"({excerpt(tag.problem, 120)})"
    return degradation(replace(comparison, degradation=tag.degradation, lower=tag.lower, upper=tag.upper))
