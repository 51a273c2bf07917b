"""The JSON report: schema 1, strict JSON whatever the numbers are."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NoReturn

import pytest

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.formats.json_file import json_report
from pytest_lmgate.report.results import Results

_KEYS = [
    "id", "test", "metric", "model", "dataset", "verdict", "value", "limit", "stderr", "interval", "n", "unit",
    "signature", "fingerprint", "cached", "seconds", "marker", "blocking", "file", "line", "direction", "device",
    "identity",
]  # fmt: skip


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")


def _read(*verdicts: Verdict) -> dict[str, Any]:
    text = json_report(Results(verdicts))
    assert text.endswith("}\n")
    return json.loads(text, parse_constant=_refuse)


def test_a_report_has_the_schema_that_others_read(failed: Verdict) -> None:
    report = _read(failed)
    assert list(report) == ["schema", "run", "gates", "measurements", "problems", "environment"]
    assert report["schema"] == 1
    (gate,) = report["gates"]
    assert list(gate) == _KEYS
    assert gate == {
        "id": "tests/test_quality.py::test_quality::ppl_max[int8-wikitext2]",
        "test": "tests/test_quality.py::test_quality",
        "metric": "ppl",
        "model": "int8",
        "dataset": "wikitext2",
        "verdict": "fail",
        "value": 18.15,
        "limit": 16.5,
        "stderr": 0.4567,
        "interval": [17.25, 19.0625],
        "n": 283287,
        "unit": "token",
        "signature": "protocol:sliding|max_length:1024|stride:512|average:token|unit:token|version:0.1.0",
        "fingerprint": "0123456789abcdef" * 4,
        "cached": False,
        "seconds": 12.34,
        "marker": "ppl_max",
        "blocking": False,
        "file": "",
        "line": 0,
        "direction": "",
        "device": "",
        "identity": {},
    }


def test_a_comparison_has_the_keys_that_others_read(compared: Verdict) -> None:
    assert _read(compared)["gates"][0]["comparison"] == {
        "against": "model 'fp16'",
        "decision": "fail",
        "reference": 16.5,
        "degradation": 0.1,
        "tolerance": "1%",
        "size": 0.01,
        "relative": True,
        "confidence": 0.95,
        "clusters": 40,
        "lower": 0.09,
        "upper": 0.11,
        "p_pass": 1.0,
        "p_fail": 0.0001,
        "p_value": None,
        "detectable": None,
        "needed": None,
        "reason": "",
        "notes": ["device: cpu then, cuda now"],
        "corrected": False,
        "bounds": "hall",
        "clustered_by": "rows",
    }
    assert _read(replace(compared, verdict="inconclusive"))["gates"][0]["comparison"]["corrected"] is True


def test_gates_stand_in_their_order_and_what_is_not_known_is_null(
    passed: Verdict, stopped: Verdict, unmeasured: Verdict
) -> None:
    gates = _read(passed, stopped, unmeasured)["gates"]
    assert [gate["verdict"] for gate in gates] == ["pass", "fail", "error"]
    assert [gate["interval"] for gate in gates] == [[15.5, 16.5], None, None]
    assert [gate["value"] for gate in gates] == [16.0, 20.0, None]
    assert gates[2]["n"] is None


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_null(failed: Verdict, number: float) -> None:
    (gate,) = _read(replace(failed, value=number, stderr=number, interval=(17.25, number)))["gates"]
    assert (gate["value"], gate["stderr"], gate["interval"]) == (None, None, [17.25, None])


def test_numbers_are_not_rounded(failed: Verdict) -> None:
    (gate,) = _read(replace(failed, value=0.1 + 0.2, limit=1 / 3))["gates"]
    assert (gate["value"], gate["limit"]) == (0.1 + 0.2, 1 / 3)


def test_a_report_without_gates_is_a_report() -> None:
    assert _read()["gates"] == []


def test_the_environment_names_what_computed() -> None:
    environment = _read()["environment"]
    assert list(environment) == ["python", "platform", "machine", "packages"]
    assert environment["python"] == platform.python_version()
    packages = environment["packages"]
    assert list(packages) == ["pytest-lmgate", "pytest", "torch", "transformers", "tokenizers", "numpy"]
    assert packages["pytest-lmgate"] == version("pytest-lmgate")
    assert packages["pytest"] == pytest.__version__


def test_a_gate_on_two_models_has_its_details_and_no_other_has(failed: Verdict) -> None:
    details = (("reference", "fp16"), ("Mean KLD", 0.02), ("Mean KLD, stderr", math.nan), ("df", None))
    gates = json.loads(json_report(Results([failed, replace(failed, details=details)])))["gates"]

    assert "details" not in gates[0]
    assert gates[1]["details"] == {"reference": "fp16", "Mean KLD": 0.02, "Mean KLD, stderr": None, "df": None}
    assert Verdict.from_json(replace(failed, details=details[:2]).to_json()) == replace(failed, details=details[:2])
