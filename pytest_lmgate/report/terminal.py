"""What pytest's terminal shows: the summary of all gates, the baselines that were replaced, and the plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pytest_lmgate.judge.result import FixtureCall, PreviousBaseline, Verdict, worst_first
from pytest_lmgate.metrics.score import distinct
from pytest_lmgate.report.explanation import cluster_name, conclusion, explain, undecidable, unseen
from pytest_lmgate.report.text import byte_size, counted, table
from pytest_lmgate.report.wording import Row, answer_counts, counts, interval, names, number, size, tolerance

if TYPE_CHECKING:
    from pytest_lmgate.measure.plan import PlannedMeasurement

_FEW = 30
_LIMITED = ("verdict", "gate", "value", "95% interval", "limit", "scored", "seconds")
_COMPARED = ("verdict", "gate", "degraded [one-sided]", "tolerance", "value", "reference", "scored", "seconds")
# Columns that go first where the terminal is narrow; failures and reports have all of it.
_FOLDS_OF_COMPARED = ("seconds", "scored", "reference", "value")
_FOLDS_OF_LIMITED = ("seconds", "scored", "95% interval")


def summary_lines(verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    """Return lines with their outcome for colour: tables with headers, and the counts."""
    verdicts = worst_first(verdicts)
    pairs = list(zip(verdicts, names(verdicts), strict=True))
    groups = [
        (header, folds, [pair for pair in pairs if (pair[0].comparison is not None) == is_compared])
        for header, folds, is_compared in ((_LIMITED, _FOLDS_OF_LIMITED, False), (_COMPARED, _FOLDS_OF_COMPARED, True))
    ]
    lines: list[tuple[str, str]] = []
    for header, folds, group in sorted(groups, key=lambda group: not any(verdict.fails for verdict, _ in group[2])):
        rows = [_cells(Row.of(verdict), name, header is _COMPARED) for verdict, name in group]
        if not rows:
            continue
        first, *others = table(header, rows, names=["gate"], left=["verdict"], folds=folds)
        if lines:
            lines.append(("", ""))
        lines.append(("", first))
        lines += [(_colour(verdict), line) for (verdict, _), line in zip(group, others, strict=True)]
    lines += [
        (_colour(verdict), f"{name}: {why}")  # which may not have failed its test
        for verdict, name in pairs
        if verdict.verdict == "inconclusive" and (why := conclusion(verdict))
    ]
    lines += [
        ("inconclusive", f"{name}: {why}")
        for verdict, name in pairs
        if verdict.verdict != "inconclusive" and (why := undecidable(verdict))
    ]
    # pytest shows no failure of a test that passes.
    lines += [
        (_colour(verdict), explain(verdict).partition("\n")[0])
        for verdict, _ in pairs
        if verdict.advises and verdict.verdict == "fail"
    ]
    lines += [("", f"{name}: {text}") for verdict, name in pairs if (text := answer_counts(verdict.answers))]
    lines += [("inconclusive", text) for text in _few(verdicts)]
    lines += [("", text) for say in (_rare, _elsewhere, _outgrown, _within_runs) for text in say(verdicts)]
    return [*lines, ("", counts(verdicts))]


def verified_note(processes: Sequence[Mapping[str, Any]]) -> str:
    """Say in one line how many cache hits the processes measured again."""
    verified, hits, in_memory = (
        sum(process.get(name, 0) for process in processes) for name in ("verified", "hits", "in_memory")
    )
    agree = ", all agree" if verified and not any(process["problems"] for process in processes) else ""
    left_out = f"; {in_memory} of models in memory not verified" if in_memory else ""
    return f"--lmgate-verify: {verified} of {hits} cache hits measured again{agree}{left_out}"


def not_kept_note(reasons: Mapping[str, str]) -> str:
    """Say in one line which models are measured in each session, why, and how to cache their measurements."""
    named = [f"{model} ({reason})" for model, reason in sorted(reasons.items())]
    more = f" and {len(named) - 2} more" if len(named) > 2 else ""
    return (
        f"not kept, measured again in each session: {', '.join(named[:2])}{more}; to keep the measurements, give the "
        'model a revision that you change with its code: lmgate.model(..., revision="1"), or revision: in lmgate.yaml'
    )


def _colour(verdict: Verdict) -> str:
    return "fail" if verdict.blocking and verdict.fails else verdict.outcome


def _cells(row: Row, name: str, is_compared: bool) -> list[str]:
    judged = [row.value, row.interval, row.limit]
    if is_compared:
        judged = [row.change, row.tolerance, row.value, row.limit]
    return [row.outcome, name, *(text or "-" for text in (*judged, row.scored, row.seconds))]


def _few(verdicts: Sequence[Verdict]) -> list[str]:
    """Say how many verdicts have fewer than 30 rows or targets, with much chance in them."""
    # A verdict without a rule rests on no rows: both are the same measurement passes with any number of them.
    tested = [
        (verdict, found)
        for verdict in verdicts
        if (found := verdict.comparison or verdict.bounded) is not None
        and (verdict.verdict == "inconclusive" or found.bounds is not None)
    ]
    numbers: dict[str, list[int]] = {"row": [], "cluster": [], "block": []}
    for verdict, found in tested:
        numbers[cluster_name(verdict, found)].append(found.clusters)
    targets = [verdict.n for verdict in verdicts if verdict.n is not None and verdict.unit != "row"]
    lines = []
    for unit, known in (("rows", numbers["row"]), ("clusters", numbers["cluster"]), ("targets", targets)):
        if few := [number for number in known if number < _FEW]:
            have = "has" if len(few) == 1 else "have"
            fewer = f"fewer than {_FEW} (min {min(few)})"
            lines.append(f"few {unit}: {counted(len(few), 'gate')} {have} {fewer}: only large changes can be detected")
    return lines


def _rare(verdicts: Sequence[Verdict]) -> list[str]:
    """Say which share of rows could be damaged unseen by the gates that pass."""
    passed = [verdict.comparison or verdict.bounded for verdict in verdicts if verdict.verdict == "pass"]
    shares = [
        comparison.unseen
        for comparison in passed
        if comparison is not None and comparison.bounds and comparison.unseen is not None
    ]
    return [f"rare damage: {counted(len(shares), 'gate')} passed; {unseen(max(shares))}"] if shares else []


def _elsewhere(verdicts: Sequence[Verdict]) -> list[str]:
    """Say how hardware and versions differ from the baseline's, once for gates with the same difference."""
    compared = [verdict.comparison for verdict in verdicts if verdict.comparison is not None]
    moved = Counter(
        comparison.notes for comparison in compared if comparison.notes and comparison.against.startswith("baseline")
    )
    return [
        f"baseline of {counted(count, 'gate')} measured elsewhere: {'; '.join(notes)}" for notes, count in moved.items()
    ]


