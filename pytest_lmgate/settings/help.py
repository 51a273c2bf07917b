"""What help, docs/reference and the JSON Schema of lmgate.yaml say: all of it derives from the records and the metrics.

The meaning of an argument is in the docstring of the record or of the metric that takes it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Any

import msgspec

from pytest_lmgate.settings.decoding import LISTED, REQUESTS, arguments_of, flat_fields, gate_arguments
from pytest_lmgate.settings.entries import ProjectSpec
from pytest_lmgate.settings.gate_options import GenerationRequest
from pytest_lmgate.settings.gates import LimitGate, NoRegression
from pytest_lmgate.settings.metrics import FIXTURES, MARKERS, METRICS, NO_REGRESSION, USERS_METRIC, Metric

_MODEL = (
    "The model is a name of lmgate.yaml, a path, a hub id, a (model, tokenizer) pair or a pipeline; the dataset a "
    "name, a path, a hub id, a list of texts or of mappings, or a datasets.Dataset."
)
_TEXTS = "Instead of model and dataset it takes predictions=[...], references=[[...], ...]."
_MEANINGS = {
    "metric": "Name of the metric, such as ppl, or of a registered one, or as the files of results name it.",
    "model": "A name of lmgate.yaml, a path, a hub id, a (model, tokenizer) pair, a pipeline, or lmgate.fixture(...).",
    "reference": "The model to compare with, given as a model is.",
    "dataset": "A name of lmgate.yaml, a path, a hub id, texts, mappings, a datasets.Dataset, or lmgate.fixture(...).",
}
_FILTER = "The filter, where the files of results have the metric under several; only results have filters."
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n     +.*)*)", re.MULTILINE)


def markers_help() -> dict[str, str]:
    found = {}
    for marker, row in MARKERS.items():
        side = "above" if marker.endswith("_max") else "below"
        found[marker] = f"{_call(marker)}: limit on {row.description}; fails {side} it."
    call = _call(NO_REGRESSION, _of_all_metrics()).removesuffix(")") + ", ...)"
    judged = "fails if the metric is worse than in the committed baseline, or than another model's, by more than the"
    meaning = documented(NoRegression.__doc__ or "")[1]["tolerance"].partition(": ")[2]
    found[NO_REGRESSION] = f"{call}: {judged} tolerance. {meaning}"
    return found


def fixtures_help() -> dict[str, str]:
    return {
        name: f"{_call(name)} measures {row.description}.\n\n{_MODEL}{f' {_TEXTS}' * (row.measures == 'texts')}"
        for name, row in FIXTURES.items()
    }


def _of_all_metrics() -> list[Parameter]:
    """Return the parameters of ``no_regression`` that it takes with any metric."""
    judging = documented(NoRegression.__doc__ or "")[1]
    return [each for each in arguments_of(NO_REGRESSION, USERS_METRIC) if each.name in (*_MEANINGS, *judging)]


def _call(name: str, parameters: list[Parameter] | None = None) -> str:
    """Return a call as help shows it: ``accuracy_min(model, dataset, limit, *, variant='acc', max_length)``."""
    bare = [
        each.replace(
            annotation=Parameter.empty, default=Parameter.empty if each.default in (None, ()) else each.default
        )
        for each in parameters or arguments_of(name)
    ]
    return f"{name}{inspect.Signature(bare)}"


def arguments_help(name: str) -> dict[str, tuple[str, str]]:
    """Return default and meaning of each argument of a marker or fixture; an empty default if it is required."""
    judging = documented((NoRegression if name == NO_REGRESSION else LimitGate).__doc__ or "")[1]
    if name == NO_REGRESSION:
        found = {each.name: (_default(each), (_MEANINGS | judging)[each.name]) for each in _of_all_metrics()}
        return {**found, "...": ("", "The arguments of the metric's own marker, by name.")}
    row = MARKERS.get(name) or FIXTURES[name]
    meanings, defaults = {"variant": _FILTER, **judging}, {}
    for source, heading in _sources(row):
        meanings |= documented(source.__doc__ or "", heading)[1]
        if heading == "Args":
            defaults = dict(inspect.signature(source).parameters)
    if "name" in meanings:  # of a protocol
        meanings["protocol"] = meanings["name"]
    meanings |= _MEANINGS
    return {each.name: (_default(defaults.get(each.name, each)), meanings[each.name]) for each in arguments_of(name)}


def _default(parameter: Parameter) -> str:
    return "" if parameter.default is Parameter.empty else repr(parameter.default)


def _sources(row: Metric) -> Iterator[tuple[Callable[..., Any], str]]:
    """Yield the callables whose docstrings document the arguments of a metric, with the heading."""
    yield from dict.fromkeys((kind, "Attributes") for _, kind in flat_fields(REQUESTS[row.measures]))
    if row.measures == "texts" and row.scored_by:
        yield row.scorer(), "Args"


def documented(docstring: str, heading: str = "Attributes") -> tuple[str, dict[str, str]]:
    """Return a docstring's first paragraph, and the names and texts under a heading."""
    text = inspect.cleandoc(docstring)
    found = _ATTRIBUTE.findall(text.partition(f"\n\n{heading}:\n")[2].partition("\n\n")[0])
    return " ".join(text.partition("\n\n")[0].split()), {key: " ".join(words.split()) for key, words in found}


