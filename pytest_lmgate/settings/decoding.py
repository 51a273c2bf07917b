"""Arguments and keys, decoded into records by msgspec: markers' arguments, fixtures' arguments, entries of lmgate.yaml.

Which arguments a marker or fixture takes derives from its metric's row and from the fields of the records. A fixture
``x_of`` takes what the marker ``x_max`` or ``x_min`` takes, less the limit.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import structs

from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.settings.gate_options import (
    ChoiceRequest,
    DivergenceRequest,
    GenerationRequest,
    MaskedRequest,
    SelfDivergenceRequest,
    TextRequest,
    WindowProtocol,
    fields_of,
)
from pytest_lmgate.settings.gates import (
    EvaluationSpec,
    Gate,
    How,
    LimitGate,
    NoRegression,
    Tolerance,
    decimal_hint,
    shown,
)
from pytest_lmgate.settings.metrics import (
    MARKERS,
    METRICS,
    NO_REGRESSION,
    RESERVED,
    USERS_METRIC,
    Metric,
    Statistics,
    metric_hint,
)

T = TypeVar("T", bound=msgspec.Struct)
REQUESTS: Mapping[Statistics, type[msgspec.Struct]] = {
    "likelihoods": WindowProtocol,
    "pseudo-likelihoods": MaskedRequest,
    "choices": ChoiceRequest,
    "divergences": DivergenceRequest,
    "self-divergences": SelfDivergenceRequest,
    "texts": TextRequest,
}
"""The record of how a metric is measured, by what a measurement of it keeps."""
TEXTS = ("predictions", "references")
LISTED = ("metric", "model", "dataset", "stride", "variant", "statistic")
"""Arguments that may be lists in lmgate.yaml, which make a gate of each value."""
_DERIVED = ("marker", "evaluation", "direction", "metric", "options")  # fields that no argument gives
_MEANT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("limit", "tolerance", "max", "min", "maximum", "minimum", "threshold", "bound"), ("limit", "tolerance")
    ),
    "against": ("reference",),
    **dict.fromkeys(("reference", "baseline", "base", "ref"), ("reference", "against")),
    **dict.fromkeys(("candidate", "checkpoint"), ("model",)),
    "data": ("dataset",),
    "max_tokens": ("max_new_tokens",),
    **dict.fromkeys(("window", "context", "context_length"), ("max_length",)),
}
"""What people write for an argument, and those that they may mean: the first that a marker has."""


def flat_fields(kind: type[msgspec.Struct]) -> Iterator[tuple[structs.FieldInfo, type[msgspec.Struct]]]:
    """Yield a record's fields and the record that has each; a field that is a record stands for its own fields."""
    for field in fields_of(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct) and field.type is not EvaluationSpec:
            yield from flat_fields(field.type)
        elif field.encode_name not in _DERIVED:
            yield field, kind


def arguments_of(name: str, row: Metric | None = None) -> list[Parameter]:
    """Return the parameters of a marker or a fixture, with the types that decode them.

    Args:
        name: Of the marker or fixture.
        row: Of the metric, for ``no_regression``, which takes the arguments of the metric's own marker by name.
    """
    is_fixture = name not in MARKERS and name != NO_REGRESSION
    row = row or MARKERS.get(name) or next(each for each in (*METRICS.values(), USERS_METRIC) if each.fixture == name)
    takes_texts = is_fixture and row.measures == "texts"
    positional = [_positional(each, None if takes_texts else Parameter.empty) for each in ("model", "dataset")]
    if row is USERS_METRIC or name == NO_REGRESSION:
        positional.insert(0, _positional("metric"))
    named: dict[str, Parameter] = {each: _named(each, None) for each in row.options}
    named |= {field.encode_name: _parameter(field) for field, _ in flat_fields(REQUESTS[row.measures])}
    if row.usual:
        named[row.usual[0]] = named[row.usual[0]].replace(default=row.usual[1])
    for each, _ in row.fixed:
        named.pop(each, None)
    if not takes_texts:
        named = {each: parameter for each, parameter in named.items() if each not in TEXTS}
    if "reference" in named and name != NO_REGRESSION:
        positional.insert(1, _positional(named.pop("reference").name))
    judging = [] if is_fixture else [_parameter(field) for field, _ in flat_fields(_kind(name))]
    positional += [each.replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for each in judging[:1]]  # limit or tolerance
    if row.usual and row.variant_follows_limit and name != NO_REGRESSION:
        positional.append(named.pop(row.usual[0]).replace(kind=Parameter.POSITIONAL_OR_KEYWORD))
    return [*positional, *named.values(), *judging[1:]]


