"""``lmgate baseline``: the entries of the baseline file, what changed since a commit, renaming and removing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from pytest_lmgate.cli.console import AsJson, BaselineOption, root, show
from pytest_lmgate.errors import BaselineError, nearest
from pytest_lmgate.report.text import counted, table
from pytest_lmgate.settings.metrics import METRICS

if TYPE_CHECKING:
    from pytest_lmgate.judge.baseline import BaselineEntry

baseline = typer.Typer(
    no_args_is_help=True, help="Show and edit the committed baseline.", add_completion=False, rich_markup_mode=None
)

_COLUMNS = ("value", "scored", "model", "dataset", "measured", "gate")
_CHANGES = ("old", "new", "change", "is", "gate")


@baseline.command("show")
def show_entries(file: BaselineOption = None, as_json: AsJson = False) -> None:
    """Show the entries: value of each gate when its model was accepted, day and commit."""
    from pytest_lmgate.judge.baseline import read_baseline

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
        "\n".join([*table(_COLUMNS, rows, names=("model", "dataset"), left=("measured", "gate")), text])
        if rows
        else text,
        as_json=as_json,
    )


@baseline.command()
def diff(
    revision: Annotated[str, typer.Argument(metavar="[REV]", help="Commit, branch or tag of git.")] = "HEAD",
    file: BaselineOption = None,
    as_json: AsJson = False,
) -> None:
    """Show what changed in the file since a commit: old -> new, and the change in percent."""
    from pytest_lmgate.judge.baseline import read_baseline

    path = root().baseline(file)
    old, new = _committed(path, revision), read_baseline(path)
    changes = [
        _change(name, old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)
    ]
    rows = [
        (
            *("-" if change[side] is None else f"{change[side]:.6g}" for side in ("old", "new")),
            "-" if change["change"] is None else f"{change['change']:+.2f}%",
            change["is"],
            change["gate"],
        )
        for change in changes
    ]
    same = len({*old} & {*new}) - sum(change["is"] not in ("new", "removed") for change in changes)
    text = f"{path} against {revision}: {counted(len(changes), 'change')}, {same} unchanged"
    data = {"file": str(path), "revision": revision, "changes": changes, "unchanged": same}
    show(
        data,
        "\n".join([*table(_CHANGES, rows, names=(), left=("is", "gate")), text]) if rows else text,
        as_json=as_json,
    )


@baseline.command()
def rename(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Old name of the gate.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="New name of the gate.")],
    file: BaselineOption = None,
    as_json: AsJson = False,
) -> None:
    """Rename the entry of a renamed gate."""

    def change(entries: Mapping[str, BaselineEntry]) -> Mapping[str, BaselineEntry]:
        _require(old, entries)
        if new in entries:
            raise typer.BadParameter(f"{new} has an entry already; remove it first: lmgate baseline prune {new!r}")
        return {new if name == old else name: entry for name, entry in entries.items()}

    path = _rewritten(file, change)
    show({"file": str(path), "renamed": {old: new}}, f"{path}: {old} renamed to {new}; commit it", as_json=as_json)


@baseline.command()
def prune(
    gates: Annotated[list[str] | None, typer.Argument(metavar="GATE...", help="Gates whose entries to remove.")] = None,
    file: BaselineOption = None,
    as_json: AsJson = False,
) -> None:
    """Remove the entries of these gates.

    `pytest --lmgate-prune` removes all entries that no gate uses.
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
    from pytest_lmgate.judge.baseline import rewrite

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
    """Return the entries of the file in a commit; empty if the commit lacks the file."""
    from pytest_lmgate.judge.baseline import parse_baseline
    from pytest_lmgate.judge.provenance import git

    commit = git(path.parent, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    name = f"./{path.name}"
    if not git(path.parent, "ls-tree", commit, "--", name):
        return {}
    return parse_baseline(git(path.parent, "show", f"{commit}:{name}"), f"{revision}:{path.name}")


def _facts(entry: BaselineEntry) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(entry)
    return {key: value for key, value in facts.items() if key not in ("clusters", "outcomes")}


def _change(gate: str, old: BaselineEntry | None, new: BaselineEntry | None) -> dict[str, Any]:
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
