"""The same measurement or an error: two runs, series by series and row by row.

A difference that makes two series incomparable refuses their pair with what differs. What neither file, or only one,
tells is named as not checked.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from pytest_lmgate.errors import ComparisonError, ConfigError, nearest
from pytest_lmgate.tools.judge_results.rows import Facts, ResultRow, ResultRun, Series

Missing = Literal["error", "drop"]


@dataclass(frozen=True)
class Pair:
    """One metric of a task, or of a group of tasks, with the same rows of both runs in the same order."""

    task: str
    old: Series
    new: Series
    unchecked: tuple[str, ...] = ()  # what a file does not tell
    dropped: int = 0  # rows that only one side has
    problem: str = ""  # why the two cannot be compared
    tasks: tuple[str, ...] = ()  # of a group, the task of each row


def pairs_of(
    old: ResultRun, new: ResultRun, *, tasks: Sequence[str], metrics: Sequence[str], missing: Missing
) -> tuple[list[Pair], list[str]]:
    """Pair the series that both runs have; return the pairs, and sentences about what is left out."""
    sides = [_chosen(run, tasks, metrics) for run in (old, new)]
    both = [key for key in sides[0] if key in sides[1]]
    lost, added = ([_named(key) for key in one if key not in other] for one, other in (sides, sides[::-1]))
    if lost and missing == "error":
        raise ComparisonError(
            f"{new.path} lacks {_listed(lost)}, which {old.path} has: measure it again, choose with --task and "
            "--metric, or compare what both have with --missing drop"
        )
    remarks = [f"only {run.path} has {_listed(names)}" for run, names in ((old, lost), (new, added)) if names]
    if not both:
        raise ComparisonError(
            f"{old.path} and {new.path} have no metric of a task in common: {'; '.join(remarks) or 'nothing is left'}"
        )
    return [paired(sides[0][key], sides[1][key], missing) for key in both], remarks


def paired(old: Series, new: Series, missing: Missing) -> Pair:
    """Pair two series of one name."""
    try:
        for side, series in (("OLD", old), ("NEW", new)):
            if series.refused:
                raise ComparisonError(f"{side}: {series.refused}; choose other metrics with --metric")
        unchecked = _require_same_facts(old.facts, new.facts)
        old_rows, new_rows, dropped = _aligned(_by_key(old, "OLD"), _by_key(new, "NEW"), missing)
        differing = [row.id for row, other in zip(new_rows, old_rows, strict=True) if _differ(row.prompt, other.prompt)]
        if differing:
            raise ComparisonError(
                f"the prompts or targets of {len(differing):,} of {len(new_rows):,} rows differ, first of row "
                f"{differing[0]}: another prompt, template, number of shots or few-shot seed"
            )
        if any(_differ(row.cluster, other.cluster) for row, other in zip(new_rows, old_rows, strict=True)):
            raise ComparisonError("the clusters of the rows differ")
        if not all(row.prompt and other.prompt for row, other in zip(new_rows, old_rows, strict=True)):
            unchecked.append("prompts")
        if not all(row.document or row.prompt for row in (*new_rows, *old_rows)):
            unchecked.append("content of the rows, which are matched by their ids alone")
        if not (old.complete and new.complete):
            unchecked.append("whether the runs are complete")
        if old.direction != new.direction:
            raise ComparisonError(f"OLD says that {old.direction} is better, NEW {new.direction}")
    except ComparisonError as error:
        return Pair(old.task, old, new, problem=str(error))
    old, new = dataclasses.replace(old, rows=old_rows), dataclasses.replace(new, rows=new_rows)
    return Pair(old.task, old, new, tuple(unchecked), dropped)


def grouped(pairs: Sequence[Pair]) -> list[Pair]:
    """Join the pairs of the tasks of a group, metric by metric; a task without a group stays."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.new.group or pair.task, pair.new.label), []).append(pair)
    return [each[0] if len(each) == 1 else _joined(name, each) for (name, _), each in groups.items()]