def _outgrown(verdicts: Sequence[Verdict]) -> list[str]:
    """Name the gates whose baseline is so much worse than today's value that it no longer guards it."""
    gates = [
        verdict.label
        for verdict in verdicts
        if (found := verdict.comparison) is not None
        and verdict.verdict == "pass"
        and found.against.startswith("baseline")
        and -found.degradation > found.tolerance.size
    ]
    if not gates:
        return []
    return [
        f"baseline outgrown: {counted(len(gates), 'gate')} better by more than the tolerance ({_first(gates)}), "
        f"so a loss of as much would pass; to accept today's values: --lmgate-update"
    ]


def _first(gates: Sequence[str]) -> str:
    return f"{', '.join(gates[:3])}{', ...' * (len(gates) > 3)}"


def _within_runs(verdicts: Sequence[Verdict]) -> list[str]:
    gates = [verdict.label for verdict in verdicts if verdict.comparison and verdict.comparison.is_within_runs]
    return [f"runs: {_first(gates)}: changed by no more than an unchanged model does from run to run"] if gates else []


def measured_line(call: FixtureCall) -> str:
    noise = f" {interval(*call.interval)}" if call.interval else ""
    source = f" of {call.model!r} on {call.dataset!r}" if call.model else ""
    cached = ", cached" if call.cached else ""
    cached += f"; {text}" if (text := answer_counts(call.answers)) else ""
    return f"measured in {call.test}: {call.fixture} {number(call.value)}{noise}{source}{cached}"


def title(verdicts: Sequence[Verdict], measured: Sequence[FixtureCall]) -> str:
    is_cached: dict[str, bool] = {}  # by address, or where nothing is kept by place: whether it came from the cache
    everything: list[Verdict | FixtureCall] = [*verdicts, *measured]
    for index, evaluation in enumerate(everything):
        if evaluation.value is not None:
            key = evaluation.fingerprint or str(index)
            is_cached[key] = evaluation.cached and is_cached.get(key, True)
    if not verdicts and not is_cached:
        return "lmgate"
    cached = f" ({sum(is_cached.values())} cached)" if any(is_cached.values()) else ""
    judged = f"{counted(len(verdicts), 'gate')}, " if verdicts else ""
    return f"lmgate: {judged}{counted(len(is_cached), 'measurement')}{cached}"


