"""``lmgate report``: other reports of a run that is over, made of its JSON report."""

from __future__ import annotations

__all__ = ["report"]

from pathlib import Path
from typing import Annotated

import typer

from pytest_lmgate.cli.output import AsJson, show
from pytest_lmgate.errors import DataError
from pytest_lmgate.report.formats.table import STDOUT, write_reports


def report(
    file: Annotated[Path, typer.Argument(metavar="REPORT.json", help="Written by --lmgate-report json:REPORT.json.")],
    html: Annotated[str, typer.Option("--html", metavar="FILE", help="One page that needs no network.")] = "",
    markdown: Annotated[str, typer.Option("--markdown", metavar="FILE", help="For a pull request; - is stdout.")] = "",
    openmetrics: Annotated[str, typer.Option("--openmetrics", metavar="FILE", help="For GitLab, Prometheus.")] = "",
    github: Annotated[bool, typer.Option("--github", help="Print annotations of GitHub Actions.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make other reports of a run's JSON report. They are those that the run itself would have written."""
    from pytest_lmgate.report.formats.json_reader import read_report
    from pytest_lmgate.report.wording.rows import counts

    asked = {"html": html, "markdown": markdown, "openmetrics": openmetrics, "github": STDOUT if github else ""}
    wanted = [(kind, destination) for kind, destination in asked.items() if destination]
    if not wanted:
        raise typer.BadParameter(
            "expected a report to make: --html FILE, --markdown FILE, --openmetrics FILE or --github"
        )
    results = read_report(file)
    printed: list[str] = []
    problems: list[str] = []
    write_reports(results, wanted, printed, problems)
    if problems:
        raise DataError("; ".join(problem.removeprefix("--lmgate-report ") for problem in problems))
    written = [f"{kind}: {destination}" for kind, destination in wanted if destination != STDOUT]
    if as_json:
        show({"report": str(file), "written": dict(wanted)}, "", as_json=True)
    elif printed:
        typer.echo("".join(printed), nl=False)  # for a machine that reads commands, or made harmless already
    else:
        show(None, "\n".join([*written, counts(results)]), as_json=False)
