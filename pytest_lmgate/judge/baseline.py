"""The baseline file: what each gate measured when its model was accepted, with enough to pair later runs with it.

    {
      "schema": 2,
      "gates": {
        "tests/test_quality.py::test_int8::no_regression:ppl[int8-wikitext2]": {
          "metric": "ppl",
          ...
          "clusters": [
            [256, 712.25],
            ...

One line per number, gates sorted by id, and for each cluster (at most 512) one line of its count and its sums: a change
of one gate is a diff of that gate alone, and a merge conflict is between numbers that can be read. Where rows are right
or wrong, one more line has a bit for each row, up to 100,000 rows.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pytest_lmgate.cache.files import hold, remove_leftovers, write_kept
from pytest_lmgate.engines.devices import Alike, device_class, device_label, hardware_of
from pytest_lmgate.errors import BaselineError
from pytest_lmgate.judge.provenance import Provenance, changed_since, provenance
from pytest_lmgate.judge.result import Scored, Verdict, scored_facts
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gates import EvaluationSpec
from pytest_lmgate.settings.metrics import METRICS
from pytest_lmgate.settings.options import conflict_line
from pytest_lmgate.stats.paired import known_differences
from pytest_lmgate.stats.sample import MOST_OUTCOMES, Outcomes, Sample

_SCHEMA = 2
# A sum of the file's own numbers differs from the measured one by no more than the order of adding.
_SAME = 1e-9


class BaselineEntry(Scored, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=True):
    """One gate's baseline: the score, and enough of its sample for a paired comparison."""

    value: float
    n: int
    identity: dict[str, str]  # digests of data and targets, and the protocol, which must be equal to compare
    provenance: Provenance
    clusters: list[list[float]]  # count and sums of each cluster
    content: str = ""  # digest of the model, wherever it runs; empty for functions
    # for rows that are right or wrong, one bit per row, in hexadecimal; empty for other metrics and above 100,000 rows
    outcomes: str = ""

    @property
    def words(self) -> str:
        return " ".join(["baseline of", self.provenance.date, self.provenance.commit]).rstrip()


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    gates: dict[str, msgspec.Raw]


def entry_of(score: Score, provenance: Provenance) -> BaselineEntry:
    """Make the entry of a score, which must be finite and have a sample."""
    if score.sample is None or not score.is_finite:
        raise BaselineError(f"a baseline needs a finite value, got {float(score)}")
    sample = score.sample.merged()
    counts = [int(count) if count == int(count) else count for count in sample.counts.tolist()]
    clusters = [[count, *sums] for count, sums in zip(counts, sample.sums.tolist(), strict=True)]
    return BaselineEntry(
        **scored_facts(score),
        identity=dict(sample.identity),
        provenance=provenance,
        clusters=clusters,
        content=score.content,
        outcomes=_bits(sample.outcomes),
    )


def _bits(outcomes: Outcomes | None) -> str:
    if outcomes is None or outcomes.n > MOST_OUTCOMES:
        return ""
    return np.packbits(outcomes.right).tobytes().hex()


def _outcomes(entry: BaselineEntry, candidate: Sample) -> Outcomes | None:
    """Return which rows were right, checked against the rows and the clusters."""
    if candidate.outcomes is None or candidate.outcomes.n > MOST_OUTCOMES:
        return None
    if not entry.outcomes and entry.metric not in METRICS:
        return None  # results whose scores lay between right and wrong when the entry was made
    try:
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(entry.outcomes), dtype=np.uint8))
    except ValueError:
        raise BaselineError("outcomes: expected hexadecimal digits: edited by hand?") from None
    rows = candidate.outcomes.n
    right = bits[:rows].astype(bool)
    if not rows <= len(bits) < rows + 8 or bits[rows:].any():
        raise BaselineError(f"outcomes: expected a bit for each of {rows} rows, got {len(bits)}: edited by hand?")
    found = replace(candidate.outcomes, right=right)
    sums = np.array([line[1] for line in entry.clusters])
    expected = found.by_cluster()[0]
    if len(expected) != len(sums) or not np.allclose(expected, sums, rtol=_SAME, atol=_SAME):
        raise BaselineError("outcomes: they do not add up to the clusters: edited by hand?")
    return found


