"""``lmgate judge``: two files or folders of results, and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pytest_lmgate.cli.console import AsJson, show
from pytest_lmgate.cli.kept import made
from pytest_lmgate.data.results.pairs import Missing, ResultPair, grouped, pairs_of
from pytest_lmgate.data.results.rows import Columns, Weights, read
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.report.formats import parse_report
from pytest_lmgate.settings.metrics import Direction


def judge(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Results of the reference: a file or a folder.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Results of the candidate, on the same rows.")],
    tolerance: Annotated[
        str, typer.Option(help="The largest loss that passes: 2% of OLD's value, or 0.02 in the metric's own unit.")
    ],
    metric: Annotated[list[str], typer.Option(help="Judge only this metric, such as acc or acc,none.")] = [],  # noqa: B006
    task: Annotated[list[str], typer.Option(help="Judge only this task, or the tasks of this group.")] = [],  # noqa: B006
    group: Annotated[
        Weights | None,
        typer.Option(help="Judge the tasks of a group as one: by size each row counts alike, by task each task."),
    ] = None,
    missing: Annotated[Missing, typer.Option(help="Rows that only one side has: an error, or left out.")] = "error",
    better: Annotated[Direction | None, typer.Option(help="Which scores are better, if the files do not tell.")] = None,
    confidence: Annotated[float, typer.Option(min=0.5, max=1, help="One-sided level of each bound.")] = 0.95,
    strict: Annotated[bool, typer.Option("--strict", help="Treat INCONCLUSIVE as FAIL.")] = False,
    report: Annotated[
        list[str], typer.Option(metavar="TYPE:DEST", help="Write a report, as --lmgate-report of pytest does.")
    ] = [],  # noqa: B006
    row_id: Annotated[str, typer.Option("--id", metavar="COLUMN", help="Of a table: the row's id.")] = "",
    score: Annotated[str, typer.Option(metavar="COLUMN", help="Of a table: the row's score.")] = "",
    cluster: Annotated[str, typer.Option(metavar="COLUMN", help="Of a table: what rows of one cluster share.")] = "",
    as_json: AsJson = False,
) -> None:
    """Compare two results of an evaluation row by row; exit code 1 if a metric got worse, 3 if it cannot be judged."""
    from pytest_lmgate.settings.gates import Tolerance
    from pytest_lmgate.tools.judge_results.verdicts import Rules, judged, shown

    reports = [parse_report(each) for each in report]
    if not 0.5 < confidence < 1:
        raise typer.BadParameter(f"--confidence: expected a level above 0.5 and below 1, got {confidence:g}")
    rules = Rules(Tolerance.parse(_number(tolerance)), confidence, strict, better)
    if old.resolve() == new.resolve():
        raise ConfigError(f"OLD and NEW are both {old}: expected the results of two runs")
    runs = read(old, Columns(row_id, score, cluster)), read(new, Columns(row_id, score, cluster))
    pairs, remarks = pairs_of(*runs, tasks=task, metrics=metric, missing=missing)
    pairs = grouped(pairs, runs, group, task) if group else pairs
    _require_order(pairs, better)
    command = ("lmgate", *sys.argv[1:])
    verdicts = [judged(pair, runs, rules, command) for pair in pairs]
    remarks += [*runs[0].remarks, *runs[1].remarks]
    if unchecked := dict.fromkeys(name for pair in pairs for name in pair.unchecked):
        remarks.append(f"not checked, because the files do not tell: {', '.join(unchecked)}")
    if runs[0].tool != runs[1].tool:
        remarks.append(f"measured by {runs[0].tool} (OLD) and {runs[1].tool} (NEW)")
    if not as_json:
        show(None, shown(verdicts, remarks), as_json=False)
    if reports or as_json:
        from pytest_lmgate.judge.provenance import run_now
        from pytest_lmgate.judge.result import Results

        results = Results(run=run_now(Path.cwd(), [*command]), verdicts=tuple(verdicts), remarks=tuple(remarks))
        typer.echo("".join(made(results, reports)), nl=False)
        if as_json:
            show(results, "", as_json=True)
    if any(verdict.fails for verdict in verdicts):  # an error does
        raise typer.Exit(3 if any(verdict.verdict == "error" for verdict in verdicts) else 1)


def _require_order(pairs: Sequence[ResultPair], better: Direction | None) -> None:
    """Refuse an order that no pair needs and that one contradicts: nothing would come of it."""
    told = {pair.new.direction: pair.new.metric for pair in pairs}
    if better and told and {better, None}.isdisjoint(told):
        (direction, name), *_ = told.items()
        raise ConfigError(
            f"--better: expected {direction}, as the files or the name of {name!r} tell, got {better}: leave it out, "
            "or give the column another name"
        )


def _number(written: str) -> str | float:
    try:
        return float(written)
    except ValueError:  # a percentage, or what the parser refuses
        return written
