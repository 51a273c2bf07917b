"""``lmgate report``: the other reports of a run, from its JSON report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_lmgate.cli.console import AsJson, show
from pytest_lmgate.errors import RecordError, escape_controls
from pytest_lmgate.report.formats import STDOUT, shared_file, write_reports

if TYPE_CHECKING:
    from pytest_lmgate.judge.result import Results


def report(
    files: Annotated[
        list[Path], typer.Argument(metavar="REPORT.json...", help="Written by --lmgate-report json:REPORT.json.")
    ],
    join: Annotated[bool, typer.Option("--join", help="Make one run of several shards.")] = False,
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN.json", help="Gates that the shards must have, of --lmgate-plan.")
    ] = None,
    json: Annotated[str, typer.Option("--report", metavar="FILE", help="Write the JSON report.")] = "",
    html: Annotated[str, typer.Option("--html", metavar="FILE", help="Write a self-contained HTML page.")] = "",
    markdown: Annotated[str, typer.Option("--markdown", metavar="FILE", help="For a pull request; - is stdout.")] = "",
    openmetrics: Annotated[str, typer.Option("--openmetrics", metavar="FILE", help="For GitLab, Prometheus.")] = "",
    eval_results: Annotated[str, typer.Option("--eval-results", metavar="DIR", help="For models on the HF hub.")] = "",
    github: Annotated[bool, typer.Option("--github", help="Print annotations of GitHub Actions.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make other reports from a run's JSON report, exactly as the run would have written them.

    With --join the run is that of several shards. The exit code is 1 if none of them has a gate of the plan.
    """
    from pytest_lmgate.judge.result import join_shards, read_plan, read_results
    from pytest_lmgate.report.wording import counts

    requested = {"html": html, "markdown": markdown, "openmetrics": openmetrics, "eval-results": eval_results}
    requested |= {"github": STDOUT if github else "", "json": json}
    wanted = [(kind, destination) for kind, destination in requested.items() if destination]
    if not wanted:
        raise typer.BadParameter(
            "expected a report to make: --html FILE, --markdown FILE, --openmetrics FILE, --eval-results DIR, "
            "--report FILE or --github"
        )
    if not join and (len(files) > 1 or plan is not None):
        raise typer.BadParameter("several reports, or a plan: expected --join, which makes one run of shards")
    shards = {str(file): read_results(_read(file), str(file)) for file in files}
    results, is_whole = next(iter(shards.values())), True
    if join:
        planned = None if plan is None else read_plan(_read(plan), str(plan))
        results = join_shards(shards, planned)
        is_whole = planned is None or {verdict.id for verdict in results.verdicts}.issuperset(planned.gates)
    printed = made(results, wanted)
    written = [f"{kind}: {destination}" for kind, destination in wanted if destination != STDOUT]
    if as_json:
        show({"report": ", ".join(shards), "written": dict(wanted)}, "", as_json=True)
    elif printed:
        typer.echo("".join(printed), nl=False)  # for a machine that reads commands, or escaped already
    else:
        show(None, "\n".join([*written, *results.problems * join, counts(results.verdicts)]), as_json=False)
    if not is_whole:
        raise typer.Exit(1)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise RecordError(f"{file}: cannot be read: {error.strerror}") from error


def made(results: Results, wanted: Sequence[tuple[str, str]]) -> list[str]:
    """Write reports, given by format and destination; return those for stdout."""
    if twice := shared_file(wanted):
        raise typer.BadParameter(f"two reports go to {twice}: give each a file of its own")
    printed: list[str] = []
    problems: list[str] = []
    for note in write_reports(results, wanted, Path.cwd(), printed, problems):
        typer.echo(escape_controls(note.removeprefix("--lmgate-report ")), err=True)
    if problems:
        raise RecordError("; ".join(problem.removeprefix("--lmgate-report ") for problem in problems))
    return printed
