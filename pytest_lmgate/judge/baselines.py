"""The committed baseline while gates are judged: read once by each process, and what to write anew."""

from __future__ import annotations

__all__ = ["Baselines", "read_baseline"]

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from pytest_lmgate.errors import BaselineError
from pytest_lmgate.gates.baseline import BaselineEntry, entry_of, parse_baseline, reference_of, require_same
from pytest_lmgate.judge.provenance import changed_since, provenance
from pytest_lmgate.metrics.sample import Sample
from pytest_lmgate.metrics.score import Score


class Baselines:
    """The entries of the file, and which of them this session writes anew.

    Args:
        path: Of the file.
        update: ``all``, ``new`` for gates that have no entry yet, or empty.
        arguments: Arguments of the command line that a session which makes an entry needs too.
    """

    def __init__(self, path: Path, update: str = "", arguments: Sequence[str] = ()) -> None:
        self.path, self._update, self._arguments = path, update, arguments
        self._entries: dict[str, BaselineEntry] | None = None

    def read(self) -> Mapping[str, BaselineEntry]:
        """Return the entries by gate; the file is read once.

        Raises:
            BaselineError: It cannot be read.
        """
        if self._entries is None:
            self._entries = read_baseline(self.path)
        return self._entries

    def is_updated(self, identity: str) -> bool:
        """Return whether the session writes a gate's entry rather than judge by it."""
        return self._update == "all" or (self._update == "new" and identity not in self.read())

    def require(self, identity: str, test: str) -> BaselineEntry:
        """Return the entry of the gate `identity`, which `test` carries.

        Raises:
            BaselineError: There is none.
        """
        if (entry := self.read().get(identity)) is not None:
            return entry
        there = "has no entry for this gate" if self.path.exists() else "does not exist"
        raise BaselineError(
            f"no baseline: {self.path} {there}; make one with a model that is good, and commit the file:\n"
            f"    {shlex.join(['pytest', test, '--lmgate-update-new-only', *self._arguments])}"
        )

    def reference(self, entry: BaselineEntry, score: Score, candidate: Sample) -> Sample:
        """Return an entry's sample, to compare with the candidate's.

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
        """Return a score's entry as JSON, to be sent to the process that writes the file."""
        return msgspec.json.encode(entry_of(score, provenance(self.path.parent, score.device))).decode()

    def notes(self, entry: BaselineEntry, score: Score) -> tuple[str, ...]:
        """Return what differs between the measurement of an entry and one made now: hardware and versions."""
        return changed_since(entry.provenance, provenance(self.path.parent, score.device))


def read_baseline(path: Path) -> dict[str, BaselineEntry]:
    """Return the entries of a file by gate; none where there is no file.

    Raises:
        BaselineError: It cannot be read, or is not a baseline.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors on Windows put a mark in front
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: cannot be read: {error}") from error
    return parse_baseline(text, str(path))
