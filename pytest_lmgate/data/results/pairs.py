"""The same measurement or an error: two runs, series by series and row by row.

A difference that makes two series incomparable refuses their pair with what differs. What neither file, or only one,
tells is named as not checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from pytest_lmgate.data.results.rows import Facts, ResultRow, ResultRun, Series, Weights, joined
from pytest_lmgate.errors import ComparisonError, ConfigError

Missing = Literal["error", "drop"]
Runs = tuple[ResultRun, ResultRun]
_SIDES, _OPTIONS = ("OLD", "NEW"), ("--task", "--metric")


class ResultPair(Struct, frozen=True):
    """One metric of a task, or of a group of tasks, with the same rows of both runs in the same order."""

    old: Series
    new: Series
    unchecked: tuple[str, ...] = ()  # what a file does not tell
    dropped: int = 0  # rows that only one side has
    problem: str = ""  # why the two cannot be compared


def pairs_of(
    old: ResultRun, new: ResultRun, *, tasks: Sequence[str], metrics: Sequence[str], missing: Missing
) -> tuple[list[ResultPair], list[str]]:
    """Pair the series that both runs have; return the pairs, and sentences about what is left out."""
    before, after = ({each.title: each for each in run.chosen(tasks, metrics, _OPTIONS)} for run in (old, new))
    lost, added = ([name for name in one if name not in other] for one, other in ((before, after), (after, before)))
    if lost and missing == "error":
        raise ComparisonError(
            f"{new.path} lacks {_listed(lost)}, which {old.path} has: measure it again, choose with --task and "
            "--metric, or compare what both have with --missing drop"
        )
    remarks = [f"only {run.path} has {_listed(names)}" for run, names in ((old, lost), (new, added)) if names]
    if not (both := [name for name in before if name in after]):
        raise ComparisonError(f"{old.path} and {new.path} have no metric of a task in common")
    return [paired(before[name], after[name], missing) for name in both], remarks


def paired(old: Series, new: Series, missing: Missing, names: tuple[str, str] = _SIDES) -> ResultPair:
    """Pair two series of one name; messages call the old and the new one by `names`."""
    try:
        if old.parts or new.parts:
            return _paired_groups(old, new, missing, names)
        for side, series in zip(names, (old, new), strict=True):
            if series.refused:
                raise ComparisonError(f"{side}: {series.refused}; choose other metrics with --metric")
        if old.run and old.run == new.run:
            raise ComparisonError(
                f"{names[0]} and {names[1]} are the same run ({old.run}): did a new one write its own?"
            )
        unchecked = _require_same_facts(old.facts, new.facts, names)
        if old.direction != new.direction:
            raise ComparisonError(f"{names[0]} says that {old.direction} is better, {names[1]} {new.direction}")
        sides, dropped = _aligned(_by_key(old, names[0]), _by_key(new, names[1]), missing, names)
        if differing := [now.id for then, now in sides if then.prompt and now.prompt and then.prompt != now.prompt]:
            raise ComparisonError(
                f"the prompts or targets of {len(differing):,} of {len(sides):,} rows differ, first of row "
                f"{differing[0]}: another prompt, template, number of shots or few-shot seed"
            )
        if any(then.cluster != now.cluster for then, now in sides):
            raise ComparisonError("the clusters of the rows differ")
    except ComparisonError as error:
        return ResultPair(old, new, problem=str(error))
    if not all(row.prompt for both in sides for row in both):
        unchecked.append("prompts")
    if not all(row.document or row.prompt for both in sides for row in both):
        unchecked.append("content of the rows, which are matched by their ids alone")
    if not (old.complete and new.complete):
        unchecked.append("whether the runs are complete")
    before, after = zip(*sides, strict=True)
    return ResultPair(replace(old, rows=before), replace(new, rows=after), tuple(unchecked), dropped)


def grouped(pairs: Sequence[ResultPair], runs: Runs, weights: Weights, tasks: Sequence[str]) -> list[ResultPair]:
    """Join the tasks of each group in `tasks`, or of the outermost groups, metric by metric; other tasks stay."""
    old, new = (run.groups for run in runs)
    known = sorted(name for name in old.keys() & new.keys() if {*old[name].tasks} == {*new[name].tasks})
    if not (groups := [name for name in known if name in tasks or not tasks]):
        expected = f"expected a group of tasks that both have{' in --task' if known else ''}"
        raise ConfigError.of("--group", f"{expected}; they have {_listed(known) or 'none'}")
    groups.sort(key=lambda name: len(new[name].tasks))  # the group of a task is the outermost
    group_of = {task: name for name in groups for task in new[name].tasks}
    found: dict[tuple[str, str], list[ResultPair]] = {}
    for pair in pairs:
        found.setdefault((group_of.get(pair.new.task, pair.new.task), pair.new.label), []).append(pair)
    return [_joined(name, each, weights) if len(each) > 1 else each[0] for (name, _), each in found.items()]


def _paired_groups(old: Series, new: Series, missing: Missing, names: tuple[str, str]) -> ResultPair:
    tasks, others = ({part.task: part for part in series.parts} for series in (new, old))
    if differing := sorted(tasks.keys() ^ others.keys()):
        raise ComparisonError(f"{new.task}: only one of {' and '.join(names)} has the tasks {_listed(differing)}")
    if new.weights is None or new.weights != old.weights:
        raise ComparisonError(f"{new.task} is averaged by {old.weights} in {names[0]}, by {new.weights} in {names[1]}")
    return _joined(new.task, [paired(others[task], part, missing, names) for task, part in tasks.items()], new.weights)


def _joined(name: str, pairs: Sequence[ResultPair], weights: Weights) -> ResultPair:
    old, new = joined(name, [pair.old for pair in pairs], weights), joined(name, [pair.new for pair in pairs], weights)
    problems = [f"{pair.new.task}: {pair.problem}" for pair in pairs if pair.problem]
    problems += [new.refused] if new.refused else []
    unchecked = tuple(dict.fromkeys(each for pair in pairs for each in pair.unchecked))
    return ResultPair(old, new, unchecked, sum(pair.dropped for pair in pairs), "; ".join(problems[:3]))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _require_same_facts(old: Facts, new: Facts, names: tuple[str, str]) -> list[str]:
    """Return the names of the facts that a file does not tell; ComparisonError if others differ."""
    untold, differing = [], []
    for (field, then), now in zip(asdict(old).items(), asdict(new).values(), strict=True):
        name = field.replace("_", " ")
        if then is None or now is None:
            untold.append(name)
        elif then != now:
            differing.append(f"{name} ({then:.200} in {names[0]}, {now:.200} in {names[1]})")
    if differing:
        raise ComparisonError(f"the measurements differ: {'; '.join(differing)}")
    return untold


def _by_key(series: Series, side: str) -> dict[object, ResultRow]:
    """Return the rows by what identifies them: the document, with the id where several rows have the same one."""
    documents = Counter(row.document for row in series.rows)
    found: dict[object, ResultRow] = {}
    for row in series.rows:
        key = row.document if row.document and documents[row.document] == 1 else (row.document, row.id)
        if found.setdefault(key, row) is not row:
            raise ComparisonError(f"{side}: the row {row.id!r} is there twice: expected each row once")
    return found


def _aligned(
    old: Mapping[object, ResultRow], new: Mapping[object, ResultRow], missing: Missing, names: tuple[str, str]
) -> tuple[list[tuple[ResultRow, ResultRow]], int]:
    """Return the rows that both sides have, in the order of the new ones, and how many others there are."""
    lost, added = ([row.id for key, row in one.items() if key not in other] for one, other in ((old, new), (new, old)))
    if (lost or added) and missing == "error":
        sides = zip(names, (lost, added), strict=True)
        said = " and ".join(f"{len(ids):,} only in {side} ({_listed(ids)})" for side, ids in sides if ids)
        same = len({*lost} & {*added})
        changed = f"; {same:,} rows of the same id have another document" if same else ""
        drop = "; --missing drop compares the common rows" if names == _SIDES else ""
        raise ComparisonError(f"the rows differ: {said} of {len(old):,} and {len(new):,}{changed}{drop}")
    if not (both := [(old[key], row) for key, row in new.items() if key in old]):
        raise ComparisonError("the two have no row in common")
    return both, len(lost) + len(added)
