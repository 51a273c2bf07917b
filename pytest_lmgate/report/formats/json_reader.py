"""From the JSON report back to `Results`, so that other reports can be made of a run that is over.

JSON has no infinity: an end of an interval, or a bound, that is null where there is one was infinite. What only the run
itself used is not in the report: the versions of a baseline that was replaced, and what the cache said.
"""

from __future__ import annotations

__all__ = ["read_report"]

import json
import math
from pathlib import Path
from typing import Any

import msgspec

from pytest_lmgate.errors import DataError
from pytest_lmgate.gates.comparisons.comparison import Comparison
from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.formats.json_file import OF_A_ROW
from pytest_lmgate.report.measured import Measured
from pytest_lmgate.report.results import Results, Run
from pytest_lmgate.report.runs.past import PastRun

_SCHEMA = 1


def read_report(path: Path) -> Results:
    """Read a report that ``--lmgate-report json:FILE`` wrote.

    Raises:
        DataError: It cannot be read, or is not such a report.
    """
    try:
        report = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected a JSON report, got what is not JSON: {error}") from error
    if not isinstance(report, dict) or report.get("schema") != _SCHEMA:
        got = report.get("schema", "none") if isinstance(report, dict) else type(report).__name__
        raise DataError(
            f"{path}: expected a report of schema {_SCHEMA}, as --lmgate-report json:FILE writes it, got schema {got}"
        )
    try:
        gates, measured = report["gates"], report["measurements"]
        run = report.get("run", {}) | {"environment": report["environment"]}
        return Results(
            verdicts=[_verdict(gate) for gate in gates],
            problems=tuple(map(str, report["problems"])),
            expected_to_fail=frozenset(str(gate["id"]) for gate in gates if gate.get("xfail")),
            folder=Path.cwd(),
            measured=[_measured(each) for each in measured],
            history={
                gate["id"]: msgspec.convert(gate["history"], list[PastRun]) for gate in gates if "history" in gate
            },
            run=msgspec.convert(run, Run),
        )
    except (msgspec.ValidationError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: not a whole report: {type(error).__name__}: {error}") from error


def _verdict(gate: dict[str, Any]) -> Verdict:
    # Reports of earlier versions lack the marker, with which a gate's label begins.
    label = gate["id"].removeprefix(f"{gate['test']}::").rpartition("::")[2]
    found = {"marker": label.partition("[")[0].partition(":")[0]} | gate
    found |= {name: list(gate.get(name, {}).items()) for name in ("identity", "details")}
    found["interval"] = _ends(gate["interval"])
    found["worst"] = [
        [_number(row[key]) if key == "score" else row[key] for key in OF_A_ROW] for row in gate.get("worst", ())
    ]
    if bounded := gate.get("bounded"):
        found["bounded"] = bounded | _bounds(bounded)
    if former := gate.get("former"):
        found["former"] = {"value": former["value"], "problem": former.get("message", "")}
    if compared := gate.get("comparison"):
        found["comparison"] = _comparison(compared, gate)
    return msgspec.convert(found, Verdict)


def _comparison(compared: dict[str, Any], gate: dict[str, Any]) -> Any:
    of_gate = {"candidate": gate["value"], "n": gate["n"], "change": compared["degradation"]}
    tolerance = {"size": compared["size"], "relative": compared["relative"]}
    facts = {key: value for key, value in compared.items() if key in Comparison.__dataclass_fields__}
    return {**of_gate, **facts, **_bounds(compared), "tolerance": tolerance}


def _bounds(found: dict[str, Any]) -> dict[str, float | None]:
    """Return both bounds; where a rule made them, those that are null are infinite."""
    if found["bounds"] is None:
        return {"lower": found["lower"], "upper": found["upper"]}
    lower, upper = found["lower"], found["upper"]
    return {"lower": -math.inf if lower is None else lower, "upper": math.inf if upper is None else upper}


def _ends(interval: list[float | None] | None) -> list[float] | None:
    if interval is None:
        return None
    low, high = interval
    return [-math.inf if low is None else low, math.inf if high is None else high]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _measured(each: dict[str, Any]) -> Measured:
    details = list(each.get("details", {}).items())
    found = {**each, "value": _number(each["value"]), "interval": _ends(each["interval"]), "details": details}
    return msgspec.convert(found, Measured)
