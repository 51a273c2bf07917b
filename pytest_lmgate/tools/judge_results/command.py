"""``lmgate judge``: two files or folders of results, and an exit status."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pytest_lmgate.cli.console import AsJson, note, show
from pytest_lmgate.errors import ConfigError, RecordError, nearest

if TYPE_CHECKING:
    from pytest_lmgate.judge.result import Results, Run, Verdict
    from pytest_lmgate.tools.judge_results.pairs import Pair


def judge(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Results of the reference: a file or a folder.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Results of the candidate, on the same rows.")],
    tolerance: Annotated[
        str, typer.Option(help="The largest loss that passes: 2% of OLD's value, or 0.02 in the metric's own unit.")
    ],
    metric: Annotated[list[str], typer.Option(help="Judge only this metric, such as acc or acc,none.")] = [],  # noqa: B006
    task: Annotated[list[str], typer.Option(help="Judge only this task, or the tasks of this group.")] = [],  # noqa: B006
    group: Annotated[
        Literal["size", "task"] | None,
        typer.Option(help="Judge the tasks of a group as one: by size each row counts alike, by task each task."),
    ] = None,
    missing: Annotated[
        Literal["error", "drop"], typer.Option(help="Rows that only one side has: an error, or left out.")
    ] = "error",
    better: Annotated[
        Literal["higher", "lower"] | None, typer.Option(help="Which scores are better, if the files do not tell.")
    ] = None,
    confidence: Annotated[float, typer.Option(min=0.5, max=1, help="One-sided level of each bound.")] = 0.95,
    strict: Annotated[bool, typer.Option("--strict", help="Treat INCONCLUSIVE as FAIL.")] = False,
    report: Annotated[
        list[str], typer.Option(metavar="TYPE:DEST", help="Write a report, as --lmgate-report of pytest does.")
    ] = [],  # noqa: B006
    row_id: Annotated[str, typer.Option("--id", metavar="COLUMN", help="Of a table: the row's id.")] = "",
    score: Annotated[str, typer.Option(metavar="COLUMN", help="Of a table: the row's score.")] = "",
    cluster: Annotated[
        str, typer.Option(metavar="COLUMN", help="Of a table: what rows that belong together share.")
    ] = "",
    tag: Annotated[
        list[str], typer.Option(metavar="COLUMN", help="A column, or key of a document, to sort losses by.")
    ] = [],  # noqa: B006
    format: Annotated[
        str, typer.Option(help="Format of both, if it cannot be seen: lm-eval, inspect, table, ...")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Compare two results of an evaluation row by row; exit code 1 if a metric got worse, 3 if it cannot be judged."""
    from pytest_lmgate.settings.gates import Tolerance
    from pytest_lmgate.tools.judge_results.pairs import grouped, pairs_of
    from pytest_lmgate.tools.judge_results.rows import ReadOptions, read
    from pytest_lmgate.tools.judge_results.verdicts import Rules, judged

    reports = [_report(each) for each in report]
    if not 0.5 < confidence < 1:
        raise typer.BadParameter(f"--confidence: expected a level above 0.5 and below 1, got {confidence:g}")
    rules = Rules(Tolerance.parse(_number(tolerance)), confidence, strict, group or "size", better)
    if old.resolve() == new.resolve():
        raise ConfigError(f"OLD and NEW are both {old}: expected the results of two runs")
    options = ReadOptions(format, row_id, score, cluster, tuple(tag))
    runs = read(old, options), read(new, options)
    pairs, remarks = pairs_of(*runs, tasks=task, metrics=metric, missing=missing)
    command = ["lmgate", "judge", str(old), str(new), f"--tolerance={tolerance}"]
    given = {"metric": metric, "task": task, "tag": tag, "id": [row_id], "score": [score], "cluster": [cluster]}
    given |= {"group": [group or ""], "better": [better or ""], "format": [format]}
    given |= {"missing": ["drop"] if missing == "drop" else []}
    command += [f"--{name}={each}" for name, values in given.items() for each in values if each]
    verdicts = [judged(pair, runs, rules, command) for pair in (grouped(pairs) if group else pairs)]
    remarks += [*runs[0].remarks, *runs[1].remarks, *_unchecked(pairs)]
    if runs[0].tool != runs[1].tool:
        remarks.append(f"measured by {runs[0].tool} (OLD) and {runs[1].tool} (NEW)")
    text, written = _text(verdicts, remarks), []
    if reports or as_json:
        results = _results(verdicts, remarks)
        written = _write(results, reports)
        if as_json:
            show(results, "", as_json=True)
    if not as_json:
        show(None, text, as_json=False)
    for each in written:
        typer.echo(each, nl=False)
    if any(verdict.verdict == "error" for verdict in verdicts):
        raise typer.Exit(3)
    if any(verdict.fails for verdict in verdicts):
        raise typer.Exit(1)


def _number(written: str) -> str | float:
    try:
        return float(written)
    except ValueError:  # a percentage, or what the parser refuses
        return written


def _report(written: str) -> tuple[str, str]:
    from pytest_lmgate.report.formats import FORMATS

    kind, _, destination = written.partition(":")
    destination = destination or (FORMATS[kind].destination if kind in FORMATS else "")
    if kind not in FORMATS or not destination:
        raise typer.BadParameter(
            f"--report: expected TYPE:DEST with TYPE one of {', '.join(FORMATS)}{nearest(kind, FORMATS)}; "
            f"got {written!r}"
        )
    return kind, destination


def _unchecked(pairs: Sequence[Pair]) -> list[str]:
    names = dict.fromkeys(name for pair in pairs for name in pair.unchecked)
    return [f"not checked, because the files do not tell: {', '.join(names)}"] if names else []


def _text(verdicts: Sequence[Verdict], remarks: Sequence[str]) -> str:
    """Return what the terminal shows: why a metric fails or cannot be judged, the table of all, and remarks."""
    from pytest_lmgate.report.explanation import explain
    from pytest_lmgate.report.terminal import summary_lines

    lines = [f"{explain(verdict)}\n" for verdict in verdicts if verdict.fails]
    lines += [line for _, line in summary_lines(verdicts)]
    lines += [
        f"{verdict.id}: {note}"
        for verdict in verdicts
        if verdict.comparison is not None and not verdict.fails
        for note in verdict.comparison.notes
    ]
    return "\n".join([*lines, *remarks])


def _results(verdicts: Sequence[Verdict], remarks: Sequence[str]) -> Results:
    from pytest_lmgate.judge.result import Results

    return Results(run=_run(), verdicts=tuple(verdicts), remarks=tuple(remarks))


def _run() -> Run:
    import sys
    import uuid
    from datetime import datetime, timezone

    from pytest_lmgate.judge.provenance import branch, project, provenance
    from pytest_lmgate.judge.result import Run

    folder = Path.cwd()
    return Run(
        id=uuid.uuid4().hex,
        project=project(folder),
        commit=provenance(folder, "").commit,
        branch=branch(folder),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        command=shlex.join(["lmgate", *sys.argv[1:]]),
    )


def _write(results: Results, reports: Sequence[tuple[str, str]]) -> list[str]:
    from pytest_lmgate.report.formats import shared_file, write_reports

    if twice := shared_file(reports):
        raise typer.BadParameter(f"two reports go to {twice}: give each a file of its own")
    printed: list[str] = []
    problems: list[str] = []
    write_reports(results, reports, Path.cwd(), printed, problems)
    if problems:
        raise RecordError("; ".join(problem.removeprefix("--lmgate-report ") for problem in problems))
    for kind, destination in reports:
        note(f"{kind}: {destination}")
    return printed
