"""``lmgate compare A B``: two runs side by side, from two JSON reports or from two commits of a history."""

from __future__ import annotations

__all__ = ["compare"]

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_lmgate.cli.output import AsJson, show
from pytest_lmgate.cli.places import root
from pytest_lmgate.errors import RecordError

if TYPE_CHECKING:
    from pytest_lmgate.gates.record import GateRecord


def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="JSON report of the former run; with --history a commit.")],
    after: Annotated[str, typer.Argument(metavar="B", help="JSON report or commit of the newer run.")],
    history: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="A and B are commits, recorded in this folder or at this URI."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a comment for a pull request.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two runs gate by gate; exit code 1 if a gate fails now that did not, or is worse beyond noise."""
    from pytest_lmgate.report.runs.side_by_side import (
        side_by_side,
        side_by_side_json,
        side_by_side_markdown,
        side_by_side_text,
    )

    if markdown and as_json:
        raise typer.BadParameter("--markdown and --json: expected one of them, got both")
    sides = [_reported(Path(each)) if history is None else _recorded(history, each) for each in (before, after)]
    found = side_by_side((before, after), *sides)
    text = side_by_side_markdown(found).rstrip("\n") if markdown else side_by_side_text(found)
    show(side_by_side_json(found), text, as_json=as_json)
    if found.is_worse:
        raise typer.Exit(1)


def _reported(path: Path) -> Mapping[str, GateRecord]:
    from pytest_lmgate.gates.record import parse_report

    try:
        text = path.read_bytes()
    except OSError as error:
        hint = "; to compare commits, add --history FOLDER" if isinstance(error, FileNotFoundError) else ""
        raise RecordError(f"{path}: cannot be read: {error.strerror}{hint}") from None
    return {gate.id: gate for gate in parse_report(text, str(path))}


def _recorded(folder: str, commit: str) -> Mapping[str, GateRecord]:
    """Return the gates of all runs of a commit: of each gate the newest record."""
    from pytest_lmgate.cache.remote import place_of
    from pytest_lmgate.judge.history import read_history

    place = place_of(folder, Path(), "--history", offline=root().is_on("offline"))
    runs = read_history(place)
    wanted = commit if re.fullmatch(r"[0-9a-f]{4,40}\+?", commit) else _resolved(commit)
    of_it = [run for run in runs if _is(run.commit, wanted)]
    commits = {run.commit for run in of_it}
    if not of_it:
        changed = (
            f"; {wanted[:12]}+, with changed files, has one" if any(_is(r.commit, f"{wanted}+") for r in runs) else ""
        )
        raise RecordError(f"{place}: no run of commit {commit} is recorded{changed}; lmgate history {place} shows all")
    if len(commits) > 1:
        raise RecordError(f"{place}: {commit} may be one of {', '.join(sorted(commits))}: give more digits")
    return {gate.id: gate for run in of_it for gate in run.gates}


def _is(recorded: str, wanted: str) -> bool:
    """Return whether two commits, of which one may be shortened, are the same, with changed files or without."""
    if not recorded or recorded.endswith("+") != wanted.endswith("+"):
        return False
    one, other = recorded.rstrip("+"), wanted.rstrip("+")
    return one.startswith(other) or other.startswith(one)


def _resolved(name: str) -> str:
    """Return the commit that a name such as ``main~1`` has in the repository here; the name where it has none."""
    from pytest_lmgate.judge.repository import git_says

    return git_says(Path(), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}") or name
