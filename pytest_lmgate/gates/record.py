"""What a run found, as it is kept and read again: a record of the history, or the gates of a JSON report.

A record is a file of its own, which nobody ever changes, so that two runs never write the same file. A gate in it has
the keys that it has in the JSON report, but for texts of a dataset or a model.
"""

from __future__ import annotations

__all__ = ["ComparedRecord", "GateRecord", "RunRecord", "format_record", "parse_record", "parse_report", "record_of"]

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec

from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.errors import RecordError, encodable
from pytest_lmgate.gates.comparisons.comparison import Comparison
from pytest_lmgate.gates.verdict import Outcome, Verdict

_SCHEMA = 1


class ComparedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a `no_regression` gate was judged by; names as in `Comparison`. An infinite number is kept as None."""

    against: str
    size: float
    relative: bool
    reference: float | None = None
    bounds: str | None = None
    measured: float | None = msgspec.field(default=None, name="degradation")
    low: float | None = msgspec.field(default=None, name="lower")
    high: float | None = msgspec.field(default=None, name="upper")

    @property
    def tolerance(self) -> Tolerance:
        """The largest degradation let pass."""
        return Tolerance(self.size, self.relative)

    @property
    def degradation(self) -> float:
        """How much worse the value is than the reference's."""
        return math.inf if self.measured is None else self.measured

    @property
    def lower(self) -> float | None:
        """The lower bound of the degradation."""
        return -math.inf if self.low is None and self.bounds is not None else self.low

    @property
    def upper(self) -> float | None:
        """The upper bound of the degradation."""
        return math.inf if self.high is None and self.bounds is not None else self.high


class GateRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One gate of one run; names as in `Verdict`. The end of an interval that is infinite is None."""

    id: str
    metric: str
    model: str
    dataset: str
    verdict: Outcome
    value: float | None
    limit: float | None
    stderr: float | None
    interval: tuple[float | None, float | None] | None
    n: int | None
    unit: str
    signature: str
    direction: Literal["lower", "higher", ""]
    device: str
    identity: dict[str, str]
    at_least: bool = False
    blocking: bool = False
    xfail: bool = False
    comparison: ComparedRecord | None = None

    @property
    def fails(self) -> bool:
        """Whether this gate fails the build; gates of tests marked xfail do not."""
        return (self.verdict in ("fail", "error") or self.blocking) and not self.xfail

    @property
    def outcome(self) -> str:
        """The verdict in capitals; an inconclusive one that fails the build has a mark, as has one marked xfail."""
        is_marked = self.verdict == "inconclusive" and self.blocking
        return self.verdict.upper() + (" (xfail)" if self.xfail else "!" * is_marked)


class RunRecord(msgspec.Struct, frozen=True):
    """One run.

    Attributes:
        run: Id of the run.
        date: When it ended, UTC, as in ``2026-01-31T18:00:59.123456Z``, since two short runs may end in one second.
        commit: With ``+`` where tracked files were changed; empty outside a repository.
        branch: Empty where it is not known.
        hardware: The accelerator's or the processor's name, where the run knew it.
        versions: Of Python and packages.
        stopped: Whether tests were left that did not run, as after Ctrl-C or ``-x``.
        problems: What failed the session although every test passed, such as a verdict that got lost.
        gates: In the order of the tests.
    """

    schema: int
    run: str
    date: str
    commit: str
    branch: str
    hardware: str
    versions: dict[str, str]
    stopped: bool
    problems: list[str]
    gates: list[GateRecord]

    @property
    def is_whole(self) -> bool:
        """Whether the record has every gate that the run was to judge."""
        return not (self.stopped or self.problems)


class _Report(msgspec.Struct):
    schema: int
    gates: list[GateRecord]


_T = TypeVar("_T", RunRecord, _Report)


def record_of(verdict: Verdict, *, xfail: bool = False) -> GateRecord:
    """Return what is kept of a verdict, whose test may be marked xfail."""
    return GateRecord(
        id=encodable(verdict.id),
        metric=verdict.metric,
        model=encodable(verdict.model),
        dataset=encodable(verdict.dataset),
        verdict=verdict.verdict,
        value=_finite(verdict.value),
        limit=_finite(verdict.limit),
        stderr=_finite(verdict.stderr),
        interval=None if verdict.interval is None else (_finite(verdict.interval[0]), _finite(verdict.interval[1])),
        n=verdict.n,
        unit=verdict.unit,
        signature=encodable(verdict.signature),
        direction=verdict.direction,  # type: ignore[arg-type]  # of a score, or empty
        device=verdict.device,
        identity={part: encodable(digest) for part, digest in verdict.identity},
        at_least=verdict.at_least,
        blocking=verdict.blocking,
        xfail=xfail and verdict.failed,
        comparison=None if verdict.comparison is None else _compared(verdict.comparison),
    )


def _compared(found: Comparison) -> ComparedRecord:
    return ComparedRecord(
        against=encodable(found.against),
        size=found.tolerance.size,
        relative=found.tolerance.relative,
        reference=_finite(found.reference),
        measured=_finite(found.degradation),
        bounds=found.bounds,
        low=_finite(found.lower),
        high=_finite(found.upper),
    )


def format_record(**facts: Any) -> bytes:
    """Return the text of a record: the attributes of `RunRecord` but for the schema."""
    record = RunRecord(schema=_SCHEMA, **facts)
    return json.dumps(msgspec.to_builtins(record), indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def parse_record(text: bytes, where: str) -> RunRecord:
    """Read a record.

    Raises:
        RecordError: It is no record, or damaged; the message names the file `where` and the key.
    """
    return _decoded(text, RunRecord, where, "a record of the history")


def parse_report(text: bytes, where: str) -> Sequence[GateRecord]:
    """Return the gates of a JSON report, or of a record of the history.

    Raises:
        RecordError: It is neither, or damaged; the message names the file `where` and the key.
    """
    gates = _decoded(text, _Report, where, "a report that --lmgate-report json:FILE wrote").gates
    twice = [name for name, count in Counter(gate.id for gate in gates).items() if count > 1]
    if twice:
        raise RecordError(f"{where}: the gate {twice[0]} appears twice: expected one verdict")
    return gates


def _decoded(text: bytes, kind: type[_T], where: str, words: str) -> _T:
    try:
        found = msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # also of the wrong type
        raise RecordError(f"{where}: expected {words}: {error}; restore the file, or remove it") from None
    if found.schema != _SCHEMA:
        raise RecordError(
            f"{where}: expected schema {_SCHEMA}, got {found.schema}: another version of pytest-lmgate wrote it"
        )
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
