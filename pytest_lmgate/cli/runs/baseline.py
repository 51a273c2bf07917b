"""``lmgate baseline``: the entries of the baseline file, what changed since a commit, renaming and removing."""

from __future__ import annotations

__all__ = ["baseline"]

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_lmgate.cli.output import AsJson, show
from pytest_lmgate.cli.places import BaselineOption, root
from pytest_lmgate.cli.tables import table
from pytest_lmgate.errors import BaselineError, nearest
from pytest_lmgate.report.wording.counted import counted

if TYPE_CHECKING:
    from pytest_lmgate.gates.baseline import BaselineEntry

baseline = typer.Typer(no_args_is_help=True, help="See and tidy the committed baseline.")

_COLUMNS = ("value", "scored", "model", "dataset", "measured", "gate")
_CHANGES = ("old", "new", "change", "is", "gate")
_NUMBERS = ("value", "scored", "old", "new", "change")


@baseline.command("show")
def show_entries(file: BaselineOption = None, as_json: AsJson = False) -> None:
    """Show the entries: what each gate measured when its model was accepted, when, and at which commit."""
    from pytest_lmgate.judge.baselines import read_baseline

    path = root().baseline(file)
    entries = read_baseline(path)
    rows = [
        (
            f"{entry.value:.6g}",
            f"{entry.n:,} {entry.unit}s",
            entry.model,
            entry.dataset,
            f"{entry.provenance.date} {entry.provenance.commit}".rstrip(),
            name,
        )
        for name, entry in sorted(entries.items())
    ]
    absent = "" if path.exists() else "; the file does not exist: pytest --lmgate-update-new-only makes it"
    text = f"{path}: {counted(len(rows), 'entry')}{absent}"
    show(
        {"file": str(path), "gates": {name: _facts(entry) for name, entry in sorted(entries.items())}},
        f"{table(_COLUMNS, rows, right=_NUMBERS, whole=('gate',))}\n{text}" if rows else text,
        as_json=as_json,
    )


@baseline.command()
def diff(
    revision: Annotated[str, typer.Argument(metavar="[REV]", help="Commit, branch or tag of git.")] = "HEAD",
    file: BaselineOption = None,
    as_json: AsJson = False,
) -> None:
    """Show what changed in the file since a commit: old -> new, and the change in percent."""
    from pytest_lmgate.judge.baselines import read_baseline

    path = root().baseline(file)
    old, new = _committed(path, revision), read_baseline(path)
    found = [
        _change(name, old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)
    ]
    rows = [
        (
            *("-" if each[side] is None else f"{each[side]:.6g}" for side in ("old", "new")),
            "-" if each["change"] is None else f"{each['change']:+.2f}%",
            each["is"],
            each["gate"],
        )
        for each in found
    ]
    same = len({*old} & {*new}) - sum(each["is"] not in ("new", "removed") for each in found)
    text = f"{path} against {revision}: {counted(len(found), 'change')}, {same} unchanged"
    data = {"file": str(path), "revision": revision, "changes": found, "unchanged": same}
    show(
        data,
        f"{table(_CHANGES, rows, right=_NUMBERS, whole=('is', 'gate'))}\n{text}" if rows else text,
        as_json=as_json,
    )


@baseline.command()
def rename(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Gate that has the entry.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Gate that gets it.")],
    file: BaselineOption = None,
    as_json: AsJson = False,
) -> None:
    """Give an entry the new name of its gate."""

    def change(entries: Mapping[str, BaselineEntry]) -> Mapping[str, BaselineEntry]:
        _require(old, entries)
        if new in entries:
            raise typer.BadParameter(f"{new} has an entry already; remove it first: lmgate baseline prune {new!r}")
        return {new if name == old else name: entry for name, entry in entries.items()}

    path = _rewritten(file, change)
    show({"file": str(path), "renamed": {old: new}}, f"{path}: {old} renamed to {new}; commit it", as_json=as_json)


@baseline.command()
def prune(
    gates: Annotated[
        list[str] | None, typer.Argument(metavar="GATE...", help="Gates whose entries are removed.")
    ] = None,
    file: BaselineOption = None,
    as_json: AsJson = False,
) -> None:
    """Remove the entries of the gates that are named.

    Only a session of pytest knows which entries no gate uses: `pytest --lmgate-prune` removes all of those.
    """
    if not gates:
        raise typer.BadParameter("expected the gates to remove; pytest --lmgate-prune removes all that no gate uses")

    def change(entries: Mapping[str, BaselineEntry]) -> Mapping[str, BaselineEntry]:
        for gate in gates:
            _require(gate, entries)
        return {name: entry for name, entry in entries.items() if name not in gates}

    path = _rewritten(file, change)
    removed = counted(len({*gates}), "entry")
    show({"file": str(path), "removed": gates}, f"{path}: {removed} removed; commit it", as_json=as_json)


def _rewritten(file: str | None, change: Any) -> Path:
    from pytest_lmgate.judge.upkeep import rewrite

    path = root().baseline(file)
    try:
        rewrite(path, change)
    except OSError as error:
        raise BaselineError(f"{path}: cannot be written: {error}") from error
    return path


def _require(gate: str, entries: Mapping[str, BaselineEntry]) -> None:
    if gate not in entries:
        raise typer.BadParameter(
            f"no entry is called {gate!r}{nearest(gate, entries)}; lmgate baseline show lists them"
        )


def _committed(path: Path, revision: str) -> dict[str, BaselineEntry]:
    """Return the entries of the file in a commit; none where the commit has no such file.

    Raises:
        BaselineError: There is no repository, or no such commit, or the file there is not a baseline.
    """
    from pytest_lmgate.gates.baseline import parse_baseline

    commit = _git(path, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").strip()
    name = f"./{path.name}"
    if not _git(path, "ls-tree", commit, "--", name):
        return {}
    return parse_baseline(_git(path, "show", f"{commit}:{name}"), f"{revision}:{path.name}")


def _git(path: Path, *arguments: str) -> str:
    from pytest_lmgate.judge.repository import run_git

    try:
        return run_git(path.parent, *arguments, errors="strict", timeout=60, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise BaselineError(f"{path}: git {arguments[0]}: {error.stderr.strip()}") from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise BaselineError(f"{path}: git {arguments[0]} cannot be run: {error}") from error


def _facts(entry: BaselineEntry) -> dict[str, Any]:
    import msgspec

    facts: dict[str, Any] = msgspec.to_builtins(entry)
    return {key: value for key, value in facts.items() if key not in ("clusters", "outcomes")}


def _change(gate: str, old: BaselineEntry | None, new: BaselineEntry | None) -> dict[str, Any]:
    """Return one line of a diff; the change is relative to the old value, in percent."""
    from pytest_lmgate.metrics.table import METRICS

    change = None
    if old is None or new is None:
        word = "new" if old is None else "removed"
    elif old.metric != new.metric or dict(old.identity) != dict(new.identity):
        word = "other data or protocol"
    else:
        change = 100 * (new.value - old.value) / abs(old.value) if old.value else None
        row = METRICS.get(new.metric)
        lower = None if row is None else row.direction == "lower"
        word = "same value" if old.value == new.value else "changed"
        if word == "changed" and lower is not None:
            word = "worse" if (new.value > old.value) == lower else "better"
    values = {"old": old and old.value, "new": new and new.value}
    return {"gate": gate, **values, "change": change, "is": word}
