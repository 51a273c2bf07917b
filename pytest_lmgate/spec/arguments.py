"""The arguments that a metric's marker and fixture take, by the metric's row; light, since pytest's help shows them."""

from __future__ import annotations

__all__ = [
    "GENERATION",
    "NO_REGRESSION",
    "OF_NO_REGRESSION",
    "TEXTS",
    "accepts_texts",
    "arguments_of",
    "arguments_of_no_regression",
    "shown",
]

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import Parameter

from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.metrics.table import USERS_METRIC, Metric, Statistics

NO_REGRESSION = "no_regression"
GENERATION = tuple(field.name for field in fields(GenerationSettings))
TEXTS = ("predictions", "references")

_TWO_MODELS = ("stride", "max_length", "protocol", "allow_beyond_context", "add_bos_token")
_ONE_MODEL = ("stride", "max_length", "protocol", "unit", "average", "allow_beyond_context", "add_bos_token")
_SHARED: Mapping[Statistics, tuple[str, ...]] = {
    "likelihoods": _ONE_MODEL,
    "pseudo-likelihoods": ("max_length",),
    "choices": ("max_length",),
    "divergences": _TWO_MODELS,
    "texts": GENERATION,
}
"""The arguments that all metrics have that are measured in the same way."""
OF_NO_REGRESSION = ("metric", "model", "dataset", "tolerance", "against", "confidence")
"""The arguments of ``no_regression`` itself, whatever the metric."""


def accepts_texts(row: Metric) -> bool:
    """Return whether the fixture may be given texts in place of model and dataset."""
    return row.measures == "texts"


def arguments_of(row: Metric, *, limit: bool) -> list[Parameter]:
    """Return the parameters of the marker (`limit`) or of the fixture."""
    given_texts = accepts_texts(row) and not limit
    optional = None if given_texts else Parameter.empty
    found = [_positional("metric")] if row is USERS_METRIC else []
    things = ("model", "reference", "dataset") if row.measures == "divergences" else ("model", "dataset")
    found += [_positional(name, optional) for name in things]
    if limit:
        found.append(_positional("limit"))
    usual = dict([row.usual] if row.usual else [])
    early = row.usual[0] if row.usual and row.variant_follows_limit else None
    if early:
        found.append(_positional(early, usual[early]))
    fixed = [name for name, _ in row.fixed]
    names = [*row.options, *_SHARED[row.measures], *(TEXTS if given_texts else ())]
    found += [_keyword(name, usual.get(name)) for name in names if name not in fixed and name != early]
    return found + ([_keyword("confidence", None)] if limit else [])


def arguments_of_no_regression(row: Metric, *, against: object, confidence: object) -> list[Parameter]:
    """Return the parameters of ``no_regression`` for a metric: its own arguments are given by name."""
    own = arguments_of(row, limit=True)
    return [
        _positional("metric"),
        *(each for each in own if each.name in ("model", "dataset")),
        _positional("tolerance"),
        _keyword("against", against),
        _keyword("confidence", confidence),
        *(each.replace(kind=Parameter.KEYWORD_ONLY) for each in own if each.name not in (*OF_NO_REGRESSION, "limit")),
    ]


def shown(name: str, parameters: Sequence[Parameter]) -> str:
    """Return a call as help shows it: ``accuracy_min(model, dataset, limit, *, variant='acc', max_length)``."""
    bare = [each.replace(default=Parameter.empty) if each.default is None else each for each in parameters]
    return f"{name}{inspect.Signature(bare)}"


def _positional(name: str, default: object = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default)


def _keyword(name: str, default: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default)
