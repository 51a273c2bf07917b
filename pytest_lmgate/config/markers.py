"""Arguments of markers and fixtures, checked: gates, and what a fixture is to measure.

A fixture ``x_of`` takes what the marker ``x_max`` or ``x_min`` takes, less the limit. `_METRICS` at the end is the
table of all of them.
"""

from __future__ import annotations

__all__ = ["parse_fixture_call", "parse_marker"]

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from pytest_lmgate.config.gates import EvaluationSpec, Gate, How, NoRegression
from pytest_lmgate.config.generation import GenerationSettings
from pytest_lmgate.config.protocol import Protocol
from pytest_lmgate.config.requests import ChoiceRequest, DivergenceRequest, MaskedRequest, TextRequest
from pytest_lmgate.config.tolerance import Tolerance
from pytest_lmgate.errors import ConfigError, nearest


def parse_marker(marker: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Gate | NoRegression:
    """Turn a marker's arguments into a gate.

    Raises:
        ConfigError: An argument is unknown, missing, or not what it should be.
    """
    if marker == NoRegression.marker:
        return _no_regression(args, kwargs)
    entry = _METRICS[marker.rpartition("_")[0]]
    level = inspect.Parameter("confidence", _KEYWORD, default=None)
    arguments = _bound(marker, [*entry.parameters(limit=True), level], args, kwargs)
    limit, confidence = arguments.pop("limit"), arguments.pop("confidence", None)
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise ConfigError(f"limit: expected a number, got {limit!r}")
    if not entry.lowest <= limit <= sys.float_info.max:
        which = "a positive finite number" if entry.lowest > 0 else "a finite number" + " from 0" * (entry.lowest == 0)
        raise ConfigError(f"limit: expected {which}, got {limit!r}: nothing could be judged by it")
    if entry.scale is not None and limit > entry.scale:
        raise ConfigError(
            f"limit: {marker} is on a scale from 0 to {entry.scale}, got {limit!r}: nothing could reach it"
        )
    what = entry.evaluation(arguments)
    if confidence is not None:
        _check_confidence(confidence, what)
    return Gate(marker, what, float(limit), None if confidence is None else float(confidence))


def parse_fixture_call(fixture: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EvaluationSpec:
    """Turn the arguments of a fixture such as ``ppl_of`` into what to measure.

    Raises:
        ConfigError: Likewise.
    """
    entry = _METRICS[fixture.removesuffix("_of")]
    return entry.evaluation(_bound(fixture, entry.parameters(limit=False), args, kwargs))


def _no_regression(args: Sequence[Any], kwargs: Mapping[str, Any]) -> NoRegression:
    """The metric's own arguments are those of its marker, by name; a name that is no marker's is a user's metric."""
    own = {"metric", "model", "dataset", "tolerance", "against", "confidence"}
    first = inspect.Parameter("metric", _POSITIONAL)
    metric = args[0] if args else kwargs.get("metric")
    metric = metric if isinstance(metric, str) else ""
    known = [name for name, entry in _METRICS.items() if entry.can_regress]
    if metric in _METRICS and metric not in known:
        raise ConfigError(f"metric: {metric!r} is many numbers, not one; expected one of {', '.join(known)}")
    entry = _METRICS.get(metric, _METRICS["metric"])
    parameters = [first, *(p for p in entry.parameters(limit=True) if p.name in ("model", "dataset"))]
    parameters.append(inspect.Parameter("tolerance", _POSITIONAL))
    parameters.append(inspect.Parameter("against", _KEYWORD, default=_BASELINE))
    parameters.append(inspect.Parameter("confidence", _KEYWORD, default=_CONFIDENCE))
    parameters += [p.replace(kind=_KEYWORD) for p in entry.parameters(limit=True) if p.name not in {*own, "limit"}]
    try:
        arguments = _bound(NoRegression.marker, parameters, args, kwargs)
    except ConfigError as error:
        if not metric or metric in _METRICS:
            raise
        raise ConfigError(
            f"{error}; the metric {metric!r} is taken for a registered one, since pytest-lmgate has none of that name"
        ) from None
    tolerance = Tolerance.parse(arguments.pop("tolerance"))
    against, confidence = arguments.pop("against", _BASELINE), arguments.pop("confidence", _CONFIDENCE)
    if against is None or isinstance(against, int | float) or (isinstance(against, str) and not against):
        raise ConfigError(f'against: expected "{_BASELINE}", the name of a model or a model, got {against!r}')
    if not entry.named:
        del arguments["metric"]
        tolerance.require_that_it_can_fail(entry.name, entry.direction, entry.scale)
    what = entry.evaluation(arguments)
    _check_confidence(confidence, what)
    return NoRegression(
        what,
        None if against == _BASELINE else against,
        tolerance,
        float(confidence),
        None if entry.named else entry.direction,
    )


def _check_confidence(confidence: object, what: EvaluationSpec) -> None:
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0.5 < confidence < 1:
        raise ConfigError(f"confidence: expected a one-sided level above 0.5 and below 1, got {confidence!r}")
    if isinstance(what.how, DivergenceRequest) and what.how.statistic != "mean":
        raise ConfigError(
            f"statistic: expected 'mean', got {what.how.statistic!r}, which is no mean and has no noise to judge by"
        )


def _bound(
    name: str, parameters: Sequence[inspect.Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    signature = inspect.Signature(parameters)
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        unknown = [key for key in kwargs if key not in signature.parameters]
        # A wrong name is told before what is missing, for which it may stand.
        wrong = f"got an unexpected keyword argument {unknown[0]!r}" if unknown else str(error)
        hint = nearest(unknown[0], signature.parameters) if unknown else ""
        raise ConfigError(f"{wrong}{hint}; expected {name}({', '.join(signature.parameters)})") from None


_BASELINE, _CONFIDENCE = "baseline", 0.95
_POSITIONAL, _KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
_PROTOCOL = {
    "stride": "stride",
    "max_length": "max_length",
    "protocol": "name",
    "unit": "unit",
    "average": "average",
    "allow_beyond_context": "allow_beyond_context",
    "add_bos_token": "add_bos_token",
}
_GENERATION = tuple(field.name for field in fields(GenerationSettings))
_TEXTS = ("predictions", "references")


@dataclass(frozen=True)
class _Metric:
    """One metric's arguments, less model, dataset and limit, which all have.

    Attributes:
        keywords: Names of the arguments; what is not said keeps its default where it is used.
        how: Makes of those that were said how to measure.
        scale: The largest value there is, where there is one.
        lowest: The lowest limit that says something.
        makes_texts: Whether a fixture may be given texts in place of model and dataset.
        named: Whether the metric's name comes first (users' metrics).
        fourth: A keyword that may also stand behind the limit without its name.
        can_regress: Whether it is one number, which another model's can be compared with.
        compares: Whether it is of two models: a reference stands behind the model.
    """

    name: str
    keywords: tuple[str, ...]
    how: Callable[[str, dict[str, Any]], How]
    scale: float | None = None
    lowest: float = math.ulp(0)  # above 0
    makes_texts: bool = False
    named: bool = False
    fourth: str | None = None
    can_regress: bool = True
    compares: bool = False

    @property
    def direction(self) -> Literal["lower", "higher"]:
        """Which values are better: what has a largest value is to be near it."""
        return "lower" if self.scale is None else "higher"

    def parameters(self, *, limit: bool) -> list[inspect.Parameter]:
        """Return the signature of the marker (`limit`) or of the fixture."""
        optional = None if self.makes_texts and not limit else inspect.Parameter.empty
        found = [inspect.Parameter("metric", _POSITIONAL)] if self.named else []
        things = ("model", "reference", "dataset") if self.compares else ("model", "dataset")
        found += [inspect.Parameter(key, _POSITIONAL, default=optional) for key in things]
        if limit:
            found.append(inspect.Parameter("limit", _POSITIONAL))
        if self.fourth:
            found.append(inspect.Parameter(self.fourth, _POSITIONAL, default=None))
        keywords = [*self.keywords, *(_TEXTS if self.makes_texts and not limit else ())]
        return found + [inspect.Parameter(key, _KEYWORD, default=None) for key in keywords if key != self.fourth]

    def evaluation(self, arguments: dict[str, Any]) -> EvaluationSpec:
        """Make of bound arguments what to measure."""
        name = arguments.pop("metric") if self.named else self.name
        if not isinstance(name, str) or not name:
            raise ConfigError(f"metric: expected the name of a registered metric, got {name!r}")
        if self.named and name in _METRICS:
            raise ConfigError(f"metric: {name!r} has markers and a fixture of its own; use these")
        model, dataset = arguments.pop("model", None), arguments.pop("dataset", None)
        if "predictions" in arguments:
            if model is not None or dataset is not None:
                raise ConfigError("predictions: give texts, or a model and a dataset, not both")
            if generation := [key for key in _GENERATION if key in arguments]:
                raise ConfigError(
                    f"{', '.join(generation)}: of a model that generates; the predictions are there already"
                )
        else:
            if "references" in arguments:
                raise ConfigError("references: go with predictions; a dataset names the columns that hold its own")
            for key, value in (("model", model), ("dataset", dataset)):
                if value is None or isinstance(value, int | float) or (isinstance(value, str) and not value):
                    raise ConfigError(
                        f"{key}: expected a name of lmgate.yaml, a path, a hub id or lmgate.fixture(...), got {value!r}"
                    )
        return EvaluationSpec(name, model, dataset, self.how(name, arguments))


def _protocol(_: str, said: dict[str, Any]) -> Protocol:
    return Protocol(**{_PROTOCOL[key]: value for key, value in said.items()})


def _bits(_: str, said: dict[str, Any]) -> Protocol:
    return Protocol(unit="bits_per_byte", **{_PROTOCOL[key]: value for key, value in said.items()})


def _divergence(_: str, said: dict[str, Any]) -> DivergenceRequest:
    own = {key: said.pop(key) for key in ("reference", "statistic") if key in said}
    return DivergenceRequest(protocol=Protocol(**{_PROTOCOL[key]: value for key, value in said.items()}), **own)


def _texts(name: str, said: dict[str, Any]) -> TextRequest:
    generation = {key: said.pop(key) for key in _GENERATION if key in said}
    given = {key: said.pop(key) for key in _TEXTS if key in said}
    return TextRequest(name, tuple(sorted(said.items())), GenerationSettings.of(**generation), **given)


def _text_metric(name: str, options: tuple[str, ...] = (), **others: Any) -> _Metric:
    return _Metric(name, (*options, *_GENERATION), _texts, makes_texts=True, **others)


_BLEU = ("max_ngram_order", "tokenize", "smooth_method", "smooth_value", "lowercase", "effective_order")
_CHRF = ("char_order", "word_order", "beta", "lowercase", "whitespace", "eps_smoothing")
_TER = ("normalized", "no_punct", "asian_support", "case_sensitive")
_ROUGE = ("variant", "stemmer", "multi_reference", "tokenizer", "convention")
_EXACT = ("ignore_case", "ignore_punctuation", "strip")
_BPB = tuple(key for key in _PROTOCOL if key not in ("unit", "average"))
_PAIR: dict[str, Any] = {"how": _divergence, "compares": True}
_METRICS = {
    "ppl": _Metric("ppl", tuple(_PROTOCOL), _protocol),
    "bpb": _Metric("bpb", _BPB, _bits),
    "kl": _Metric("kl", ("statistic", *_BPB), lowest=0, **_PAIR),
    "top1": _Metric("top1", _BPB, scale=1, **_PAIR),
    "compare": _Metric("compare", _BPB, can_regress=False, **_PAIR),
    "pppl": _Metric("pppl", ("max_length",), lambda _, said: MaskedRequest(**said)),
    "accuracy": _Metric("accuracy", ("variant", "max_length"), lambda _, said: ChoiceRequest(**said), scale=1),
    "bleu": _text_metric("bleu", _BLEU, scale=100),
    "chrf": _text_metric("chrf", _CHRF, scale=100),
    "ter": _text_metric("ter", _TER, lowest=0),
    "rouge": _text_metric("rouge", _ROUGE, scale=1, fourth="variant"),
    "exact": _text_metric("exact", _EXACT, scale=1),
    "metric": _text_metric("metric", named=True, lowest=-sys.float_info.max),
}
