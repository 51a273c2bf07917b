"""The markers and fixtures that the table of metrics makes, with the help that ``pytest --markers`` shows.

What an argument means stands in the docstring of what takes it; it is imported when somebody asks.
"""

from __future__ import annotations

__all__ = ["FIXTURES_HELP", "MARKERS_HELP", "arguments_help", "documented"]

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from pytest_lmgate.metrics.table import MARKERS, METRICS, USERS_METRIC, Metric
from pytest_lmgate.spec.arguments import NO_REGRESSION, OF_NO_REGRESSION, accepts_texts, arguments_of, shown

_MODEL = (
    "The model is a name of lmgate.yaml, a path, a hub id, a (model, tokenizer) pair or a pipeline; the dataset a "
    "name, a path, a hub id, a list of texts or of mappings, or a datasets.Dataset."
)
_TEXTS = "In place of model and dataset it takes predictions=[...], references=[[...], ...]."

_TOLERANCE = (
    "'5%' is 5% of the reference's value, which of an accuracy of 0.5 is 2.5 points; a number is in the metric's own "
    "unit, as 1.5 of a perplexity, or 0.02 for 2 points of an accuracy."
)


def _markers() -> Iterator[tuple[str, str]]:
    for marker, row in MARKERS.items():
        side = "above" if marker.endswith("_max") else "below"
        yield marker, f"{shown(marker, arguments_of(row, limit=True))}: limit on {row.description}; fails {side} it."
    call = f"{NO_REGRESSION}(metric, model, dataset, tolerance, *, against='baseline', confidence=0.95, ...)"
    judged = "fails if the metric is worse than in the committed baseline, or than another model's"
    yield NO_REGRESSION, f"{call}: {judged}, by more than the tolerance. {_TOLERANCE}"


def _fixtures() -> Iterator[tuple[str, str]]:
    for row in (*METRICS.values(), USERS_METRIC):
        call = shown(row.fixture, arguments_of(row, limit=False))
        yield row.fixture, f"{call} measures {row.description}.\n\n{_MODEL}{f' {_TEXTS}' if accepts_texts(row) else ''}"


MARKERS_HELP = dict(_markers())
FIXTURES_HELP = dict(_fixtures())

_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n     +.*)*)", re.MULTILINE)
_MEANINGS = {
    "metric": "Name of the metric, such as ppl, or of a registered one.",
    "model": "A name of lmgate.yaml, a path, a hub id, a (model, tokenizer) pair, a pipeline, or lmgate.fixture(...).",
    "reference": "The model to compare with, given as a model is.",
    "dataset": "A name of lmgate.yaml, a path, a hub id, texts, mappings, a datasets.Dataset, or lmgate.fixture(...).",
    "limit": "The worst value that passes, in the metric's unit.",
    "tolerance": f"How much worse passes: {_TOLERANCE}",
    "against": "'baseline' for the committed baseline, or a model that is measured on the same data.",
    "confidence": "One-sided level, such as 0.95, of the bound that has to pass; None judges the value alone.",
}


def arguments_help(name: str) -> dict[str, tuple[str, str]]:
    """Return default and meaning of each argument of a marker or fixture; an empty default where it has to be given."""
    if name == NO_REGRESSION:
        defaults = {"against": repr("baseline"), "confidence": "0.95"}
        own = {**_MEANINGS, "confidence": "One-sided level of the bounds that tell PASS, FAIL and INCONCLUSIVE apart."}
        own["..."] = "The arguments of the metric's own marker, by name."
        return {each: (defaults.get(each, ""), own[each]) for each in (*OF_NO_REGRESSION, "...")}
    row = MARKERS.get(name) or next(row for row in (*METRICS.values(), USERS_METRIC) if row.fixture == name)
    usual: dict[str, object] = {"confidence": None}
    meanings: dict[str, str] = {}
    for source, heading in _sources(row):
        meanings |= documented(source.__doc__ or "", heading)[1]
        usual |= {each.name: each.default for each in inspect.signature(source).parameters.values()}
    if "name" in usual:  # of a protocol
        usual["protocol"], meanings["protocol"] = usual["name"], meanings["name"]
    meanings |= _MEANINGS
    return {
        each.name: (_shown(usual.get(each.name, each.default)), meanings[each.name])
        for each in arguments_of(row, limit=name in MARKERS)
    }


def _shown(default: object) -> str:
    return "" if default is inspect.Parameter.empty else repr(default)


def documented(docstring: str, heading: str = "Attributes") -> tuple[str, dict[str, str]]:
    """Return a docstring's first paragraph, and what the part under a heading says of each name."""
    text = inspect.cleandoc(docstring)
    found = _ATTRIBUTE.findall(text.partition(f"\n\n{heading}:\n")[2].partition("\n\n")[0])
    return " ".join(text.partition("\n\n")[0].split()), {key: " ".join(said.split()) for key, said in found}


def _sources(row: Metric) -> Iterator[tuple[Callable[..., Any], str]]:
    """Yield what takes the arguments of a metric, and the heading of its docstring under which they are."""
    from pytest_lmgate.config.arguments.generation import GenerationSettings
    from pytest_lmgate.spec.protocol import Protocol
    from pytest_lmgate.spec.requests import ChoiceRequest, DivergenceRequest, MaskedRequest, TextRequest

    takes: dict[str, tuple[type, ...]] = {
        "likelihoods": (Protocol,),
        "pseudo-likelihoods": (MaskedRequest,),
        "choices": (ChoiceRequest,),
        "divergences": (Protocol, DivergenceRequest),
        "texts": (GenerationSettings, TextRequest),
    }
    yield from ((each, "Attributes") for each in takes[row.measures])
    if row.measures == "texts" and row.scored_by:
        yield row.scorer(), "Args"
