"""Arguments of markers and fixtures, checked: gates, and what a fixture is to measure.

A fixture ``x_of`` takes what the marker ``x_max`` or ``x_min`` takes, less the limit. Which metrics exist is in
`pytest_lmgate.metrics.table`, and which arguments they take in `arguments`.
"""

from __future__ import annotations

__all__ = ["parse_fixture_call", "parse_marker"]

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.config.arguments.tolerance import Tolerance, decimal_hint
from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.metrics.table import MARKERS, METRICS, RESERVED, USERS_METRIC, Metric, Statistics, metric_hint
from pytest_lmgate.spec.arguments import GENERATION, NO_REGRESSION, TEXTS, arguments_of, arguments_of_no_regression
from pytest_lmgate.spec.gates import EvaluationSpec, Gate, How, NoRegression
from pytest_lmgate.spec.protocol import Protocol
from pytest_lmgate.spec.requests import ChoiceRequest, DivergenceRequest, MaskedRequest, TextRequest, is_no_name

_BASELINE, _CONFIDENCE = "baseline", 0.95
_LIMIT = ("limit", "tolerance")
_MEANT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("limit", "tolerance", "max", "min", "maximum", "minimum", "threshold", "bound"), _LIMIT),
    "against": ("reference",),
    **dict.fromkeys(("reference", "baseline", "base", "ref"), ("reference", "against")),
    **dict.fromkeys(("candidate", "checkpoint"), ("model",)),
    "data": ("dataset",),
    "max_tokens": ("max_new_tokens",),
    **dict.fromkeys(("window", "context", "context_length"), ("max_length",)),
}
"""What people write for an argument, and those that they may mean: the first that a marker has."""


