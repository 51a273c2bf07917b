"""The committed baseline in a session: read once by each process, written once, by the controller."""

from __future__ import annotations

__all__ = ["Baselines", "unused", "update_file"]

import hashlib
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from filelock import FileLock

from pytest_lmgate.cache.files import remove_leftovers, write_durably
from pytest_lmgate.errors import BaselineError
from pytest_lmgate.gates.baseline import (
    BaselineEntry,
    Provenance,
    entry_of,
    format_baseline,
    parse_baseline,
    reference_of,
    require_same,
)
from pytest_lmgate.gates.paired import differences
from pytest_lmgate.metrics.sample import Sample
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.plugin.provenance import changed_since, provenance
from pytest_lmgate.report.explanation import distinct


class Baselines:
    """What the file says, and which of it this session is to write anew.

    Args:
        path: Of the file.
        update: ``all``, ``new`` for gates that have no entry yet, or empty.
        arguments: Of the command line, those that a session which makes an entry needs too.

    Raises:
        BaselineError: The file cannot be read.
    """

    def __init__(self, path: Path, update: str, arguments: Sequence[str] = ()) -> None:
        self.path, self._update, self._arguments = path, update, arguments
        self._entries = _read(path)

    def is_updated(self, identity: str) -> bool:
        """Whether the session writes a gate's entry rather than judge by it."""
        return self._update == "all" or (self._update == "new" and identity not in self._entries)

    def require(self, identity: str, test: str) -> BaselineEntry:
        """Return a gate's entry.

        Raises:
            BaselineError: There is none.
        """
        if identity in self._entries:
            return self._entries[identity]
        there = "has no entry for this gate" if self.path.exists() else "does not exist"
        raise BaselineError(
            f"no baseline: {self.path} {there}; make one with a model that is good, and commit the file:\n"
            f"    {shlex.join(['pytest', test, '--lmgate-update-new-only', *self._arguments])}"
        )

    def reference(self, entry: BaselineEntry, score: Score, candidate: Sample) -> Sample:
        """Return an entry's sample.

        Raises:
            BaselineError: It is not what this package wrote.
        """
        try:
            sample = reference_of(entry, candidate)
            if dict(entry.identity) == dict(candidate.identity):
                require_same(entry, score)
            return sample
        except BaselineError as error:
            raise BaselineError(f"{self.path}: {error}; restore it, or measure it anew with --lmgate-update") from None

    def entry(self, score: Score) -> str:
        """Return a score's entry as JSON, to be sent to the controller."""
        return msgspec.json.encode(entry_of(score, self.now(score))).decode()

    def notes(self, entry: BaselineEntry, score: Score) -> tuple[str, ...]:
        """Return what differs between the measurement of an entry and one made now."""
        return changed_since(entry.provenance, self.now(score))

    def now(self, score: Score) -> Provenance:
        """Return the provenance of a score measured now."""
        return provenance(self.path.parent, score.device)


def update_file(
    path: Path, new: Mapping[str, str], *, used: Sequence[str] | None, unknown: Sequence[str] = ()
) -> list[str]:
    """Write the entries of gates that ran into the file; all others stay as they are.

    Args:
        path: Of the file; a link stays one, and the file it leads to is written.
        new: Entries in JSON, by gate.
        used: After a full run, every gate that goes by the baseline: entries of others are removed. None after any
            other run.
        unknown: Files and folders that could not be collected, whose entries stay.

    Returns:
        What was done, in lines.

    Raises:
        BaselineError: The file there is not one.
        OSError: It cannot be written.
    """
    # Two sessions at once: each reads what the other wrote.
    target = path.resolve()
    lock = Path(tempfile.gettempdir()) / f"lmgate-{hashlib.sha256(str(target).encode()).hexdigest()[:32]}.lock"
    with FileLock(lock):
        remove_leftovers(target)
        before = _read(path)
        measured = {name: msgspec.json.decode(text, type=BaselineEntry) for name, text in new.items()}
        entries = before | {name: _dated(before.get(name), entry) for name, entry in measured.items()}
        gone = [] if used is None else _without_gate(before, [*used, *new], unknown)
        after = {name: entry for name, entry in entries.items() if name not in gone}
        if after != before:
            write_durably(target, format_baseline(after).encode())
    return _told(path, before, after, list(new), gone)


def _dated(old: BaselineEntry | None, new: BaselineEntry) -> BaselineEntry:
    """Return the new entry, or the old one where only date and commit are others: a diff is to show changes."""
    if old is None:
        return new
    then, now = old.provenance, new.provenance
    # Of a measurement from the cache the accelerator's name is not known.
    same = msgspec.structs.replace(now, date=then.date, commit=then.commit, hardware=now.hardware or then.hardware)
    return old if msgspec.structs.replace(new, provenance=same) == old else new


def _told(
    path: Path,
    before: Mapping[str, BaselineEntry],
    after: Mapping[str, BaselineEntry],
    measured: Sequence[str],
    gone: Sequence[str],
) -> list[str]:
    added = [name for name in measured if name not in before]
    same = [name for name in measured if name in before and before[name] == after[name]]
    changed = [name for name in measured if name not in added and name not in same]
    counts = {"new": added, "changed": changed, "unchanged": same, "removed": gone}
    text = ", ".join(f"{len(names)} {word}" for word, names in counts.items() if names) or "nothing to write"
    lines = [f"baseline {path.name}: {text}; commit it" if after != before else f"baseline {path.name}: {text}"]
    lines += [f"  {name}: {_change(before[name], after[name])}" for name in changed]
    return lines + [f"  {name}: removed, no gate uses it" for name in gone]


def _change(before: BaselineEntry, after: BaselineEntry) -> str:
    old, new = distinct(before.value, after.value)
    if before.identity != after.identity:
        return f"{old} -> {new}, of {'; '.join(differences(after.identity, before.identity))}"
    return f"{old} -> {new}" if before.clusters != after.clusters else f"{new}, measured elsewhere"


def unused(path: Path, used: Sequence[str], unknown: Sequence[str]) -> list[str]:
    """Return the entries that no gate of a full run uses; nothing is said of what is in `unknown` files and folders."""
    try:
        return _without_gate(_read(path), used, unknown)
    except BaselineError:
        return []  # said where a gate wanted it


def _without_gate(entries: Mapping[str, BaselineEntry], used: Sequence[str], unknown: Sequence[str]) -> list[str]:
    known = set(used)
    return [name for name in entries if name not in known and not name.startswith(tuple(unknown))]


def _read(path: Path) -> dict[str, BaselineEntry]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors on Windows put a mark in front
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: cannot be read: {error}") from error
    return parse_baseline(text, str(path))
