"""The JSON report against the schema that the package ships."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from pytest_lmgate.gates.verdict import Former, Verdict
from pytest_lmgate.report.formats.json_file import json_report
from pytest_lmgate.report.results import Results
from tests.report.hostile import HOSTILE

SCHEMA = json.loads(files("pytest_lmgate").joinpath("report/report.schema.json").read_text(encoding="utf-8"))


def strict(schema: Any) -> Any:
    """The schema with every key that it does not name refused: none is written that is not described."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **inner} if inner.get("type") == "object" else inner


def check(report: str) -> Any:
    found = json.loads(report)
    jsonschema.Draft202012Validator(strict(SCHEMA)).validate(found)
    return found


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema"]["const"] == 1


def test_verdicts_of_every_kind_fit_the_schema(results: Results, compared: Verdict) -> None:
    anew = replace(compared, limit=None, former=Former(16.5, compared.comparison))
    found = check(json_report(replace(results, verdicts=[*results.verdicts, anew])))
    assert found["gates"][4]["spread"]["bins"] == [40, 60, 90, 60, 40]
    assert [run["interval"] for run in found["gates"][4]["history"][:2]] == [[1.0, None], [15.6, 16.4]]
    assert found["gates"][1]["worst"] == [
        {"row": 3, "score": 0.5, "prompt": "say it", "reference": "a | b", "output": "c"}
    ]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_fit_the_schema_and_have_a_form_in_utf_8(failed: Verdict, text: str) -> None:
    gate = replace(failed, id=text, test=text, model=text, message=text, worst=((0, 0.5, text, text, text),))
    found = check(json_report(Results([gate], problems=(text,))))["gates"][0]
    for given in (found["id"], found["model"], found["worst"][0]["output"]):
        given.encode("utf-8")
        assert given == text or "surrogate" in text or "half" in text


@pytest.mark.parametrize(
    "wrong", [{"verdict": "ok"}, {"value": None}, {"n": 1.5}, {"interval": [1]}, {"cached": None}, {"new": 1}]
)
def test_the_schema_refuses_what_is_no_report(failed: Verdict, wrong: dict[str, Any]) -> None:
    report = json.loads(json_report(Results([failed])))
    report["gates"][0].update(wrong)
    with pytest.raises(jsonschema.ValidationError):
        check(json.dumps(report))
