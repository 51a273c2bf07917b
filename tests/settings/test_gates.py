"""Markers' and fixtures' arguments: all are checked before anything is measured."""

import contextlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.errors import ConfigError
from pytest_lmgate.settings.decoding import parse_fixture_call, parse_marker
from pytest_lmgate.settings.gate_options import DivergenceRequest, WindowProtocol
from pytest_lmgate.settings.gates import EvaluationSpec, FixtureReference, LimitGate, Tolerance, fixture, model


def test_every_argument_arrives_in_its_place() -> None:
    how = {"max_length": 8, "unit": "word", "average": "token", "allow_beyond_context": True, "add_bos_token": None}
    gate = parse_marker("ppl_max", (), {"limit": 9, "dataset": "d", "model": "m", "protocol": "lm-eval", **how})
    assert gate.evaluation == EvaluationSpec("ppl", "m", "d", WindowProtocol(name="lm-eval", **how))
    assert (gate.limit, type(gate.limit)) == (9.0, float)


@pytest.mark.parametrize(
    ("marker", "args", "kwargs", "fact"),
    [
        ("ppl_max", (), {}, "'model'"),
        ("ppl_max", ("m", "d", 1.0), {"strid": 4}, "'stride'"),
        ("ppl_max", ("m", "d", 1.0, 512), {}, "too many positional"),
        ("ppl_max", ("m", "d", 1.0), {"limit": 2.0}, "'limit'"),
        ("ppl_max", ("", "d", 1.0), {}, "model: .*got ''"),
        ("ppl_max", ("m", "x", "d"), {}, "limit: .*got 'd'"),
        ("ppl_max", ("m", 16.5, 16.5), {}, "dataset: "),
        ("kl_max", ("m", "r", "d", 0.5), {"statistic": "p99", "confidence": 0.95}, "^statistic: .*'p99'"),
        ("kl_max", ("m", "r", "d", 0.5), {"statistic": "p999"}, "statistic: .*'p99.9'"),
        ("kl_max", ("m", "r", "d", 0.5), {"average": "window"}, "average: unknown argument"),
        ("kl_max", ("m", None, "d", 0.5), {}, "reference: "),
        ("top1_min", ("m", "r", "d", 0), {}, "^limit: .*got 0"),
        ("bleu_min", ("m", "d", 1.0), {"predictions": ["a"]}, "^predictions: "),
        ("no_regression", ("perplexity", "m", "d", "1%"), {"stride": 8}, "^stride: unknown .*'perplexity' .*'ppl'"),
        *(("no_regression", (metric, "m", "d", "1%"), {}, "^metric: ") for metric in (["ppl"], 3, None, "compare")),
        ("no_regression", ("self_kl", "m", "d", "1%"), {}, "^metric: 'self_kl' .*use self_kl_max"),
        *(
            ("no_regression", ("ppl", "m", "d", "1%"), {"against": against}, rf"^against: .*got {against!r}")
            for against in ("", 3, None)
        ),
        *(
            ("accuracy_min", ("m", "d", 0.5), {"confidence": confidence}, "^confidence: ")
            for confidence in (95, 0.5, 1, 0, -0.95, "0.95", True, math.nan)
        ),
    ],
)
def test_arguments_that_cannot_be_are_named(
    marker: str, args: tuple[Any, ...], kwargs: dict[str, Any], fact: str
) -> None:
    with pytest.raises(ConfigError, match=fact):
        parse_marker(marker, args, kwargs)


@pytest.mark.parametrize("limit", [True, False, None, "16.5", (16.5,), 16.5j, np.float32(16.5)])
def test_a_limit_that_is_not_a_number_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_marker("ppl_max", ("m", "d", limit), {})
    assert str(raised.value).startswith("limit: ")


@pytest.mark.parametrize("limit", [math.nan, -math.nan, math.inf, -math.inf, 0, 0.0, -0.0, -1, -16.5, 10**400])
def test_a_limit_that_could_not_judge_is_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match=r"^limit: "):
        parse_marker("ppl_max", ("m", "d", limit), {})


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False) | st.integers(1, 10**300))
def test_every_positive_finite_limit_is_kept_unrounded(limit: float) -> None:
    assert parse_marker("bpb_max", ("m", "d", limit), {}).limit == float(limit)


@pytest.mark.parametrize("name", ["", None, 3, ("a",)])
def test_a_fixture_reference_needs_a_name(name: Any) -> None:
    with pytest.raises(TypeError, match="expects the name of a pytest fixture, got"):
        fixture(name)