# A model needs one of these; that it has only one is said where the file is read.
_ANY_OF = {
    "ModelSpec": ("path", "hub", "server", "command", "results", "backend"),
    "DatasetSpec": ("path", "hub"),
}
_NAME = {"type": "string", "minLength": 1}
_PERCENT = {"type": "string", "pattern": r"^\s*[\d.]+\s*%\s*$"}
# What a file says in another way than the record that is made of it.
_WRITTEN: dict[str, dict[str, Any]] = {
    **dict.fromkeys((*_MEANINGS, "against"), _NAME),
    **{name: {"anyOf": [{"type": "number", "minimum": 0}, _PERCENT]} for name in ("tolerance", "within")},
    "stop": {"anyOf": [_NAME, {"type": "array", "items": _NAME}]},
}


def json_schema() -> dict[str, Any]:
    (_, definitions) = msgspec.json.schema_components([ProjectSpec], ref_template="#/$defs/{name}")
    for name, definition in definitions.items():
        definition["description"], described = documented(definition.get("description", ""))
        if name == "DatasetSpec":
            described |= documented(GenerationRequest.__doc__ or "")[1]
            definition["properties"]["stop"] = _WRITTEN["stop"]
        for key, words in described.items():
            definition["properties"][key] = {**definition["properties"][key], "description": words}
        if name == "Defaults":
            definition["patternProperties"] = {f"^({'|'.join(sorted(gate_arguments()))})$": {}}
        if name in _ANY_OF:
            definition["anyOf"] = [{"required": [key]} for key in _ANY_OF[name]]
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
    rows = [row for row in (*METRICS.values(), USERS_METRIC) if row.is_comparable]
    of_all = {each.name: each for row in rows for each in arguments_of(NO_REGRESSION, row)}
    own = ("metric", "model", "dataset", "tolerance")
    compared = [each if name in own else each.replace(default=None) for name, each in of_all.items()]
    markers = {NO_REGRESSION: compared, **{marker: arguments_of(marker) for marker in MARKERS}}
    words = markers_help()
    properties = {name: _marker(words[name], markers[name]) for name in words}
    one = {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": False}
    return {**one, "properties": properties}


def _marker(words: str, arguments: list[Parameter]) -> dict[str, Any]:
    """Return the schema of a gate; which arguments it lacks is said where the file is read, with its defaults."""
    kinds = msgspec.json.schema_components([each.annotation for each in arguments])[0]
    properties = {each.name: _WRITTEN.get(each.name, kind) for each, kind in zip(arguments, kinds, strict=True)}
    properties = {name: _expandable(kind, takes_list=name in LISTED) for name, kind in properties.items()}
    properties["marks"] = {"anyOf": [_NAME, {"type": "array", "items": _NAME, "minItems": 1}]}
    return {"type": "object", "description": words, "properties": properties, "additionalProperties": False}


def _expandable(kind: dict[str, Any], *, takes_list: bool) -> dict[str, Any]:
    """Return the schema of a value, of a mapping from names to values, and of a list that makes a gate of each."""
    mapping = {"type": "object", "minProperties": 1, "additionalProperties": {"anyOf": [kind, {"type": "object"}]}}
    listed = {"type": "array", "minItems": 1, "uniqueItems": True, "items": kind}
    return {"anyOf": [kind, mapping, *([listed] if takes_list else [])]}
