"""The history of runs, and which changes in it, or between two runs, are beyond noise; and a report's words about both.

The history is a folder, here or at a URI, with one record of each run, which is written once and never changed. The
name of a record has the time, the commit and the run's id, so that two jobs never write the same file.

The distance of a value from the values before it is counted in standard errors of their difference. The noise of each
side reaches to the end of its 95% interval that faces the other (Zou and Donner 2008, Statistics in Medicine 27(10),
1693-1702): 1.96 standard errors if there are many clusters, and right for a share near 0 or 1 too. Values of one
identity are measured on the same data, so their noises mostly cancel. The rule takes them for independent and so sees
less than `no_regression`, which pairs rows: such a gate's own verdict counts, and the rule does not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from pytest_lmgate.cache.files import write_durably
from pytest_lmgate.cache.remote import Address, AddressError
from pytest_lmgate.errors import RecordError
from pytest_lmgate.judge.result import PastRun, Results, Verdict, read_results, to_json
from pytest_lmgate.report.wording import degradation, number, tolerance
from pytest_lmgate.stats.comparison import holm
from pytest_lmgate.stats.means import normal_cdf, normal_quantile
from pytest_lmgate.stats.paired import differences

History = Path | Address


def append_to_history(history: History, results: Results) -> bool:
    """Write the record of a run, without its texts; return False for a run that measured nothing."""
    if all(verdict.value is None for verdict in results.verdicts):
        return False
    run, text = results.run, to_json(results.without_texts()).encode()
    commit = run.commit.rstrip("+") or "nocommit"
    name = f"{re.sub(r'[-:]|[.][0-9]+', '', run.date)}-{commit}-{run.id[:12]}.json"
    if isinstance(history, Address):
        history.write(PurePosixPath(name), text)
    else:
        write_durably(history / name, text)
    return True


def read_history(history: History) -> list[Results]:
    """Return all records by date; there must be one."""
    found = [read_results(text, where) for where, text in _texts(history)]
    if not found:
        raise RecordError(f"{history}: expected records that pytest --lmgate-history {history} wrote, found none")
    return sorted(found, key=lambda results: (results.run.date, results.run.id))


def _texts(history: History) -> list[tuple[str, bytes]]:
    try:
        if isinstance(history, Address):
            return [(f"{history}/{name}", text) for name, text in history.read_all(".json").items()]
        paths = (path for path in history.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
        return [(str(path), path.read_bytes()) for path in sorted(paths)]
    except AddressError as error:
        raise RecordError(f"{history}: cannot be read: {error}") from None
    except OSError as error:
        raise RecordError(f"{error.filename or history}: cannot be read: {error.strerror}") from None


LEVEL = 0.05
"""Chance of any false alarm, in the history of one gate or in one comparison of two runs."""
_OF_95 = normal_quantile(0.975)
# Beyond six digits two values differ by the order of adding, if at all.
_SAME = 1e-6
_NO_NOISE = "no interval, so its noise is unknown"


@dataclass(frozen=True)
class Change:
    """A value compared with earlier ones."""

    before: float  # the mean of the earlier values
    after: float  # the value
    errors: float  # the distance in standard errors of the difference; infinite if there is no noise at all
    p_value: float  # Two-sided; 1 for equal values
    worse: bool  # whether the value is worse than the mean


@dataclass(frozen=True)
class Finding:
    """What a run changed in a gate: its kind, the reason if there is one, and the p-value that was allowed."""

    kind: Literal["first", "same", "worse", "better", "unknown"]
    why: str = ""
    change: Change | None = None
    allowed: float = 1.0

    @property
    def is_change(self) -> bool:
        return self.kind in ("worse", "better")


def change_between(level: Sequence[Verdict], after: Verdict) -> Change | None:
    """Compare a value with earlier ones; None if one has no value, or no interval and another value.

    The level is the mean of its values; its squared noise is the mean of theirs over their number. They are at least
    one, different (an equal value on the same data adds nothing), and of the identity of `after`.
    """
    reasons = set(map(_unknown, (*level, after))) - {""}
    if reasons == {_NO_NOISE} and all(_is_equal(gate, after) for gate in level):
        return _change(level, after)
    return None if reasons else _change(level, after)


def _change(level: Sequence[Verdict], after: Verdict) -> Change:
    before, value = math.fsum(map(_value, level)) / len(level), _value(after)
    if math.isclose(value, before, rel_tol=_SAME):
        return Change(before, value, 0.0, 1.0, worse=False)
    rises = value > before
    arms = math.hypot(*(_arm(gate, upward=rises) for gate in level)) / len(level)
    error = math.hypot(_arm(after, upward=not rises), arms) / _OF_95
    errors = abs(value - before) / error if error else math.inf
    return Change(before, value, errors, 2 * normal_cdf(-errors), worse=rises == (after.direction == "lower"))


def significant(changes: Sequence[Change]) -> list[bool]:
    """Return which changes between two runs are beyond noise, with 5% for any false alarm (Holm)."""
    return [p <= LEVEL for p in holm([change.p_value for change in changes])]


def find_changes(gates: Sequence[Verdict]) -> list[Finding]:
    """Return the finding of each run of one gate.

    Each value is compared with the level: all runs since the last change, or since the data or the protocol changed.
    The j-th test of the history may be wrong with a chance of ``LEVEL / (j (j + 1))``. These add up to LEVEL for any
    length, so later runs never revoke a finding. A value equal to one of its level is not tested, nor is a run that
    compared the gate with a reference: its verdict says more. The verdicts come by date.
    """
    findings: list[Finding] = []
    level: list[Verdict] = []  # different values with noise, of one identity
    former: Verdict | None = None  # the last that passed or failed the build
    tests = 0
    for gate in gates:
        if gate.comparison is not None:
            findings.append(_by_verdict(gate, former))
        if gate.verdict == "pass" or gate.failed:
            former = gate
        if gate.comparison is not None:
            continue
        if reason := _unknown(gate):
            findings.append(Finding("unknown", reason))
            continue
        if not level or level[0].identity != gate.identity:
            why = "; ".join(differences(gate.identity, level[0].identity)) if level else ""
            findings.append(Finding("first", why))
            level = [gate]
            continue
        found = _change(level, gate)
        if any(_is_equal(gate, other) for other in level):
            findings.append(Finding("same", change=found))
            continue
        tests += 1
        allowed = LEVEL / (tests * (tests + 1))
        if found.p_value <= allowed:
            findings.append(Finding("worse" if found.worse else "better", change=found, allowed=allowed))
            level = [gate]
        else:
            findings.append(Finding("same", change=found, allowed=allowed))
            level.append(gate)
    return findings


def _by_verdict(gate: Verdict, former: Verdict | None) -> Finding:
    """Compare a gate's own verdict with the last run in which it passed or failed the build."""
    decides = gate.verdict == "pass" or gate.failed
    if former is not None and decides and gate.failed != former.failed:
        return Finding("worse" if gate.failed else "better")
    if former is None or gate.identity != former.identity:
        return Finding("first", "" if former is None else "; ".join(differences(gate.identity, former.identity)))
    return Finding("same")