def reference_of(entry: BaselineEntry, candidate: Sample) -> Sample:
    """Return an entry's sample, with the candidate's function from sums to a value.

    BaselineError if the clusters are not numbers of one length, or do not add up to the value.
    """
    widths = {len(row) for row in entry.clusters}
    expected = candidate.sums.shape[1] + 1
    if widths != {expected}:
        raise BaselineError(
            f"clusters: expected lines of {expected} numbers, a count and {expected - 1} "
            f"sum{'s' * (expected > 2)}; got lines of {', '.join(map(str, sorted(widths))) or 'none'}"
        )
    table = np.array(entry.clusters, dtype=np.float64)
    counts = table[:, 0]
    whole = candidate.of_text or (counts == np.floor(counts)).all()
    if (counts < 0).any() or not whole or not counts.any():
        raise BaselineError("clusters: expected each line to begin with a count of targets, a whole number from 0")
    counts = counts.astype(candidate.counts.dtype)
    sample = Sample(table[:, 1:], counts, candidate.scale, candidate.metric, entry.identity)
    if dict(entry.identity) != dict(candidate.identity):
        return sample  # the comparison refuses it and says what differs; a text's own factor is the candidate's
    sample = replace(sample, outcomes=_outcomes(entry, candidate))
    value = sample.value()
    if not math.isclose(value, entry.value, rel_tol=_SAME, abs_tol=_SAME):
        raise BaselineError(f"value: {entry.value!r} is not the sum of its clusters, {value!r}: edited by hand?")
    return sample


def require_same(entry: BaselineEntry, score: Score) -> None:
    """Refuse an entry whose metric or counts differ from those of a score on the same data."""
    # Another tokenizer may score another number of bytes of the same rows.
    for key in ("metric", "unit") if score.require_sample().of_text else ("metric", "unit", "n"):
        here, there = getattr(score, key), getattr(entry, key)
        if here != there:
            raise BaselineError(f"{key}: expected {here!r}, got {there!r}: edited by hand?")


def parse_baseline(text: str, where: str) -> dict[str, BaselineEntry]:
    """Read the text of the file `where`; messages name the line or the gate and the key."""
    mend = "fix it, or restore it from version control"
    if line := conflict_line(text):
        raise BaselineError(f"{where}:{line}: an unresolved merge conflict; {mend}")
    try:
        file = msgspec.json.decode(text, type=_File)
        json.loads(text, object_pairs_hook=lambda pairs: _require_once(pairs, where, mend))
    except RecursionError:
        raise BaselineError(f"{where}: nested more deeply than a baseline; {mend}") from None
    except msgspec.ValidationError as error:
        raise BaselineError(f"{where}: {_readable(error, 'top level')}; {mend}") from None
    except msgspec.DecodeError as error:
        raise BaselineError(f"{where}: not whole JSON: {str(error).rstrip('.')}; {mend}") from None
    if file.schema != _SCHEMA:
        raise BaselineError(
            f"{where}: expected schema {_SCHEMA}, got {file.schema}: another version of pytest-lmgate wrote it; delete "
            "the file and measure it again with --lmgate-update"
        )
    entries = {}
    for identity, raw in file.gates.items():
        try:
            entries[identity] = msgspec.json.decode(raw, type=BaselineEntry)
        except msgspec.ValidationError as error:
            raise BaselineError(f"{where}: {identity}: {_readable(error, '')}; {mend}") from None
    return entries


def _require_once(pairs: list[tuple[str, Any]], where: str, mend: str) -> None:
    """Refuse a duplicate key, such as after a merge that kept both sides: JSON would take the last."""
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BaselineError(f"{where}: {twice} appears twice; {mend}")


def format_baseline(entries: Mapping[str, BaselineEntry]) -> str:
    """Return the file's text."""
    gates = [f"    {json.dumps(name, ensure_ascii=False)}: {_formatted(entries[name])}" for name in sorted(entries)]
    body = "{\n" + ",\n".join(gates) + "\n  }" if gates else "{}"
    return f'{{\n  "schema": {_SCHEMA},\n  "gates": {body}\n}}\n'


