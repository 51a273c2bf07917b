"""``lmgate markers``: the markers and fixtures, as the table of metrics has them."""

from __future__ import annotations

__all__ = ["markers"]

import shutil
import textwrap
from typing import Annotated

import typer

from pytest_lmgate.cli.output import AsJson, show
from pytest_lmgate.errors import nearest
from pytest_lmgate.spec.catalogue import FIXTURES_HELP, MARKERS_HELP, arguments_help


def markers(
    name: Annotated[str, typer.Argument(help="A marker or fixture, such as ppl_max (default: all).")] = "",
    as_json: AsJson = False,
) -> None:
    """Say which markers and fixtures there are, and their arguments."""
    known = {**MARKERS_HELP, **FIXTURES_HELP}
    if name and name not in known:
        raise typer.BadParameter(f"no marker or fixture is called {name!r}{nearest(name, known)}")
    shown = {name: known[name]} if name else known
    show(shown, "\n\n".join([*shown.values(), _arguments(name)]), as_json=as_json)


def _arguments(name: str) -> str:
    """Say what the arguments of a marker or fixture mean, or where it is said."""
    if not name:
        return "lmgate markers NAME says what each argument means, and its default."
    width = shutil.get_terminal_size().columns
    lines = [
        textwrap.fill(f"{each}{f'={default}' if default else ''}: {words}", width, subsequent_indent="    ")
        for each, (default, words) in arguments_help(name).items()
    ]
    return "\n".join(lines).replace("``", "")
