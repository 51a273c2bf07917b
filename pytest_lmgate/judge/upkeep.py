"""The baseline file at the end of a session: what was measured anew is written, what no gate uses is named.

Only one process of a session writes the file, after all gates were judged.
"""

from __future__ import annotations

__all__ = ["keep_baseline", "rewrite"]

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from pytest_lmgate.cache.files import remove_leftovers, write_durably
from pytest_lmgate.cache.locks import hold
from pytest_lmgate.errors import BaselineError
from pytest_lmgate.gates.baseline import BaselineEntry, format_baseline
from pytest_lmgate.judge.baselines import read_baseline


def keep_baseline(
    path: Path,
    update: str,
    new: Mapping[str, str],
    *,
    used: Sequence[str] | None,
    unknown: Sequence[str] = (),
    renamed: Mapping[str, str] = MappingProxyType({}),
    expected: Sequence[str] = (),
    unjudged: Collection[str] = (),
    prefix: str = "",
) -> tuple[list[str], list[str]]:
    """Write the entries of gates that ran, or name those that no gate uses.

    Args:
        path: Of the file.
        update: ``all``, ``new``, ``prune``, or empty where nothing is written.
        new: Entries in JSON, by gate; all others stay as they are.
        used: After a full run, every gate that goes by the baseline: unless only new gates are written, entries of
            others are removed. None after any other run.
        unknown: Files and folders that could not be collected, whose entries stay.
        renamed: The former name of each gate that gets the entry of that name.
        expected: Gates that go by the baseline. With ``prune`` they need an entry that judged them before one is
            removed: it may be theirs under a former name.
        unjudged: Those that ended with an error.
        prefix: What the ids of its gates begin with, which the file leaves out.

    Returns:
        What to say, and what went wrong.
    """
    file = f"{prefix}{path.name}"
    if not update:
        names = []
        with contextlib.suppress(BaselineError):  # said where a gate wanted it
            names = [] if used is None else _without_gate(read_baseline(path, prefix), used, unknown)
        return [f"baseline {file}: no gate uses {name}; remove it by --lmgate-prune" for name in names], []
    if update == "prune" and used is None:
        why = "not all tests were collected (a path, -k or -m for instance), or not all ran"
        return [f"baseline {file}: --lmgate-prune changed nothing: {why}"], []
    measured = {name: msgspec.json.decode(text, type=BaselineEntry) for name, text in new.items()}
    waiting: list[str] = []
    unused: list[str] = []
    gone: list[str] = []

    def change(before: Mapping[str, BaselineEntry]) -> dict[str, BaselineEntry]:
        entries = {**before, **{name: before[former] for name, former in renamed.items() if former in before}}
        entries |= {name: _dated(before.get(name), entry) for name, entry in measured.items()}
        unused[:] = [] if used is None or update == "new" else _without_gate(before, [*used, *new], unknown)
        waiting[:] = [name for name in expected if name not in entries or name in unjudged] if update == "prune" else []
        gone[:] = [name for name in unused if not waiting or name in renamed.values()]
        return {name: entry for name, entry in entries.items() if name not in gone}

    try:
        before, after = rewrite(path, change, prefix)
    except (BaselineError, OSError) as error:
        return [], [f"the baseline was not written: {error}"]
    moved = {name: former for name, former in renamed.items() if after.get(name) != before.get(name)}
    told = _told(file, before, after, list(new), gone, moved)
    if waiting and len(gone) < len(unused):
        told.append(
            f"  nothing else was removed: no entry judged {waiting[0]}, and if that gate was renamed, an entry that no "
            "gate uses may be its own; make its entry first, with --lmgate-update-new-only"
        )
    return told, []


def rewrite(
    path: Path, change: Callable[[Mapping[str, BaselineEntry]], Mapping[str, BaselineEntry]], prefix: str = ""
) -> tuple[Mapping[str, BaselineEntry], Mapping[str, BaselineEntry]]:
    """Change the entries of a file, durably and while no other process does; the same entries write nothing.

    Args:
        path: Of the file; a link stays one, and the file it leads to is written.
        change: Returns the entries after the change.
        prefix: What the ids of its gates begin with, which the file leaves out.

    Returns:
        The entries before and after.

    Raises:
        BaselineError: The file there is not one.
        OSError: It cannot be written.
    """
    # Two sessions at once: each reads what the other wrote.
    target = path.resolve()
    lock = Path(tempfile.gettempdir()) / f"lmgate-{hashlib.sha256(str(target).encode()).hexdigest()[:32]}.lock"
    with hold(lock):
        remove_leftovers(target)
        before = read_baseline(path, prefix)
        after = change(before)
        if after != before:
            kept = {name.removeprefix(prefix): entry for name, entry in after.items()}
            write_durably(target, format_baseline(kept).encode())
    return before, after


def _without_gate(entries: Mapping[str, BaselineEntry], used: Sequence[str], unknown: Sequence[str]) -> list[str]:
    known = set(used)
    return [name for name in entries if name not in known and not name.startswith(tuple(unknown))]


def _dated(old: BaselineEntry | None, new: BaselineEntry) -> BaselineEntry:
    """Return the new entry, or the old one if only date and commit differ: a diff is to show changes."""
    if old is None:
        return new
    then, now = old.provenance, new.provenance
    # A measurement from the cache does not know the name of the accelerator.
    same = msgspec.structs.replace(now, date=then.date, commit=then.commit, hardware=now.hardware or then.hardware)
    return old if msgspec.structs.replace(new, provenance=same) == old else new


def _told(
    file: str,
    before: Mapping[str, BaselineEntry],
    after: Mapping[str, BaselineEntry],
    measured: Sequence[str],
    gone: Sequence[str],
    moved: Mapping[str, str],
) -> list[str]:
    gone = [name for name in gone if name not in moved.values()]
    added = [name for name in measured if name not in before]
    same = [name for name in measured if name in before and before[name] == after[name]]
    changed = [name for name in measured if name not in added and name not in same]
    counts = {"new": added, "changed": changed, "unchanged": same, "renamed": moved, "removed": gone}
    text = ", ".join(f"{len(names)} {word}" for word, names in counts.items() if names) or "nothing to write"
    return [
        f"baseline {file}: {text}{'; commit it' if after != before else ''}",
        *(f"  {former}: renamed to {name}" for name, former in moved.items()),
        *(f"  {name}: removed, no gate uses it" for name in gone),
    ]
