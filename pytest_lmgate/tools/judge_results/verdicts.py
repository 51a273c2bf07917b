"""From a pair of series to its verdict, by the rules that gates have; and what is said of its rows."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from pytest_lmgate.data.results.pairs import ResultPair
from pytest_lmgate.data.results.rows import ResultRun
from pytest_lmgate.errors import ComparisonError, LmgateError
from pytest_lmgate.judge.attribution import Attribution, tag_changes
from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.judge.verdict import compare_samples, compared_verdict, row_changes
from pytest_lmgate.measure.results import scores_of, tags_of_rows
from pytest_lmgate.report.explanation import explain
from pytest_lmgate.report.terminal import summary_lines
from pytest_lmgate.report.text import counted
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.settings.metrics import Direction


class Rules(Struct, frozen=True):
    """How pairs are judged."""

    tolerance: Tolerance
    confidence: float = 0.95
    strict: bool = False  # whether INCONCLUSIVE fails
    direction: Direction | None = None  # which scores are better, if the files do not tell


def judged(pair: ResultPair, runs: tuple[ResultRun, ResultRun], rules: Rules, command: tuple[str, ...]) -> Verdict:
    """Return the verdict of a pair; `runs` are the old and the new one, `command` what judges them again."""
    before, after = (run.model or run.path.name for run in runs)
    facts: dict[str, object] = {"model": after, "dataset": pair.new.task, "limit": None, "unit": "row"}
    facts |= {"metric": pair.new.label, "marker": "no_regression", "arguments": command, "file": str(runs[1].path)}
    blank = Verdict.unmeasured(id=pair.new.title, test="", **facts)
    against = f"model {before!r}" if before != after else f"run in {runs[0].path}"
    try:
        if pair.problem:
            raise ComparisonError(pair.problem)
        new = replace(pair.new, direction=pair.new.direction or rules.direction)
        score, reference = scores_of(new, pair.old)
        both = score.require_sample(), reference.require_sample()
        tolerance, confidence = rules.tolerance, rules.confidence
        found = compare_samples(both, against, tolerance=tolerance, confidence=confidence, metric=new.metric)
    except LmgateError as error:
        return replace(blank, message=str(error))
    dropped = [f"{counted(pair.dropped, 'row')} that only one side has: left out"] if pair.dropped else []
    found = replace(found, notes=(*dropped, *row_changes(both, found)))
    where = None
    if found.decision != "pass" and (tags := tags_of_rows(pair.new.rows)):
        changes, more = tag_changes(*both, tags, tolerance=tolerance, confidence=confidence)
        where = Attribution(tags=changes, more_tags=more)
    return compared_verdict(blank, score, both, found, strict=rules.strict, where=where)


def shown(verdicts: Sequence[Verdict], remarks: Sequence[str]) -> str:
    """Return what the terminal shows: why a metric fails or cannot be judged, notes of the others, tables, remarks."""
    lines = [f"{explain(verdict)}\n" for verdict in verdicts if verdict.fails]
    quiet = [(verdict.id, verdict.comparison) for verdict in verdicts if verdict.comparison and not verdict.fails]
    lines += [f"{name}: {note}" for name, comparison in quiet for note in comparison.notes]
    return "\n".join([*lines, *(line for _, line in summary_lines(verdicts)), *remarks])
