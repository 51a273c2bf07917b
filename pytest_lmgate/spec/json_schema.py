"""The JSON Schema of lmgate.yaml, for editors: made of the specs that decode the file and of the table of metrics.

It says which keys there are and what kind of value each has. What depends on two keys at once, or on files, only
reading the file can tell.
"""

from __future__ import annotations

__all__ = ["json_schema"]

from inspect import Parameter
from typing import Any

import msgspec

from pytest_lmgate.config.specs import DEVICES, DTYPES, ProjectSpec
from pytest_lmgate.metrics.table import MARKERS, METRICS, USERS_METRIC
from pytest_lmgate.spec.arguments import NO_REGRESSION, OF_NO_REGRESSION, arguments_of, arguments_of_no_regression
from pytest_lmgate.spec.catalogue import MARKERS_HELP, documented

# A model needs one of these; that it has only one is said where the file is read.
_SOURCES = {"ModelSpec": ("path", "hub", "server", "backend"), "DatasetSpec": ("path", "hub")}
_NUMBER = {"type": "number"}
_NAME = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 1}
_KINDS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("metric", "model", "reference", "dataset", "against"), _NAME),
    "limit": _NUMBER,
    "confidence": {"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 1},
    "tolerance": {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^\s*[\d.]+\s*%\s*$"}]},
    **dict.fromkeys(("stride", "max_length", "max_new_tokens", "num_beams"), _COUNT),
}
_SAID: dict[str, dict[str, Any]] = {
    "dtype": {"enum": list(DTYPES)},
    "device": {"type": "string", "pattern": rf"^({'|'.join(DEVICES)}|(cuda|mps|xpu|cpu):\d+)$"},
}


def json_schema() -> dict[str, Any]:
    """Return the schema, draft 2020-12."""
    (_, definitions) = msgspec.json.schema_components([ProjectSpec], ref_template="#/$defs/{name}")
    for name, definition in definitions.items():
        words, described = documented(definition.get("description", ""))
        definition["description"] = words
        for key, entry in definition["properties"].items():
            if key in _SAID:
                kinds = [_SAID[key]] if entry["default"] else [_SAID[key], {"type": "null"}]
                entry = {"anyOf": kinds, "default": entry["default"]}
            if key in described:
                entry = {**entry, "description": described[key]}
            definition["properties"][key] = entry
        if name in _SOURCES:
            definition["anyOf"] = [{"required": [key]} for key in _SOURCES[name]]
    top = definitions.pop("ProjectSpec")
    for key, entry in top["properties"].items():  # a key with nothing below it is an empty one
        top["properties"][key] = {"anyOf": [entry, {"type": "null"}]}
    top["properties"]["gates"] = {"type": "array", "minItems": 1, "items": _gate()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "lmgate.yaml",
        **{key: value for key, value in top.items() if key != "title"},
        "$defs": definitions,
    }


def _gate() -> dict[str, Any]:
    markers = {marker: _marker(marker, arguments_of(row, limit=True)) for marker, row in MARKERS.items()}
    rows = [row for row in (*METRICS.values(), USERS_METRIC) if row.is_number]
    of_all = {
        each.name: each.replace(default=each.default if each.name in OF_NO_REGRESSION else None)
        for row in rows
        for each in arguments_of_no_regression(row, against="baseline", confidence=0.95)
    }
    markers[NO_REGRESSION] = _marker(NO_REGRESSION, list(of_all.values()))
    one = {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": False}
    return {**one, "properties": markers}


def _marker(name: str, arguments: list[Parameter]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": MARKERS_HELP[name],
        "properties": {each.name: _KINDS.get(each.name, {}) for each in arguments},
        "required": [each.name for each in arguments if each.default is Parameter.empty],
        "additionalProperties": False,
    }