def _unknown(gate: Verdict) -> str:
    if gate.value is None:
        return "not measured"
    return _NO_NOISE if gate.interval is None else ""


def _is_equal(gate: Verdict, other: Verdict) -> bool:
    return math.isclose(_value(gate), _value(other), rel_tol=_SAME)


def _value(gate: Verdict) -> float:
    assert gate.value is not None
    return gate.value


def _arm(gate: Verdict, *, upward: bool) -> float:
    assert gate.interval is not None
    return abs(gate.interval[1 if upward else 0] - _value(gate))


EARLIER = 30
"""How many runs before a run its reports show."""


@dataclass(frozen=True)
class Track:
    """One gate along a history: its runs by date, its record in each, and the finding of each."""

    id: str
    runs: Sequence[Results]
    gates: Sequence[Verdict]
    findings: Sequence[Finding]

    @property
    def first_change(self) -> int | None:
        """Number of the first run with a change beyond noise, from 0."""
        return next((run for run, finding in enumerate(self.findings) if finding.is_change), None)

    @property
    def is_compared(self) -> bool:
        return any(gate.comparison is not None for gate in self.gates)


def tracks(history: Sequence[Results]) -> list[Track]:
    pairs_by_gate: dict[str, list[tuple[Results, Verdict]]] = {}
    for run in history:
        for gate in run.verdicts:
            pairs_by_gate.setdefault(gate.id, []).append((run, gate))
    made = []
    for name, pairs in pairs_by_gate.items():
        runs, gates = zip(*pairs, strict=True)
        made.append(Track(name, runs, gates, find_changes(gates)))
    return made


def finding_words(gate: Verdict, finding: Finding) -> str:
    """Describe a change: the gate's own verdict, or the p-value and the allowed one."""
    if not finding.is_change:
        return finding.why
    if (comparison := gate.comparison) is not None:
        allowed = tolerance(comparison, gate.metric)
        return f"{gate.shown} at {degradation(comparison)} against the {comparison.against}, tolerance {allowed}"
    change = finding.change
    assert change is not None
    errors = f"{change.errors:.1f} standard errors" if math.isfinite(change.errors) else "without any noise"
    relative = f" ({change.after / change.before - 1:+.2%})" if change.before > 0 else ""
    return (
        f"{number(change.before)} -> {number(change.after)}{relative}, {errors}, "
        f"p {change.p_value:.2g}, allowed {finding.allowed:.2g}"
    )


def past_runs(history: Sequence[Results], this: Results) -> dict[str, tuple[PastRun, ...]]:
    """Return the last runs of each gate of a run, that run last, without gates that no earlier run has.

    All runs are judged, as in ``lmgate history``, and this one with the last 30 before it is returned. This run's
    record may already be in the history.
    """
    gates = {gate.id for gate in this.verdicts}
    earlier = [results for results in history if results.run.id != this.run.id and results.run.date <= this.run.date]
    return {
        track.id: tuple(map(_past_run, *(items[-EARLIER - 1 :] for items in (track.runs, track.gates, track.findings))))
        for track in tracks([*earlier, this])
        if track.id in gates and len(track.runs) > 1
    }


def _past_run(results: Results, gate: Verdict, finding: Finding) -> PastRun:
    return PastRun(
        date=results.run.date,
        commit=results.run.commit,
        branch=results.run.branch,
        verdict=gate.verdict,
        value=gate.value,
        interval=gate.interval,
        limit=gate.limit,
        kind=finding.kind,
        words=finding_words(gate, finding),
    )