def _formatted(entry: BaselineEntry) -> str:
    facts: dict[str, Any] = msgspec.to_builtins(entry)
    clusters = facts.pop("clusters")
    head = json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
    lines = ",\n".join(f"    {json.dumps([int(row[0]), *map(_short, row[1:])], allow_nan=False)}" for row in clusters)
    return f'{head},\n  "clusters": [\n{lines}\n  ]\n}}'.replace("\n", "\n    ")


def _short(number: float) -> float | int:
    return int(number) if number == int(number) and abs(number) < 2**53 else number


def _readable(error: msgspec.ValidationError, top: str) -> str:
    """``value: expected `float`, got `str```, from msgspec's "Expected `float`, got `str` - at `$.value`"."""
    message, _, path = str(error).partition(" - at ")
    key = path.strip("`").removeprefix("$").removeprefix(".") or top
    return f"{key}: {message[:1].lower()}{message[1:]}" if key else f"{message[:1].lower()}{message[1:]}"


class Baselines:
    """The entries of the file, and which of them this session writes again.

    An `update` is of ``all`` gates, of the ``new`` ones without an entry, a ``prune`` or none; to make an entry a
    session also needs the `arguments`. The file leaves out the `prefix` of its gates' ids. It cannot be read if it is
    `ambiguous` which file has the baseline. `label` names the machine, and `alike` the GPUs that count as one.
    """

    def __init__(
        self,
        path: Path,
        update: str = "",
        arguments: Sequence[str] = (),
        prefix: str = "",
        *,
        ambiguous: str = "",
        label: str = "",
        alike: Alike = (),
    ) -> None:
        self.path, self._update, self._arguments, self._prefix = path, update, arguments, prefix
        self._ambiguous, self._label, self._alike = ambiguous, label, alike
        self._entries: dict[str, BaselineEntry] | None = None
        self.gates: Collection[str] = ()  # ids of those of this session that are judged by the file

    def read(self) -> Mapping[str, BaselineEntry]:
        """Return the entries by gate; the file is read once."""
        if self._ambiguous:
            raise BaselineError(self._ambiguous)
        if self._entries is None:
            self._entries = read_baseline(self.path, self._prefix)
        return self._entries

    def id_of(self, file: Path, label: str, rootdir: Path) -> str:
        """Return the id of a gate in the lmgate.yaml `file`, for a command, which collects nothing.

        It begins with the name of that file, or where an option names the baseline with its place in rootdir.
        """
        own, placed = (f"{name}::{label}" for name in (file.name, Path(os.path.relpath(file, rootdir)).as_posix()))
        return placed if any(gate_of(name) == placed for name in self.read()) else own

    def key(self, identity: str, device: str) -> str:
        """Return the name of a gate's entry for a device: with the device's label if an entry of another is there.

        GPUs are told apart by name, other devices by class; `device` is empty for texts and functions.
        """
        entry, alike = self.read().get(identity), self._alike
        label = device and (self._expanded() or device_label(device, hardware_of(device), alike))
        other = f"{identity} @ {label}"
        if entry is None:
            return other if label and any(gate_of(name) == identity for name in self.read()) else identity
        made = entry.provenance
        there = made.label or (made.device and device_label(made.device, made.hardware, alike))
        # Entries without the name of their GPU were made on a cluster.
        is_this = there in ("", label) or (there == "cuda" and device_class(device) == "cuda")
        return identity if is_this or not label else other

    def _expanded(self) -> str:
        """Return the label with its variables replaced."""

        def value(found: re.Match[str]) -> str:
            if not (known := os.environ.get(found[1])):
                raise BaselineError(f"label: {self._label}: the environment variable {found[1]} is not set")
            return known

        return re.sub(r"\$\{(\w+)\}", value, self._label)

    def is_updated(self, key: str) -> bool:
        """Whether the session writes an entry instead of judging against it."""
        return self._update == "all" or (self._update == "new" and key not in self.read())

    def require(self, key: str, blank: Verdict, what: EvaluationSpec, shared: Mapping[str, str]) -> BaselineEntry:
        """Return the entry `key` of the gate of a verdict, which measures `what`; it must exist.

        A comparison must have the parts in common that are `shared`, as `Measurement.shared`.
        """
        if (entry := self.read().get(key)) is not None:
            return entry
        identity, test = blank.id, blank.test
        make = shlex.join(["pytest", test, "--lmgate-update-new-only", *self._arguments])
        if others := [name for name in self.read() if gate_of(name) == identity]:
            made = "; ".join(
                f"{each.provenance.place}, {each.value:.6g}" for each in map(self.read().get, others) if each
            )
            hint = "" if self._label else "\nor name the GPUs that count as one in lmgate.yaml, under devices:"
            raise BaselineError(
                f"no baseline for {key.removeprefix(f'{identity} @ ')}: {self.path} has this gate's of {made}, and "
                "numbers of another device judge nothing here. Make one with a good model on this device, and commit "
                f"the file:\n    {make}{hint}"
            )
        there = "has no entry for this gate" if self.path.exists() else "does not exist"
        asked = (what.model_name, what.dataset_name)
        former = [
            name
            for name, entry in self.read().items()
            if name not in self.gates
            and (entry.model, entry.dataset) == asked
            and entry.metric in (what.metric, what.variant)
        ]
        hint = ";"
        if former:
            old = max(former, key=lambda name: SequenceMatcher(None, name, identity).ratio())
            hint = f"; the entry of {old} has the same metric, model and dataset, "
            if differs := known_differences(shared, self.read()[old].identity):
                hint += f"but cannot judge this gate: {'; '.join(differs)};"
            else:
                names = [name.removeprefix(self._prefix) for name in (old, identity)]
                rename = ["lmgate", "baseline", "rename", *names, "--baseline", os.path.relpath(self.path)]
                hint += (
                    "and no gate of this run uses it: if this gate was renamed, rename its entry with\n    "
                    f"{shlex.join(rename)}\nOtherwise"
                )
        raise BaselineError(
            f"no baseline: {self.path} {there}{hint} make one with a good model, and commit the file:\n    {make}"
        )

    def reference(self, entry: BaselineEntry, score: Score, candidate: Sample) -> Sample:
        """Return an entry's sample, to compare with the candidate's; BaselineError if it is damaged."""
        try:
            sample = reference_of(entry, candidate)
            if dict(entry.identity) == dict(candidate.identity):
                require_same(entry, score)
            return sample
        except BaselineError as error:
            raise BaselineError(f"{self.path}: {error}; restore it, or measure it again with --lmgate-update") from None

    def entry(self, score: Score) -> BaselineEntry:
        made = provenance(self.path.parent, score.device, score.hardware)
        return entry_of(score, msgspec.structs.replace(made, label=score.device and self._expanded()))

    def notes(self, entry: BaselineEntry, score: Score) -> tuple[str, ...]:
        """Return how hardware and versions differ between an entry and a new measurement."""
        return changed_since(entry.provenance, provenance(self.path.parent, score.device, score.hardware))