def arguments_taken(marker: str, metric: object = None) -> set[str]:
    """Return the names of the arguments of a marker; those of ``no_regression`` depend on the metric."""
    row = MARKERS.get(marker) or METRICS.get(metric if isinstance(metric, str) else "", USERS_METRIC)
    return {each.name for each in arguments_of(marker, row)}


@functools.cache
def gate_arguments() -> frozenset[str]:
    """Return the names of all arguments that some gate of lmgate.yaml takes."""
    taken = [arguments_taken(marker) for marker in MARKERS]
    return frozenset({"marks"}.union(*taken, *(arguments_taken(NO_REGRESSION, metric) for metric in METRICS)))


def _kind(marker: str) -> type[LimitGate] | type[NoRegression]:
    return NoRegression if marker == NO_REGRESSION else LimitGate


def _positional(name: str, default: object = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=Any)


def _named(name: str, default: object, annotation: object = Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _parameter(field: structs.FieldInfo) -> Parameter:
    return _named(field.encode_name, Parameter.empty if field.required else field.default, field.type)


def parse_marker(marker: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Gate:
    row, hint = (MARKERS[marker], "") if marker in MARKERS else _compared_metric(args, kwargs)
    given = _bound(marker, arguments_of(marker, row), args, kwargs, hint)
    judging = {field.encode_name: given.pop(field.encode_name) for field, _ in flat_fields(_kind(marker))
               if field.encode_name in given}  # fmt: skip
    if marker in MARKERS:
        check_limit(marker, row, judging["limit"])
    else:
        sizes = [name for name in ("tolerance", "within") if judging.get(name) is not None]
        if len(sizes) != 1:
            got = "both" if sizes else "neither"
            raise ConfigError(f"tolerance, within: expected exactly one of them, got {got}{hint}")
        _ask_about_percent(row, sizes[0], judging[sizes[0]])
        allowed = Tolerance.parse(judging[sizes[0]], sizes[0])
        judging |= {sizes[0]: allowed, "direction": row.direction}
        if row is not USERS_METRIC:
            del given["metric"]
        if is_invalid_reference(judging.get("against", "baseline")):
            against = judging["against"]
            raise ConfigError.of("against", f'expected "baseline", the name of a model or a model, got {against!r}')
        if row.direction is not None:
            allowed.require_that_it_can_fail(row.name, row.direction, row.highest)
    what = _evaluation(row, given)
    gate = convert({"marker": marker, "evaluation": what, **judging}, _kind(marker))
    if gate.confidence is not None and isinstance(what.how, DivergenceRequest) and what.how.statistic != "mean":
        raise ConfigError.of(
            "statistic", f"expected 'mean', got {what.how.statistic!r}, which is not a mean and has no noise estimate"
        )
    return gate


def parse_fixture_call(fixture: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EvaluationSpec:
    row = next((row for row in METRICS.values() if row.fixture == fixture), USERS_METRIC)
    return _evaluation(row, _bound(fixture, arguments_of(fixture), args, kwargs))


def _compared_metric(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Metric, str]:
    """Return the row of the metric that ``no_regression`` names; an unknown metric is a user's."""
    metric = args[0] if args else kwargs.get("metric")
    metric = metric if isinstance(metric, str) else ""
    row = METRICS.get(metric, USERS_METRIC)
    if not row.is_comparable:
        known = ", ".join(each.name for each in (*METRICS.values(), USERS_METRIC) if each.is_comparable)
        why = "is many numbers, not one"
        if row.is_number:
            why = f"is rounding in any sound model, of texts that the model writes itself: use {row.markers[0]} instead"
        raise ConfigError.of("metric", f"{metric!r} {why}; expected one of {known}")
    if not metric or metric in RESERVED:
        return row, ""
    hint = f"; {metric!r} is not a metric of pytest-lmgate, so it must be registered by a conftest.py"
    return row, hint + metric_hint(metric)


def check_limit(marker: str, row: Metric, limit: object) -> None:
    """Refuse a limit by which nothing could be judged; what is no number, the record refuses."""
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not -math.inf < limit < math.inf:
        return
    if limit < row.lowest:
        expected = "a positive number" if row.lowest > 0 else "a number from 0"
        raise ConfigError.of("limit", f"expected {expected}, got {limit!r}: no value could be judged")
    if row.highest is not None and limit > row.highest:
        raise ConfigError.of(
            "limit", f"{marker} is on a scale from 0 to {row.highest}, got {limit!r}: no value could reach it"
        )
    if row.direction == "lower" and limit == row.highest:
        raise ConfigError.of("limit", f"expected less than {row.highest}, got {limit!r}: {marker} could never fail")
    if row.highest == 100 and 0.01 < limit < 1:  # as a share of 1; a tiny limit that anything passes is meant so
        raise ConfigError.of(
            "limit",
            f"{marker} is on a scale from 0 to 100, got {limit!r}: write {100 * limit:g} if you meant percent; for a "
            "model below 1 point use no_regression",
        )


def _ask_about_percent(row: Metric, name: str, tolerance: object) -> None:
    """Refuse a whole number in the unit of a metric without an upper end, where a percentage may be meant."""
    if type(tolerance) is int and tolerance > 0 and row.highest is None and row.unit not in ("", "points"):
        raise ConfigError.of(
            name,
            f'expected a percentage or a number with a dot, got {tolerance}: write "{tolerance}%" for percent of the '
            f"reference, or {tolerance}.0 for {tolerance} {row.unit}",
        )


def _bound(
    name: str, parameters: Sequence[Parameter], args: Sequence[Any], kwargs: Mapping[str, Any], hint: str = ""
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


def _evaluation(row: Metric, given: dict[str, Any]) -> EvaluationSpec:
    name = given.pop("metric") if row is USERS_METRIC else row.name
    if not isinstance(name, str) or not name:
        raise ConfigError.of("metric", f"expected the name of a registered metric, got {name!r}")
    if row is USERS_METRIC and name in RESERVED:
        raise ConfigError.of("metric", f"{name!r} has its own markers and fixture; use these")
    model, dataset = given.pop("model", None), given.pop("dataset", None)
    if "predictions" in given:
        if model is not None or dataset is not None:
            raise ConfigError.of("predictions", "give texts, or a model and a dataset, not both")
        if generation := [key for key in GenerationRequest.__struct_fields__ if key in given]:
            raise ConfigError(f"{', '.join(generation)}: only for a model that generates, not with predictions")
    else:
        if "references" in given:
            raise ConfigError.of(
                "references", "only for predictions; a dataset names its columns of references in lmgate.yaml"
            )
        named = {"model": model, "dataset": dataset}
        if "reference" in given:
            named["reference"] = given["reference"]
        for key, value in named.items():
            if is_invalid_reference(value):
                raise ConfigError.of(
                    key, f"expected a name of lmgate.yaml, a path, a hub id or lmgate.fixture(...), got {value!r}"
                )
    return EvaluationSpec(name, model, dataset, _request(name, row, {**dict(row.fixed), **given}))


def _request(metric: str, row: Metric, given: dict[str, Any]) -> How:
    if row.measures == "texts":
        options = tuple(sorted((key, given.pop(key)) for key in row.options if key in given))
        texts = {key: given.pop(key) for key in TEXTS if key in given}
        generation = {key: given.pop(key) for key in GenerationRequest.__struct_fields__ if key in given}
        request = convert({"metric": metric, "options": (), **given}, TextRequest)
        return structs.replace(request, options=options, generation=convert(generation, GenerationRequest), **texts)
    if row.measures == "divergences":
        own = {key: given.pop(key) for key in DivergenceRequest.__struct_fields__ if key != "protocol" and key in given}
        return convert({**own, "protocol": convert(given, WindowProtocol)}, DivergenceRequest)
    found: How = convert(given, REQUESTS[row.measures])  # type: ignore[assignment]  # of How
    return found


def is_invalid_reference(given: object) -> bool:
    """Whether something given for a model or a dataset can be neither: nothing, a number or an empty text."""
    return given is None or isinstance(given, int | float) or (isinstance(given, str) and not given)


def convert(given: Mapping[str, Any], kind: type[T], *, strict: bool = True) -> T:
    """Make a record of arguments or keys; without `strict`, texts may be numbers."""
    # msgspec takes no subclass of a number, such as NumPy's float64.
    given = {key: float(value) if isinstance(value, float) else value for key, value in given.items()}
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    numbers = ((key, value) for key, value in given.items() if isinstance(value, int | float))
    wrong = next((key for key, value in numbers if not abs(value) <= sys.float_info.max), None)
    if wrong is None:
        try:
            return msgspec.convert(given, kind, strict=strict)
        except msgspec.ValidationError as error:  # as in "Expected `int`, got `str` - at `$.limit`"
            if absent := re.search(r"missing required field `(\w+)`$", str(error)):
                raise ConfigError.of(absent[1], "it is required, but it is not there") from None
            wrong = re.split(r"\W", str(error).rpartition("$.")[2])[0]
    field = next(each for each in fields_of(kind) if each.encode_name == wrong)
    raise ConfigError.of(wrong, _problem(field, given[wrong]))


def _problem(field: structs.FieldInfo, value: object) -> str:
    expected, names, synonyms = _expected(field.type, with_none=field.default is not None)
    near = nearest(str(value), names, synonyms) if names else ""
    if isinstance(value, float) and not math.isfinite(value):
        expected = expected.replace("a number", "a finite number", 1)
    hint = decimal_hint(value) or _quoted(field.encode_name, value)
    return f"expected {expected}{';' if names else ','} got {shown(value)}{near}{hint}"


def _quoted(key: str, value: object) -> str:
    """Say how to quote a template that YAML reads as a mapping: ``prompt: {question}``."""
    if not isinstance(value, dict) or not value or any(each is not None for each in value.values()):
        return ""
    return f"; it needs quotes: {key}: '{{{', '.join(map(str, value))}}}'"


_WORDS = {bool: "true or false", str: "a text", int: "a whole number", float: "a number", dict: "names with values"}


def _expected(kind: Any, *, with_none: bool = False) -> tuple[str, list[str], Mapping[str, str]]:
    """Return an annotation in words, the names that it allows, if it lists them, and other words for these."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        names = list(map(str, arguments))
        return (f"one of {', '.join(names)}", names, {}) if len(names) > 1 else (names[0], [], {})
    if origin is Annotated:
        (words, names, synonyms), meta = _expected(arguments[0]), arguments[1]
        bounds = {"from": meta.ge, "above": meta.gt, "up to": meta.le, "below": meta.lt}
        words += " and".join(f" {word} {value:g}" for word, value in bounds.items() if value is not None)
        if meta.min_length:
            what, comma, each = words.partition(",")  # of a list, the words go on with what each of it is
            words = f"{what} that is not empty{comma}{each}"
        extra = meta.extra or {}
        return extra.get("words", words), extra.get("names", names), extra.get("synonyms", synonyms)
    if origin in (Union, UnionType):
        parts = [_expected(each) for each in arguments if each not in (type(None), msgspec.UnsetType)]
        is_float = parts[0][0].startswith("a number")  # which a whole number is too
        alternatives = [words for words, _, _ in parts if not (is_float and words.startswith("a whole number"))]
        if with_none and type(None) in arguments:
            alternatives.append("None")
        return " or ".join(alternatives), parts[0][1], parts[0][2]
    if origin in (list, tuple):
        return f"a list, each {_expected(arguments[0])[0]}", [], {}
    return _WORDS.get(origin or kind, ""), [], {}  # of a record, its annotation says the words
