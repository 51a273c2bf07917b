"""The commands of ``lmgate``, and what they share: how errors end, and exit codes.

========= =====================================================================
exit code means
========= =====================================================================
0         success, and nothing is worse
1         a gate or a comparison fails
2         the command line is wrong
3         something could not be read or measured; the message says what and why
========= =====================================================================

A command imports what is heavy when it runs, so that ``--help`` and completion are quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pytest_lmgate.cli.baseline import baseline
from pytest_lmgate.cli.bisect import bisect
from pytest_lmgate.cli.cache import cache
from pytest_lmgate.cli.calibrate import calibrate
from pytest_lmgate.cli.fix import fix
from pytest_lmgate.cli.init import init
from pytest_lmgate.cli.measure import measure, why
from pytest_lmgate.cli.project import check, doctor, markers, schema
from pytest_lmgate.cli.reports import compare, history, report
from pytest_lmgate.cli.tasks import import_task
from pytest_lmgate.errors import LmgateError
from pytest_lmgate.version import __version__

app = typer.Typer(name="lmgate", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def version(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)] = False,
) -> None:
    """Gates for language models: what pytest-lmgate measures and keeps, outside of pytest."""
    if show_version:
        typer.echo(f"pytest-lmgate {__version__}")
        raise typer.Exit


for command in (bisect, calibrate, check, compare, fix, history, init, measure, why, report, doctor, markers, schema):
    app.command()(command)
app.command("import")(import_task)
app.add_typer(cache, name="cache")
app.add_typer(baseline, name="baseline")


def main() -> None:
    """Run the command line; an error of this package ends it with one message and exit code 3."""
    try:
        app(prog_name="lmgate")
    except LmgateError as error:
        typer.echo(f"lmgate: {error}", err=True)
        raise SystemExit(3) from None