def read_baseline(path: Path, prefix: str = "") -> dict[str, BaselineEntry]:
    """Return the entries of a file by gate; none if there is no file. It leaves out the `prefix` of its gates' ids."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors on Windows put a mark in front
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: cannot be read: {error}") from error
    return {f"{prefix}{name}": entry for name, entry in parse_baseline(text, str(path)).items()}


def write_baseline(
    path: Path,
    update: str,
    new: Mapping[str, BaselineEntry],
    *,
    used: Sequence[str] | None,
    was_looked_for: Callable[[str], bool] = lambda _: True,
    expected: Sequence[str] = (),
    unjudged: Collection[str] = (),
    prefix: str = "",
) -> tuple[list[str], list[str]]:
    """Write the entries of gates that ran, or name those that no gate uses; called once, after all gates were judged.

    Args:
        path: The file.
        update: ``all``, ``new``, ``prune``, or empty to write nothing.
        new: New entries by gate; all others stay.
        used: After a full run, all gates that use the baseline; other entries are removed, unless only new gates are
            written. None after any other run.
        was_looked_for: Whether a gate would have been found if it existed: a file that was not collected may have it.
        expected: Gates that use the baseline. ``prune`` removes nothing until each was judged against an entry, because
            an unused entry may be theirs under a former name.
        unjudged: Gates that ended with an error.
        prefix: Prefix of its gates' ids, which the file leaves out.

    Returns:
        Remarks, and problems.
    """
    file = f"{prefix}{path.name}"
    if not update:
        names = []
        with contextlib.suppress(BaselineError):  # said where a gate wanted it
            names = [] if used is None else _without_gate(read_baseline(path, prefix), used)
        return [
            f"baseline {file}: no gate uses {name}; remove it with --lmgate-prune"
            for name in filter(was_looked_for, names)
        ], []
    if update == "prune" and used is None:
        why = "not all tests were collected (a path, -k or -m for instance), or not all ran"
        return [f"baseline {file}: --lmgate-prune changed nothing: {why}"], []
    waiting: list[str] = []
    unused: list[str] = []
    left: list[str] = []

    def change(before: Mapping[str, BaselineEntry]) -> dict[str, BaselineEntry]:
        entries = {
            **before,
            **{name: _keep_if_only_date_changed(before.get(name), entry) for name, entry in new.items()},
        }
        without = [] if used is None or update == "new" else _without_gate(before, [*used, *new])
        unused[:] = filter(was_looked_for, without)
        left[:] = itertools.filterfalse(was_looked_for, without)
        judged = {gate_of(name) for name in entries} | set(entries)
        waiting[:] = [name for name in expected if name not in judged or name in unjudged] if update == "prune" else []
        return entries if waiting else {name: entry for name, entry in entries.items() if name not in unused}

    try:
        before, after = rewrite(path, change, prefix)
    except (BaselineError, OSError) as error:
        return [], [f"the baseline was not written: {error}"]
    told = _told(file, before, after, list(new), [] if waiting else unused)
    if left and update == "prune":
        more = " and more" if len(left) > 3 else ""
        told.append(f"  {len(left)} kept, since their files were not collected here: {', '.join(left[:3])}{more}")
    if waiting and unused:
        told.append(
            f"  nothing was removed: no entry judged {waiting[0]}, and if that gate was renamed, an entry that no "
            "gate uses may be its own; make its entry first, with --lmgate-update-new-only"
        )
    return told, []


def rewrite(
    path: Path, change: Callable[[Mapping[str, BaselineEntry]], Mapping[str, BaselineEntry]], prefix: str = ""
) -> tuple[Mapping[str, BaselineEntry], Mapping[str, BaselineEntry]]:
    """Change the entries of a file, durably and under its lock; return those before and after.

    Equal entries write nothing, so their folder may be for reading only. A link is followed and stays a link.
    """
    before = read_baseline(path, prefix)
    if (after := change(before)) == before:
        return before, after
    # Two sessions at once: each reads what the other wrote.
    target = path.resolve()
    with hold(target.with_name(f".{target.name}.lock"), is_removed=True):
        remove_leftovers(target)
        before = read_baseline(path, prefix)
        after = change(before)
        if after != before:
            kept = {name.removeprefix(prefix): entry for name, entry in after.items()}
            write_kept(target, format_baseline(kept))
    return before, after


def _without_gate(entries: Mapping[str, BaselineEntry], used: Sequence[str]) -> list[str]:
    known = set(used)
    return [name for name in entries if name not in known and gate_of(name) not in known]


def gate_of(name: str) -> str:
    """Return the gate of an entry, whose name ends with a label if the gate has several."""
    return re.sub(r"(?<=\]) @ [^\]]+$", "", name)


def _keep_if_only_date_changed(old: BaselineEntry | None, new: BaselineEntry) -> BaselineEntry:
    """Return the new entry, or the old one if only date and commit differ, so that diffs show changes only."""
    if old is None:
        return new
    then, now = old.provenance, new.provenance
    # A measurement on a cluster does not know the name of the accelerator.
    same = msgspec.structs.replace(now, date=then.date, commit=then.commit, hardware=now.hardware or then.hardware)
    if old.content == new.content:  # an unchanged model varies as it did
        same, now = (msgspec.structs.replace(each, varies_by=then.varies_by) for each in (same, now))
        new = msgspec.structs.replace(new, provenance=now)
    return old if msgspec.structs.replace(new, provenance=same) == old else new


def _told(
    file: str,
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
    return [
        f"baseline {file}: {text}{'; commit it' if after != before else ''}",
        *(f"  {name}: removed, no gate uses it" for name in gone),
    ]
