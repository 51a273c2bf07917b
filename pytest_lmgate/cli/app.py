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

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_command_from_info
from typer.models import CommandInfo

from pytest_lmgate.errors import LmgateError
from pytest_lmgate.version import __version__

# Where each command is; it is imported when it is called, or named by ``--help``.
COMMANDS = {
    "baseline": "cli.kept:baseline",
    "cache": "cli.kept:cache",
    "check": "cli.project:check",
    "doctor": "cli.project:doctor",
    "markers": "cli.project:markers",
    "measure": "cli.measure:measure",
    "report": "cli.kept:report",
    "schema": "cli.project:schema",
}
TOOLS = {
    "bisect": "tools.history.bisect:bisect",
    "calibrate": "tools.calibrate.command:calibrate",
    "compare": "tools.history.command:compare",
    "drill": "tools.drill.command:drill",
    "fix": "tools.fix.command:fix",
    "history": "tools.history.command:history",
    "init": "tools.init.command:init",
    "judge": "tools.judge_results.command:judge",
    "import": "tools.tasks.command:import_task",
    "why": "tools.fix.why:why",
}
_ALL = {**COMMANDS, **TOOLS}


class _Commands(TyperGroup):
    """The commands of gates, and those of tools."""

    def list_commands(self, context: Any) -> list[str]:
        return sorted(_ALL)

    def get_command(self, context: Any, name: str) -> Any:
        if name in _ALL and name not in self.commands:
            module, _, function = _ALL[name].partition(":")
            command = getattr(import_module(f"pytest_lmgate.{module}"), function)
            if isinstance(command, typer.Typer):
                self.commands[name] = get_command(command)
                self.commands[name].name = name
            else:
                self.commands[name] = get_command_from_info(
                    CommandInfo(name, callback=command), pretty_exceptions_short=True, rich_markup_mode=None
                )
        return super().get_command(context, name)

    def resolve_command(self, context: Any, args: list[str]) -> Any:
        if args[0] not in _ALL:  # a misspelt one: any may be meant
            for name in _ALL:
                self.get_command(context, name)
        return super().resolve_command(context, args)


app = typer.Typer(
    name="lmgate", cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)


@app.callback(invoke_without_command=True)
def version(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)] = False,
) -> None:
    """Gates for language models: what pytest-lmgate measures and keeps, outside of pytest."""
    if show_version:
        typer.echo(f"pytest-lmgate {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; an error of this package ends it with one message and exit code 3."""
    try:
        app(prog_name="lmgate")
    except (LmgateError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in ("torch", "transformers", "datasets"):
            raise
        advice = "" if isinstance(error, LmgateError) else ": pip install torch transformers datasets"
        typer.echo(f"lmgate: {error}{advice}", err=True)
        raise SystemExit(3) from None
