"""The commands of ``lmgate``, and what they share: how errors end, and exit codes.

========= =====================================================================
exit code means
========= =====================================================================
0         the command did what it was asked, and nothing is worse
1         a gate or a comparison fails
2         the command line is wrong
3         something could not be read or measured; the message says what and why
========= =====================================================================

A command is a function in a file of its own. It imports what is heavy when it runs, so that ``--help`` and completion
are quick.
"""

from __future__ import annotations

__all__ = ["app", "main"]

from typing import Annotated

import typer

from pytest_lmgate import __version__
from pytest_lmgate.cli.init.command import init
from pytest_lmgate.cli.measurements import cache, measure
from pytest_lmgate.cli.measurements.why import why
from pytest_lmgate.cli.project import check, doctor, markers, schema
from pytest_lmgate.cli.runs import baseline, bisect, compare, history, report
from pytest_lmgate.errors import LmgateError

app = typer.Typer(name="lmgate", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def version(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)] = False,
) -> None:
    """Gates for language models: what pytest-lmgate measures and keeps, outside of pytest."""
    if show_version:
        typer.echo(f"pytest-lmgate {__version__}")
        raise typer.Exit


app.command("bisect")(bisect.bisect)
app.command("check")(check.check)
app.command("compare")(compare.compare)
app.command("history")(history.history)
app.command("init")(init)
app.command("measure")(measure.measure)
app.command("why")(why)
app.command("report")(report.report)
app.add_typer(cache.cache, name="cache")
app.add_typer(baseline.baseline, name="baseline")
app.command("doctor")(doctor.doctor)
app.command("markers")(markers.markers)
app.command("schema")(schema.schema)


def main() -> None:
    """Run the command line; an error of this package ends it with one message and exit code 3."""
    try:
        app(prog_name="lmgate")
    except LmgateError as error:
        typer.echo(f"lmgate: {error}", err=True)
        raise SystemExit(3) from None
