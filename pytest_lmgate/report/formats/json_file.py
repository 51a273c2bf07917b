"""``--lmgate-report json:FILE``: every verdict of a session, for machines; report.schema.json describes it."""

from __future__ import annotations

__all__ = ["OF_A_ROW", "json_report", "measurement_facts"]

import json
import math
from dataclasses import asdict
from typing import Any

from pytest_lmgate.errors import encodable
from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.measured import Measured
from pytest_lmgate.report.results import Results
from pytest_lmgate.report.wording.excerpt import printable

_KEYS = (
    "id", "test", "metric", "model", "dataset", "verdict", "value", "limit", "stderr", "interval", "n", "unit",
    "signature", "fingerprint", "cached", "seconds", "marker", "blocking", "file", "line", "direction", "device",
)  # fmt: skip
_OF_SOME_GATES = ("message", "at_least", "iid", "arguments", "layers")
_OF_A_COMPARISON = (
    "against", "decision", "reference", "degradation", "tolerance", "size", "relative", "confidence", "clusters",
    "lower", "upper", "p_pass", "p_fail", "p_value", "detectable", "needed", "reason", "notes", "corrected", "bounds",
    "clustered_by",
)  # fmt: skip
OF_A_ROW = ("row", "score", "prompt", "reference", "output")


def json_report(results: Results) -> str:
    """Return the report, schema 1; numbers that are not finite are null."""
    report = {
        "schema": 1,
        "run": {key: _plain(value) for key, value in vars(results.run).items() if key != "environment"},
        "gates": [_gate(verdict, results) for verdict in results.verdicts],
        "measurements": [measurement_facts(found) for found in results.measured],
        "problems": [printable(problem) for problem in results.problems],
        "environment": results.run.environment,
    }
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def measurement_facts(found: Measured) -> dict[str, Any]:
    """Return what the report says of a measurement."""
    facts = {name: _plain(value) for name, value in vars(found).items() if name != "details"}
    details = {name: _plain(value) for name, value in found.details}
    return facts | ({"details": details} if details else {})


def _gate(verdict: Verdict, results: Results) -> dict[str, Any]:
    """A gate's keys, and those that only some gates have."""
    gate = {key: _plain(getattr(verdict, key)) for key in _KEYS}
    gate["identity"] = {part: _plain(digest) for part, digest in verdict.identity}
    gate |= {key: _plain(value) for key in _OF_SOME_GATES if (value := getattr(verdict, key))}
    if verdict.failed and not results.fails(verdict):
        gate["xfail"] = True
    if verdict.comparison is not None:
        tolerance = verdict.comparison.tolerance
        facts = vars(verdict.comparison) | vars(tolerance)
        facts |= {"tolerance": str(tolerance), "corrected": verdict.is_corrected}
        gate["comparison"] = {key: _plain(facts[key]) for key in _OF_A_COMPARISON}
    if verdict.bounded is not None:
        gate["bounded"] = {key: _plain(value) for key, value in asdict(verdict.bounded).items()}
    if (former := verdict.former) is not None and former.value is not None:
        decided = {} if former.comparison is None else {"degradation": former.comparison.degradation}
        verdict_then = "error" if former.comparison is None else former.comparison.decision
        facts = {"value": former.value, "verdict": verdict_then, **decided, "message": former.problem}
        gate["former"] = {key: _plain(value) for key, value in facts.items() if value != ""}
    if verdict.details:
        gate["details"] = {name: _plain(value) for name, value in verdict.details}
    if verdict.where is not None:
        gate["where"] = _plain(asdict(verdict.where))
    if verdict.spread is not None:
        gate["spread"] = _plain(asdict(verdict.spread))
    if past := results.history.get(verdict.id):
        gate["history"] = [_plain(asdict(run)) for run in past]
    if verdict.worst:
        gate["worst"] = [dict(zip(OF_A_ROW, _plain(row), strict=True)) for row in verdict.worst]
    return gate


def _plain(value: Any) -> Any:
    """Return a value that every reader of JSON takes: no NaN, no infinity, no half of a surrogate pair."""
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, str):
        return encodable(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