def _joined(name: str, pairs: Sequence[Pair]) -> Pair:
    old, new = (dataclasses.replace(side, task=name, rows=()) for side in (pairs[0].old, pairs[0].new))
    if problems := [f"{pair.task}: {pair.problem}" for pair in pairs if pair.problem]:
        return Pair(name, old, new, problem="; ".join(problems[:3]))
    if len({pair.new.direction for pair in pairs}) > 1:
        return Pair(name, old, new, problem="its tasks do not agree on which scores are better")
    rows: list[list[ResultRow]] = [[], []]
    for pair in pairs:
        for side, series in zip(rows, (pair.old, pair.new), strict=True):
            # A document of one task is not that of another, whatever their ids.
            side += (
                msgspec.structs.replace(
                    row,
                    tags={**row.tags, "task": pair.task},
                    cluster=f"{pair.task} {row.cluster or row.document or row.id}",
                )
                for row in series.rows
            )
    old, new = (dataclasses.replace(each, rows=tuple(of)) for each, of in zip((old, new), rows, strict=True))
    unchecked = dict.fromkeys(each for pair in pairs for each in pair.unchecked)
    tasks = tuple(pair.task for pair in pairs for _ in pair.new.rows)
    return Pair(name, old, new, tuple(unchecked), sum(pair.dropped for pair in pairs), tasks=tasks)


_Key = tuple[str, str, str]


def _chosen(run: ResultRun, tasks: Sequence[str], metrics: Sequence[str]) -> dict[_Key, Series]:
    """Return the series of the wanted tasks, or groups of tasks, and metrics."""
    for option, wanted, known in (
        ("task", tasks, {name for each in run.series for name in (each.task, each.group) if name}),
        ("metric", metrics, {name for each in run.series for name in (each.metric, each.label)}),
    ):
        for name in wanted:
            if name not in known:
                raise ConfigError.of(
                    f"--{option}", f"{run.path} has no {name!r}{nearest(name, known)}; it has {_listed(sorted(known))}"
                )
    found: dict[_Key, Series] = {}
    for series in run.series:
        key = series.task, series.metric, series.filter
        if tasks and not {series.task, series.group} & {*tasks}:
            continue
        if metrics and not {series.metric, series.label} & {*metrics}:
            continue
        if key in found:
            raise ComparisonError(f"{run.path}: {_named(key)} is there twice: name the file or the folder of one run")
        found[key] = series
    return found


def _named(key: _Key) -> str:
    return f"{key[0]}: {key[1]}{f',{key[2]}' if key[2] else ''}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more}"


def _require_same_facts(old: Facts, new: Facts) -> list[str]:
    """Return the names of the facts that a file does not tell; ComparisonError if others differ."""
    differing, unchecked = [], []
    for field in dataclasses.fields(Facts):
        name, then, now = field.name.replace("_", " "), getattr(old, field.name), getattr(new, field.name)
        if then is None or now is None:
            unchecked.append(name)
        elif then != now:
            differing.append(f"{name} ({then:.200} in OLD, {now:.200} in NEW)")
    if differing:
        raise ComparisonError(f"the measurements differ: {'; '.join(differing)}")
    return unchecked


def _differ(one: str, other: str) -> bool:
    return bool(one and other) and one != other


def _by_key(series: Series, side: str) -> dict[object, ResultRow]:
    """Return the rows by what identifies them: the document, with the id where several rows have the same one."""
    documents = Counter(row.document for row in series.rows)
    found: dict[object, ResultRow] = {}
    for row in series.rows:
        key = row.document if row.document and documents[row.document] == 1 else (row.document, row.id)
        if key in found:
            raise ComparisonError(f"{side}: the row {row.id!r} is there twice: expected each row once")
        found[key] = row
    if not found:
        raise ComparisonError(f"{side}: expected rows, got none")
    return found


def _aligned(
    old: Mapping[object, ResultRow], new: Mapping[object, ResultRow], missing: Missing
) -> tuple[tuple[ResultRow, ...], tuple[ResultRow, ...], int]:
    """Return the rows that both sides have, in the order of the new ones, and how many others there are."""
    only = [[row.id for key, row in one.items() if key not in other] for one, other in ((old, new), (new, old))]
    dropped = sum(map(len, only))
    if dropped and missing == "error":
        sides = [
            f"{len(ids):,} only in {side} ({_listed(ids)})"
            for side, ids in zip(("OLD", "NEW"), only, strict=True)
            if ids
        ]
        same = {*only[0]} & {*only[1]}
        changed = f"; {len(same):,} rows of the same id have another document" if same else ""
        raise ComparisonError(
            f"the rows differ: {' and '.join(sides)} of {len(old):,} and {len(new):,}{changed}; --missing drop "
            "compares the common rows"
        )
    both = [key for key in new if key in old]
    if not both:
        raise ComparisonError("the two have no row in common")
    return tuple(old[key] for key in both), tuple(new[key] for key in both), dropped
