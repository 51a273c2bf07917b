"""From a pair of series to its verdict, by the rules that gates have; and what is said of its rows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from pytest_lmgate.data.results.pairs import Pair
from pytest_lmgate.data.results.rows import ResultRun
from pytest_lmgate.errors import ComparisonError, LmgateError
from pytest_lmgate.judge.attribution import Attribution, tag_changes
from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.judge.verdict import Samples, compare_samples, compared_verdict, row_changes
from pytest_lmgate.metrics.results import scores_of, tags_of_rows
from pytest_lmgate.report.text import counted
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.settings.metrics import Direction
from pytest_lmgate.stats.comparison import Comparison


@dataclass(frozen=True)
class Rules:
    """How pairs are judged."""

    tolerance: Tolerance
    confidence: float = 0.95
    strict: bool = False  # whether INCONCLUSIVE fails
    direction: Direction | None = None  # which scores are better, if the files do not tell


def judged(pair: Pair, runs: tuple[ResultRun, ResultRun], rules: Rules, command: tuple[str, ...]) -> Verdict:
    """Return the verdict of a pair; `runs` are the old and the new one, `command` what judges them again."""
    old, new = (run.model or run.path.name for run in runs)
    facts: dict[str, Any] = {
        "metric": pair.new.label,
        "model": new,
        "dataset": pair.task,
        "limit": None,
        "unit": "row",
    }
    facts |= {"marker": "no_regression", "arguments": command, "file": str(runs[1].path)}
    blank = Verdict.unmeasured(id=f"{pair.task}: {pair.new.label}", test="", **facts)
    against = f"model {old!r}" if old != new else f"run in {runs[0].path}"
    try:
        if pair.problem:
            raise ComparisonError(pair.problem)
        return _judged(pair, blank, against, rules, runs[1].tool)
    except LmgateError as error:
        return replace(blank, message=str(error))


def _judged(pair: Pair, blank: Verdict, against: str, rules: Rules, tool: str) -> Verdict:
    new = dataclasses.replace(pair.new, direction=pair.new.direction or rules.direction)
    score, reference = scores_of(new, pair.old, tool=tool)
    both = score.require_sample(), reference.require_sample()
    found = compare_samples(both, against, tolerance=rules.tolerance, confidence=rules.confidence, metric=new.metric)
    dropped = [f"{counted(pair.dropped, 'row')} that only one side has: left out"] if pair.dropped else []
    found = replace(found, notes=(*dropped, *row_changes(both, found)))
    where = None if found.decision == "pass" else _tags(pair, both, found)
    return compared_verdict(blank, score, both, found, strict=rules.strict, where=where)


def _tags(pair: Pair, samples: Samples, found: Comparison) -> Attribution | None:
    if not (tags := tags_of_rows(pair.new.rows)):
        return None
    changes, more = tag_changes(*samples, tags, tolerance=found.tolerance, confidence=found.confidence)
    return Attribution(tags=changes, more_tags=more)