def replaced_lines(verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    """Return a line, with its outcome for colour, for each gate whose baseline was measured again."""
    return [
        (outcome, f"baseline of {verdict.id}: {text}")
        for verdict in verdicts
        if verdict.previous is not None and verdict.value is not None
        for outcome, text in [_line(verdict.value, verdict.previous, verdict.metric)]
    ]


def _line(value: float, previous: PreviousBaseline, metric: str) -> tuple[str, str]:
    if previous.value is None:
        return "", f"new, {number(value)}"
    old, new = distinct(previous.value, value)
    comparison = previous.comparison
    if comparison is None:
        return "inconclusive", f"{old} -> {new}: {previous.problem}"
    if comparison.degradation == 0:
        return "", f"{new}, unchanged{', measured elsewhere' * bool(comparison.notes)}"
    fails = comparison.fails_build()
    worse = ("WORSE" if fails else "worse") if comparison.degradation > 0 else "better"
    change = f"{old} -> {new}, {size(comparison, abs(comparison.degradation))} {worse}"
    outcome = "fail" if fails else comparison.decision
    allowed = tolerance(comparison, metric)
    return outcome, f"{change}: by the old baseline {comparison.decision.upper()} at a tolerance of {allowed}"


_HEADER = ("", "measurement", "gates", "tokens", "weights", "time", "protocol")
_FOLDS = ("gates", "protocol", "weights", "time")


def plan_lines(measurements: Sequence[PlannedMeasurement], problems: Sequence[str] = ()) -> list[str]:
    """Return the lines of a plan.

    The `problems` are sentences about what cannot be planned.
    """
    if not measurements:
        return [*problems] or ["no gate needs a measurement"]
    rows = list(map(_row, measurements))
    lines = table(_HEADER, rows, names=["measurement"], left=[""], folds=_FOLDS)
    for measurement in measurements:
        if measurement.why:
            lines.append(f"{_name(measurement)}: {', '.join(measurement.why)}")
    read = sum(measurement.is_read for measurement in measurements)
    todo = [measurement for measurement in measurements if not (measurement.is_cached or measurement.is_read)]
    begun = sum(measurement.done > 0 for measurement in todo)
    cached = f"{len(measurements) - len(todo) - read} cached, {f'{read} read from results, ' if read else ''}"
    summary = f"{cached}{begun} begun, {len(todo) - begun} to be made"
    lines.append(f"{counted(len(measurements), 'measurement')}: {summary}")
    return [*lines, *(_totals(todo) if todo else []), *problems]


def _totals(todo: Sequence[PlannedMeasurement]) -> list[str]:
    tokens, unknown = _sum(
        [None if measurement.tokens is None else _left(measurement, measurement.tokens) for measurement in todo]
    )
    most = "at most " * any(measurement.is_most for measurement in todo)
    seconds, untimed = _sum([measurement.seconds for measurement in todo])
    weights = {name: size for measurement in todo for name, size in measurement.weights.items()}
    return [
        f"tokens: {most}{tokens:,.0f}{_more(unknown, 'whose tokens can only be counted with the model loaded')}"
        if unknown < len(todo)
        else "tokens: unknown, because they can only be counted with the models loaded",
        f"time: about {_time(seconds)} without loading models{_more(untimed, 'whose speed is not in the cache')}"
        if untimed < len(todo)
        else "time: unknown, because the cache has no speed of these models on this device",
        f"models to load: {', '.join(f'{name} ({_memory(size)})' for name, size in weights.items())}",
    ]


def _row(measurement: PlannedMeasurement) -> tuple[str, ...]:
    name, gates, protocol = _name(measurement), str(measurement.gates), measurement.protocol
    if measurement.is_cached or measurement.is_read:
        return "read" if measurement.is_read else "cached", name, gates, "", "", "", protocol
    state = f"{math.floor(100 * measurement.done)}% done" if measurement.done else "to measure"
    tokens = seconds = "?"
    if measurement.tokens is not None:
        tokens = f"{'<= ' * measurement.is_most}{_left(measurement, measurement.tokens):,.0f}"
    if measurement.seconds is not None:
        seconds = _time(measurement.seconds)
    return state, name, gates, tokens, " + ".join(map(_memory, measurement.weights.values())), seconds, protocol


def _name(measurement: PlannedMeasurement) -> str:
    return f"{', '.join(measurement.metrics)}: {measurement.words}"


def _left(measurement: PlannedMeasurement, tokens: int) -> float:
    return tokens * (1 - measurement.done)


def _memory(size: int) -> str:
    return byte_size(size) if size else "?"


def _time(seconds: float) -> str:
    return str(timedelta(seconds=math.ceil(seconds)))


def _sum(numbers: Sequence[float | None]) -> tuple[float, int]:
    """Return the sum of the known numbers, and how many are unknown."""
    known = [number for number in numbers if number is not None]
    return sum(known), len(numbers) - len(known)


def _more(count: int, which: str) -> str:
    return f", and that of {counted(count, 'measurement')} {which}" if count else ""
