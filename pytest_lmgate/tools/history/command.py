"""``lmgate compare`` and ``lmgate history``: runs side by side, and one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_lmgate.cache.remote import place_of
from pytest_lmgate.cli.console import AsJson, root, show
from pytest_lmgate.errors import RecordError, nearest

if TYPE_CHECKING:
    from pytest_lmgate.tools.history.side_by_side import Side


def compare(
    before: Annotated[
        str, typer.Argument(metavar="A", help="JSON report of the earlier run; with --history a commit.")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="JSON report or commit of the later run.")],
    history: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="A and B are commits, recorded in this folder or at this URI.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a comment for a pull request.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two runs gate by gate; exit code 1 if a gate fails now that did not, or is worse beyond noise.

    A later run that was stopped, or had problems other than gates, is worse too.
    """
    from pytest_lmgate.tools.history.side_by_side import (
        side_by_side,
        side_by_side_json,
        side_by_side_markdown,
        side_by_side_text,
    )

    if markdown and as_json:
        raise typer.BadParameter("--markdown and --json: expected one of them, got both")
    sides = [_reported(Path(run)) if history is None else _recorded(history, run) for run in (before, after)]
    compared = side_by_side((before, after), *sides)
    text = side_by_side_markdown(compared).rstrip("\n") if markdown else side_by_side_text(compared)
    show(side_by_side_json(compared), text, as_json=as_json)
    if compared.is_worse:
        raise typer.Exit(1)


def _reported(path: Path) -> Side:
    from pytest_lmgate.judge.result import read_results
    from pytest_lmgate.tools.history.side_by_side import side_of

    try:
        text = path.read_bytes()
    except OSError as error:
        hint = "; to compare commits, add --history FOLDER" if isinstance(error, FileNotFoundError) else ""
        raise RecordError(f"{path}: cannot be read: {error.strerror}{hint}") from None
    results = read_results(text, str(path))
    return side_of([results], results.by_id(str(path)))


def _recorded(folder: str, commit: str) -> Side:
    """Return the newest record of each gate of a commit, and the faults of the runs that made them."""
    from pytest_lmgate.report.history import read_history
    from pytest_lmgate.tools.history.side_by_side import side_of

    place = place_of(folder, Path(), "--history", offline=root().is_on("offline"))
    runs = read_history(place)
    wanted = commit if re.fullmatch(r"[0-9a-f]{4,40}\+?", commit) else _resolved(commit)
    of_it = [results for results in runs if _is(results.run.commit, wanted)]
    commits = {results.run.commit for results in of_it}
    if not of_it:
        changed = (
            f"; {wanted[:12]}+, with changed files, has one"
            if any(_is(results.run.commit, f"{wanted}+") for results in runs)
            else ""
        )
        raise RecordError(f"{place}: no run of commit {commit} is recorded{changed}; lmgate history {place} shows all")
    if len(commits) > 1:
        raise RecordError(f"{place}: {commit} may be one of {', '.join(sorted(commits))}: give more digits of it")
    newest = {gate.id: (gate, results) for results in of_it for gate in results.verdicts}
    needed = [results for results in of_it if any(each is results for _, each in newest.values())]  # as of shards
    return side_of(needed, {name: gate for name, (gate, _) in newest.items()})


def _is(recorded: str, wanted: str) -> bool:
    """Whether two commits, one maybe shortened, are the same, with or without changed files."""
    if not recorded or recorded.endswith("+") != wanted.endswith("+"):
        return False
    one, other = recorded.rstrip("+"), wanted.rstrip("+")
    return one.startswith(other) or other.startswith(one)


def _resolved(name: str) -> str:
    """Return the commit of a name such as ``main~1`` or ``HEAD+`` in this repository; the name if there is none."""
    from pytest_lmgate.judge.provenance import git_says

    for plain, changed in ((name, ""), (name.removesuffix("+"), "+" * name.endswith("+"))):
        if commit := git_says(Path(), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{plain}^{{commit}}"):
            return f"{commit}{changed}"
    return name


def history(
    folder: Annotated[str, typer.Argument(help="Folder or URI that pytest --lmgate-history FOLDER writes to.")],
    gate: Annotated[str, typer.Argument(help="Id of a gate, or a part of it (default: all).")] = "",
    branch: Annotated[str, typer.Option(help="Only runs of this branch.")] = "",
    last: Annotated[int, typer.Option(min=0, help="Show this many runs of each gate (0: all); all are judged.")] = 12,
    svg: Annotated[Path | None, typer.Option(help="Write a picture to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print each gate's runs with their noise, and say where a gate first changed beyond noise."""
    from pytest_lmgate.cache.files import write_durably
    from pytest_lmgate.report.history import read_history, tracks
    from pytest_lmgate.tools.history.tracks import history_json, history_svg, history_text

    place = place_of(folder, Path(), "lmgate history", offline=root().is_on("offline"))
    runs = read_history(place)
    if branch:
        branches = {results.run.branch for results in runs}
        runs = [results for results in runs if results.run.branch == branch]
        if not runs:
            raise RecordError(f"{place}: no run of branch {branch!r}{nearest(branch, branches)}")
    gate_tracks = tracks(runs)
    shown = [track for track in gate_tracks if track.id == gate] or [track for track in gate_tracks if gate in track.id]
    if not shown:
        ids = [track.id for track in gate_tracks]
        raise RecordError(f"{place}: no run has a gate {gate!r}{nearest(gate, ids)}")
    if svg is not None:
        try:
            write_durably(svg, history_svg(shown).encode())
        except OSError as error:
            raise RecordError(f"{svg}: cannot be written: {error.strerror}") from None
    show(history_json(shown), history_text(shown, last), as_json=as_json)