def test_a_limit_gate_may_be_asked_for_a_confidence() -> None:
    plain, gate = (parse_marker("top1_min", ("m", "r", "d", 1.0), how) for how in ({}, {"confidence": 0.95}))
    assert (plain.confidence, gate.confidence, gate.evaluation) == (None, 0.95, plain.evaluation)


def test_the_reference_stands_behind_the_model() -> None:
    gate = parse_marker("kl_max", ("q", "p", "d", 0.1), {"stride": 8, "max_length": 16})
    how = DivergenceRequest("p", WindowProtocol(stride=8, max_length=16))
    assert gate == LimitGate(marker="kl_max", evaluation=EvaluationSpec("kl", "q", "d", how), limit=0.1)
    assert (gate.label, gate.direction) == ("kl_max[q-p-d-max_length:16-stride:8]", "lower")


def test_everything_given_is_resolved() -> None:
    things = {name: FixtureReference(name) for name in ("q", "p", "d")}
    spec = parse_fixture_call("kl_of", tuple(things.values()), {})
    assert spec.given == [things["q"], things["d"], things["p"]]
    found = spec.resolved(lambda given: f"resolved {given.name}")
    assert (found.model, found.reference, found.dataset) == ("resolved q", "resolved p", "resolved d")
    assert spec.names == "q-p-d"


def test_a_percentage_is_relative_and_a_number_is_absolute() -> None:
    percentages = {"1%": 0.01, " 0.5 % ": 0.005, ".25%": 0.0025, "0%": 0.0, "100%": 1.0}
    assert {each: Tolerance.parse(each).size for each in percentages} == percentages
    assert all(Tolerance.parse(each).relative for each in percentages)
    assert [Tolerance.parse(each) for each in (0, 2, 0.01)] == [Tolerance(each, False) for each in (0.0, 2.0, 0.01)]


NO_PERCENTAGE = ("", "1", "0.01", "-1%", "101%", "150 %", "%", "1%%", "1e-2%", "one percent", "nan%")


@pytest.mark.parametrize("written", [*NO_PERCENTAGE, -0.01, math.nan, True, [1]])
def test_anything_else_is_refused_with_what_was_written(written: object) -> None:
    with pytest.raises(ConfigError, match="tolerance: expected") as refused:
        Tolerance.parse(written)
    assert repr(written) in str(refused.value)


@pytest.mark.parametrize(
    "written", [10**400, -(10**400), 10**5000, "9" * 400 + "%", f"{'9' * 400}.5 %"], ids=["a", "b", "c", "d", "e"]
)
def test_what_is_beyond_a_float_is_refused_in_one_line(written: object) -> None:
    with pytest.raises(ConfigError, match=r"tolerance: expected .{20,300}$"):
        Tolerance.parse(written)


@pytest.mark.parametrize(
    ("written", "direction", "span"),
    [(1, "higher", 1.0), (1.5, "higher", 1.0), ("100%", "higher", None), (100, "lower", 100.0)],
)
def test_a_gate_that_could_never_fail_is_refused(written: str | float, direction: str, span: float | None) -> None:
    with pytest.raises(ConfigError, match="never fail"):
        Tolerance.parse(written).require_that_it_can_fail("accuracy", direction, span)


@pytest.mark.parametrize(
    ("metric", "tolerance", "is_asked"),
    [
        *[(metric, size, True) for metric in ("ppl", "bpb", "kl", "pppl", "target_ppl") for size in (1, 5)],
        *[("ppl", size, False) for size in (1.0, 0.5, "1%", 0)],
        *[(metric, 1, False) for metric in ("bleu", "ter", "metric_of_mine")],
    ],
)
def test_a_whole_number_as_tolerance_of_a_perplexity_is_asked_about(
    metric: str, tolerance: object, is_asked: bool
) -> None:
    reference = {"reference": "fp16"} if metric == "kl" else {}
    asked = pytest.raises(ConfigError, match=rf'write "{tolerance}%" .* or {tolerance}\.0 ')
    with asked if is_asked else contextlib.nullcontext():
        parse_marker("no_regression", (metric, "int8", "words", tolerance), reference)


def test_a_pair_with_a_revision_is_named_as_the_pair_is() -> None:
    given = model(object(), object(), revision="1")
    assert parse_fixture_call("ppl_of", (given, "d"), {}).model_name == "in-memory tuple"
