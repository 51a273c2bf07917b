"""The committed baseline while gates are judged: read once by each process, and what to write anew."""

from __future__ import annotations

__all__ = ["Baselines", "read_baseline"]

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path

import msgspec

from pytest_lmgate.errors import BaselineError
from pytest_lmgate.gates.baseline import BaselineEntry, entry_of, parse_baseline, reference_of, require_same
from pytest_lmgate.judge.provenance import changed_since, provenance
from pytest_lmgate.metrics.sample import Sample
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.spec.gates import EvaluationSpec


class Baselines:
    """The entries of the file, and which of them this session writes anew.

    Args:
        path: Of the file.
        update: ``all``, ``new`` for gates that have no entry yet, ``prune`` to move entries of renamed gates, or empty.
        arguments: Arguments of the command line that a session which makes an entry needs too.
        prefix: What the ids of its gates begin with, which the file leaves out.

    Attributes:
        gates: The gates of this session that go by the file, by id.
        has_all_gates: Whether these are all there are.
        renamed: The former name of each gate whose entry was found under it.
    """

    def __init__(self, path: Path, update: str = "", arguments: Sequence[str] = (), prefix: str = "") -> None:
        self.path, self._update, self._arguments, self._prefix = path, update, arguments, prefix
        self._entries: dict[str, BaselineEntry] | None = None
        self.gates: Collection[str] = ()
        self.has_all_gates = False
        self.renamed: dict[str, str] = {}

    def read(self) -> Mapping[str, BaselineEntry]:
        """Return the entries by gate; the file is read once.

        Raises:
            BaselineError: It cannot be read.
        """
        if self._entries is None:
            self._entries = read_baseline(self.path, self._prefix)
        return self._entries

    def is_updated(self, identity: str) -> bool:
        """Return whether the session writes a gate's entry rather than judge by it."""
        return self._update == "all" or (self._update == "new" and identity not in self.read())

    def former_names(self, identity: str) -> list[str]:
        """Return the entries, if any, that ``prune`` may give a renamed gate: those that no gate uses."""
        may_move = self._update == "prune" and self.has_all_gates and identity not in self.read()
        return list(self._unused()) if may_move else []

    def move(self, identity: str, score: Score, names: Sequence[str]) -> None:
        """Give a gate the one of the entries `names` that is of the same metric, model, dataset and protocol, if any.

        Raises:
            BaselineError: There are several, and they differ.
        """
        known = score.sample.merged().identity if score.sample is not None else {}
        former = {
            name: entry
            for name, entry in self.read().items()
            if name in names
            and (entry.metric, entry.model, entry.dataset) == (score.metric, score.model, score.dataset)
            and entry.identity == known
        }
        if len({(entry.value, entry.content) for entry in former.values()}) > 1:
            raise BaselineError(
                f"no baseline: {self.path} has no entry for this gate. If the gate was renamed, its entry is one of "
                f"several that no gate uses: {', '.join(former)}; rename that entry in the file to "
                f"{identity.removeprefix(self._prefix)}"
            )
        for name, entry in sorted(former.items(), key=lambda each: each[0] in self.renamed.values())[:1]:
            self.renamed[identity] = name
            self._entries = {**self.read(), identity: entry}

    def require(self, identity: str, test: str, what: EvaluationSpec) -> BaselineEntry:
        """Return the entry of the gate `identity`, which `test` carries and which measures `what`.

        Raises:
            BaselineError: There is none.
        """
        if (entry := self.read().get(identity)) is not None:
            return entry
        there = "has no entry for this gate" if self.path.exists() else "does not exist"
        asked = (what.model_name, what.dataset_name)
        former = [
            name
            for name, entry in self._unused().items()
            if (entry.model, entry.dataset) == asked and entry.metric in (what.metric, what.variant)
        ]
        was_renamed = ""
        if former and self._update != "prune":
            old = max(former, key=lambda name: SequenceMatcher(None, name, identity).ratio())
            by = "no gate" if self.has_all_gates else "no gate of this run"
            was_renamed = (
                f"; the entry of {old} is of the same metric, model and dataset, and {by} uses it: if this gate was "
                f"renamed, give the entry its new name by\n    {self._renaming(old, identity)}\nOtherwise"
            )
        raise BaselineError(
            f"no baseline: {self.path} {there}{was_renamed or ';'} make one with a model that is good, and commit the "
            f"file:\n    {shlex.join(['pytest', test, '--lmgate-update-new-only', *self._arguments])}"
        )

    def _renaming(self, old: str, new: str) -> str:
        """Return the command that gives an entry a new name; only a run of all gates may do it by itself."""
        if self.has_all_gates:
            return shlex.join(["pytest", "--lmgate-prune", *self._arguments])
        own = [name.removeprefix(self._prefix) for name in (old, new)]
        return shlex.join(["lmgate", "baseline", "rename", *own, "--baseline", os.path.relpath(self.path)])

    def _unused(self) -> dict[str, BaselineEntry]:
        return {name: entry for name, entry in self.read().items() if name not in self.gates}

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


def read_baseline(path: Path, prefix: str = "") -> dict[str, BaselineEntry]:
    """Return the entries of a file by gate; none where there is no file.

    Args:
        path: Of the file.
        prefix: What the ids of its gates begin with, which the file leaves out.

    Raises:
        BaselineError: It cannot be read, or is not a baseline.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors on Windows put a mark in front
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: cannot be read: {error}") from error
    return {f"{prefix}{name}": entry for name, entry in parse_baseline(text, str(path)).items()}
