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

__all__ = [
    "BaselineEntry",
    "Provenance",
    "entry_of",
    "format_baseline",
    "parse_baseline",
    "reference_of",
    "require_same",
]

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from pytest_lmgate.config import conflict_line
from pytest_lmgate.errors import BaselineError
from pytest_lmgate.metrics.noise.clusters import merged_rows
from pytest_lmgate.metrics.noise.proportion import MOST_OUTCOMES, Outcomes
from pytest_lmgate.metrics.sample import Sample
from pytest_lmgate.metrics.score import Score

_SCHEMA = 2
# A sum of the file's own numbers differs from the measured one by no more than the order of adding.
_SAME = 1e-9


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where and when a baseline was measured."""

    date: str  # day, UTC, ISO 8601
    commit: str  # with + where files were changed; empty outside a repository
    device: str  # as in cuda; empty for a function
    hardware: str
    versions: dict[str, str]


class BaselineEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One gate's baseline: the score, and enough of its sample to pair a later one with it.

    Attributes:
        identity: Digests of the data and the targets, and the protocol: what must be the same to compare.
        clusters: Of each cluster its count and its sums.
        content: Digest of the model, wherever it runs; empty for functions.
        outcomes: Where rows are right or wrong, a bit for each row in hexadecimal, the first row first; empty for other
            metrics and for more than 100,000 rows.
    """

    metric: str
    model: str
    dataset: str
    value: float
    n: int
    unit: str
    signature: str
    identity: dict[str, str]
    provenance: Provenance
    clusters: list[list[float]]
    content: str = ""
    outcomes: str = ""

    @property
    def words(self) -> str:
        """The entry in words, as in ``baseline of 2026-01-31``."""
        return " ".join(["baseline of", self.provenance.date, self.provenance.commit]).rstrip()


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    gates: dict[str, msgspec.Raw]


def entry_of(score: Score, provenance: Provenance) -> BaselineEntry:
    """Make the entry of a score.

    Raises:
        BaselineError: The value is not finite, or the score has no sample.
    """
    if score.sample is None or not score.is_finite:
        raise BaselineError(f"a baseline needs a finite value, got {float(score)}")
    sample = score.sample.merged()
    clusters = [[int(count), *sums] for count, sums in zip(sample.counts.tolist(), sample.sums.tolist(), strict=True)]
    return BaselineEntry(
        metric=score.metric,
        model=score.model,
        dataset=score.dataset,
        value=float(score),
        n=score.n,
        unit=score.unit,
        signature=str(score.signature),
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
    """Return which rows were right; bits that do not fit the rows or the clusters are an error."""
    if candidate.outcomes is None or candidate.outcomes.n > MOST_OUTCOMES:
        return None
    try:
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(entry.outcomes), dtype=np.uint8))
    except ValueError:
        raise BaselineError("outcomes: expected hexadecimal digits: edited by hand?") from None
    rows, clusters = candidate.outcomes.n, candidate.outcomes.cluster
    right = bits[:rows].astype(bool)
    if not rows <= len(bits) < rows + 8 or bits[rows:].any():
        raise BaselineError(f"outcomes: expected a bit for each of {rows} rows, got {len(bits)}: edited by hand?")
    merged = merged_rows(candidate.outcomes.sizes)[clusters]
    if np.bincount(merged, weights=right).tolist() != [right_rows for _, right_rows in entry.clusters]:
        raise BaselineError("outcomes: they do not add up to the clusters: edited by hand?")
    return Outcomes(right, clusters)


def reference_of(entry: BaselineEntry, candidate: Sample) -> Sample:
    """Return the sample that an entry keeps; the function that makes a value of its sums is the candidate's.

    Raises:
        BaselineError: The clusters are not numbers of one length, or do not add up to the value.
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
    if (counts < 0).any() or (counts != np.floor(counts)).any() or not counts.any():
        raise BaselineError("clusters: expected each line to begin with a count of targets, a whole number from 0")
    sample = Sample(table[:, 1:], counts.astype(np.int64), candidate.scale, candidate.metric, entry.identity)
    if dict(entry.identity) != dict(candidate.identity):
        return sample  # the comparison refuses it and says what differs; a text's own factor is the candidate's
    sample = replace(sample, outcomes=_outcomes(entry, candidate))
    value = sample.value()
    if not math.isclose(value, entry.value, rel_tol=_SAME, abs_tol=_SAME):
        raise BaselineError(f"value: {entry.value!r} is not what its clusters add up to, {value!r}: edited by hand?")
    return sample


def require_same(entry: BaselineEntry, score: Score) -> None:
    """Refuse an entry whose metric or counts differ from those of a score on the same data.

    Raises:
        BaselineError: It says what differs.
    """
    for key in ("metric", "unit", "n"):
        here, there = getattr(score, key), getattr(entry, key)
        if here != there:
            raise BaselineError(f"{key}: expected {here!r}, got {there!r}: edited by hand?")


def parse_baseline(text: str, where: str) -> dict[str, BaselineEntry]:
    """Read the text of the file `where`.

    Raises:
        BaselineError: It is cut short, holds a merge conflict, a key twice or a value of the wrong type; the message
            names the line or the gate and the key.
    """
    mend = "mend it, or restore it from version control"
    if line := conflict_line(text):
        raise BaselineError(f"{where}:{line}: an unresolved merge conflict; {mend}")
    try:
        file = msgspec.json.decode(text, type=_File)
        json.loads(text, object_pairs_hook=lambda pairs: _require_once(pairs, where, mend))
    except RecursionError:
        raise BaselineError(f"{where}: nested more deeply than any baseline is; {mend}") from None
    except msgspec.ValidationError as error:
        raise BaselineError(f"{where}: {_readable(error, 'top level')}; {mend}") from None
    except msgspec.DecodeError as error:
        raise BaselineError(f"{where}: not whole JSON: {str(error).rstrip('.')}; {mend}") from None
    if file.schema != _SCHEMA:
        raise BaselineError(
            f"{where}: expected schema {_SCHEMA}, got {file.schema}: another version of pytest-lmgate wrote it; delete "
            "the file and measure it anew with --lmgate-update"
        )
    entries = {}
    for identity, raw in file.gates.items():
        try:
            entries[identity] = msgspec.json.decode(raw, type=BaselineEntry)
        except msgspec.ValidationError as error:
            raise BaselineError(f"{where}: {identity}: {_readable(error, '')}; {mend}") from None
    return entries


def _require_once(pairs: list[tuple[str, Any]], where: str, mend: str) -> None:
    """Refuse a key that appears twice, as after a merge that kept both sides: JSON would take the last."""
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BaselineError(f"{where}: {twice} appears twice; {mend}")


def format_baseline(entries: Mapping[str, BaselineEntry]) -> str:
    """Return the file's text; the same entries give the same text."""
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
    """A whole number without its ``.0``, as counts of n-grams are."""
    return int(number) if number == int(number) and abs(number) < 2**53 else number


def _readable(error: msgspec.ValidationError, top: str) -> str:
    """``value: expected `float`, got `str```, from msgspec's "Expected `float`, got `str` - at `$.value`"."""
    message, _, path = str(error).partition(" - at ")
    key = path.strip("`").removeprefix("$").removeprefix(".") or top
    return f"{key}: {message[:1].lower()}{message[1:]}" if key else f"{message[:1].lower()}{message[1:]}"