def parse_marker(marker: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Gate | NoRegression:
    """Turn a marker's arguments into a gate.

    Raises:
        ConfigError: An argument is unknown, missing, or not what it should be.
    """
    if marker == NO_REGRESSION:
        return _no_regression(args, kwargs)
    row = MARKERS[marker]
    arguments = _bound(marker, arguments_of(row, limit=True), args, kwargs)
    limit, confidence = arguments.pop("limit"), arguments.pop("confidence", None)
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise ConfigError.of("limit", f"expected a number, got {limit!r}{decimal_hint(limit)}")
    if not row.lowest <= limit <= sys.float_info.max:
        which = "a positive finite number" if row.lowest > 0 else "a finite number" + " from 0" * (row.lowest == 0)
        raise ConfigError.of("limit", f"expected {which}, got {limit!r}: nothing could be judged by it")
    if row.scale is not None and limit > row.scale:
        raise ConfigError.of(
            "limit", f"{marker} is on a scale from 0 to {row.scale}, got {limit!r}: nothing could reach it"
        )
    if row.scale == 100 and 0.01 < limit < 1:  # as a share of 1; a tiny limit that anything passes is meant so
        raise ConfigError.of(
            "limit",
            f"{marker} is on a scale from 0 to 100, got {limit!r}: write {100 * limit:g} if that is meant; for a model "
            "that really is below 1 point use no_regression",
        )
    what = _evaluation(row, arguments)
    if confidence is not None:
        _check_confidence(confidence, what)
    return Gate(marker, what, float(limit), None if confidence is None else float(confidence))


def parse_fixture_call(fixture: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EvaluationSpec:
    """Turn the arguments of a fixture such as ``ppl_of`` into what to measure.

    Raises:
        ConfigError: An argument is unknown, missing, or not what it should be.
    """
    row = next((row for row in METRICS.values() if row.fixture == fixture), USERS_METRIC)
    return _evaluation(row, _bound(fixture, arguments_of(row, limit=False), args, kwargs))


def _no_regression(args: Sequence[Any], kwargs: Mapping[str, Any]) -> NoRegression:
    """The metric's own arguments are those of its marker, by name; a name that is no marker's is a user's metric."""
    metric = args[0] if args else kwargs.get("metric")
    metric = metric if isinstance(metric, str) else ""
    row = METRICS.get(metric, USERS_METRIC)
    if not row.is_number:
        known = ", ".join(each.name for each in (*METRICS.values(), USERS_METRIC) if each.is_number)
        raise ConfigError.of("metric", f"{metric!r} is many numbers, not one; expected one of {known}")
    parameters = arguments_of_no_regression(row, against=_BASELINE, confidence=_CONFIDENCE)
    hint = ""
    if metric and metric not in RESERVED:
        hint = f"; {metric!r} is not a metric of pytest-lmgate, so it is taken for a registered metric"
        hint += metric_hint(metric)
    arguments = _bound(NO_REGRESSION, parameters, args, kwargs, hint)
    tolerance = Tolerance.parse(arguments.pop("tolerance"))
    against, confidence = arguments.pop("against", _BASELINE), arguments.pop("confidence", _CONFIDENCE)
    if is_no_name(against):
        raise ConfigError.of("against", f'expected "{_BASELINE}", the name of a model or a model, got {against!r}')
    if row is not USERS_METRIC:
        del arguments["metric"]
    if row.direction is not None:
        tolerance.require_that_it_can_fail(row.name, row.direction, row.scale)
    what = _evaluation(row, arguments)
    _check_confidence(confidence, what)
    return NoRegression(what, None if against == _BASELINE else against, tolerance, float(confidence), row.direction)


def _check_confidence(confidence: object, what: EvaluationSpec) -> None:
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0.5 < confidence < 1:
        raise ConfigError.of("confidence", f"expected a one-sided level above 0.5 and below 1, got {confidence!r}")
    if isinstance(what.how, DivergenceRequest) and what.how.statistic != "mean":
        raise ConfigError.of(
            "statistic", f"expected 'mean', got {what.how.statistic!r}, which is no mean and has no noise to judge by"
        )


def _bound(
    name: str, parameters: Sequence[inspect.Parameter], args: Sequence[Any], kwargs: Mapping[str, Any], hint: str = ""
) -> dict[str, Any]:
    signature = inspect.Signature(parameters)
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        names = list(signature.parameters)
        if len(args) > (positional := sum(each.kind is not each.KEYWORD_ONLY for each in parameters)):
            names.insert(positional, "*")
        expected = f"expected {name}({', '.join(names)}){hint}"
        # A wrong name is told before what is missing, for which it may stand.
        if unknown := next((key for key in kwargs if key not in signature.parameters), None):
            meant = [name for name in _MEANT.get(unknown.lower(), ()) if name in signature.parameters]
            near = nearest(unknown, signature.parameters, {unknown.lower(): name for name in meant[:1]})
            raise ConfigError.of(unknown, f"unknown argument{near}; {expected}") from None
        raise ConfigError(f"{error}; {expected}") from None


def _evaluation(row: Metric, arguments: dict[str, Any]) -> EvaluationSpec:
    name = arguments.pop("metric") if row is USERS_METRIC else row.name
    if not isinstance(name, str) or not name:
        raise ConfigError.of("metric", f"expected the name of a registered metric, got {name!r}")
    if row is USERS_METRIC and name in RESERVED:
        raise ConfigError.of("metric", f"{name!r} has markers and a fixture of its own; use these")
    model, dataset = arguments.pop("model", None), arguments.pop("dataset", None)
    if "predictions" in arguments:
        if model is not None or dataset is not None:
            raise ConfigError.of("predictions", "give texts, or a model and a dataset, not both")
        if generation := [key for key in GENERATION if key in arguments]:
            raise ConfigError(f"{', '.join(generation)}: for a model that generates, not beside predictions")
    else:
        if "references" in arguments:
            raise ConfigError.of(
                "references", "only for predictions; a dataset names its columns of references in lmgate.yaml"
            )
        for key, value in (("model", model), ("dataset", dataset)):
            if is_no_name(value):
                raise ConfigError.of(
                    key, f"expected a name of lmgate.yaml, a path, a hub id or lmgate.fixture(...), got {value!r}"
                )
    how = _REQUESTS[row.measures](name, {**dict(row.fixed), **arguments})
    return EvaluationSpec(name, model, dataset, how)


def _protocol(_: str, said: dict[str, Any]) -> Protocol:
    return Protocol(**{"name" if key == "protocol" else key: value for key, value in said.items()})


def _divergence(_: str, said: dict[str, Any]) -> DivergenceRequest:
    own = {key: said.pop(key) for key in ("reference", "statistic") if key in said}
    return DivergenceRequest(protocol=_protocol("", said), **own)


def _texts(name: str, said: dict[str, Any]) -> TextRequest:
    generation = {key: said.pop(key) for key in GENERATION if key in said}
    given = {key: said.pop(key) for key in TEXTS if key in said}
    return TextRequest(name, tuple(sorted(said.items())), GenerationSettings.of(**generation), **given)


_REQUESTS: Mapping[Statistics, Callable[[str, dict[str, Any]], How]] = {
    "likelihoods": _protocol,
    "pseudo-likelihoods": lambda _, said: MaskedRequest(**said),
    "choices": lambda _, said: ChoiceRequest(**said),
    "divergences": _divergence,
    "texts": _texts,
}
"""From a metric's name and arguments to how it is measured."""
