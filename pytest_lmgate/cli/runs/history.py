"""``lmgate history``: the runs that ``--lmgate-history`` recorded, and the first change beyond noise of each gate."""

from __future__ import annotations

__all__ = ["history"]

from pathlib import Path
from typing import Annotated

import typer

from pytest_lmgate.cli.output import AsJson, show
from pytest_lmgate.cli.places import root
from pytest_lmgate.errors import RecordError, nearest


def history(
    folder: Annotated[str, typer.Argument(help="Folder or URI that pytest --lmgate-history FOLDER writes to.")],
    gate: Annotated[str, typer.Argument(help="Id of a gate, or a part of it (default: all).")] = "",
    branch: Annotated[str, typer.Option(help="Only runs of this branch.")] = "",
    last: Annotated[int, typer.Option(min=0, help="Show this many runs of each gate, 0 for all; all are judged.")] = 12,
    svg: Annotated[Path | None, typer.Option(help="Write a picture to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print each gate's runs with their noise, and say where a gate first changed beyond noise."""
    from pytest_lmgate.cache.files import write_durably
    from pytest_lmgate.cache.remote import place_of
    from pytest_lmgate.judge.history import read_history
    from pytest_lmgate.report.runs.history import history_json, history_svg, history_text, tracks

    place = place_of(folder, Path(), "lmgate history", offline=root().is_on("offline"))
    runs = read_history(place)
    if branch:
        known = {run.branch for run in runs}
        runs = [run for run in runs if run.branch == branch]
        if not runs:
            raise RecordError(f"{place}: no run of branch {branch!r}{nearest(branch, known)}")
    found = tracks(runs)
    shown = [track for track in found if track.id == gate] or [track for track in found if gate in track.id]
    if not shown:
        ids = [track.id for track in found]
        raise RecordError(f"{place}: no run has a gate {gate!r}{nearest(gate, ids)}")
    if svg is not None:
        try:
            write_durably(svg, history_svg(shown).encode())
        except OSError as error:
            raise RecordError(f"{svg}: cannot be written: {error.strerror}") from None
    show(history_json(shown), history_text(shown, last), as_json=as_json)
