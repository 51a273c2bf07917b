"""Markers' and fixtures' arguments: all are checked before anything is measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.config.arguments.fixture import FixtureReference, fixture
from pytest_lmgate.errors import ConfigError, ProtocolError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.spec.gates import EvaluationSpec, Gate
from pytest_lmgate.spec.markers import parse_fixture_call, parse_marker
from pytest_lmgate.spec.protocol import Protocol


def test_a_marker_becomes_a_gate() -> None:
    gate = parse_marker("ppl_max", ("int8", "wikitext2", 16.5), {"stride": 512})
    assert gate == Gate("ppl_max", EvaluationSpec("ppl", "int8", "wikitext2", Protocol(stride=512)), 16.5)
    assert gate.label == "ppl_max[int8-wikitext2-stride:512]"


def test_every_argument_arrives_in_its_place() -> None:
    gate = parse_marker(
        "ppl_max",
        (),
        {
            "limit": 9,
            "dataset": "d",
            "model": "m",
            "protocol": "lm-eval",
            "max_length": 1024,
            "unit": "word",
            "average": "token",
            "allow_beyond_context": True,
            "add_bos_token": None,
        },
    )
    assert gate.evaluation == EvaluationSpec(
        "ppl",
        "m",
        "d",
        Protocol(
            name="lm-eval",
            max_length=1024,
            unit="word",
            average="token",
            allow_beyond_context=True,
            add_bos_token=None,
        ),
    )
    assert (gate.limit, type(gate.limit)) == (9.0, float)


def test_bits_per_byte_is_a_unit_of_the_same_measurement() -> None:
    spec = parse_fixture_call("bpb_of", ("m", "d"), {"max_length": 64, "stride": 32, "protocol": "document"})
    assert spec == EvaluationSpec("bpb", "m", "d", Protocol("document", 64, 32, unit="bits_per_byte"))


@pytest.mark.parametrize("fixture_name", ["ppl_of", "bpb_of"])
def test_a_fixture_takes_what_its_marker_takes_less_the_limit(fixture_name: str) -> None:
    marker = fixture_name.replace("_of", "_max")
    asked = {"max_length": 64, "allow_beyond_context": True}
    assert parse_marker(marker, ("m", "d", 3.0), asked).evaluation == parse_fixture_call(
        fixture_name, ("m", "d"), asked
    )


def test_models_and_datasets_are_called_as_the_user_wrote_them() -> None:
    def names(model: Any, dataset: Any) -> tuple[str, str]:
        spec = parse_fixture_call("ppl_of", (model, dataset), {})
        return spec.model_name, spec.dataset_name

    assert names("int8", "wikitext2") == ("int8", "wikitext2")
    assert names(Path("models/a"), Path("data/b.txt")) == ("models/a", "data/b.txt")
    assert names(fixture("my_pair"), fixture("my_texts")) == ("my_pair", "my_texts")
    assert names((object(), object()), ["a text"]) == ("in-memory tuple", "in-memory list")


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing a required argument: 'model'; expected ppl_max(model, dataset, limit, stride, max_length, "),
        (("m",), {}, "missing a required argument: 'dataset'; expected ppl_max("),
        (("m", "d"), {}, "missing a required argument: 'limit'; expected ppl_max("),
        (
            ("m", "d", 1.0),
            {"strid": 4},
            "strid: unknown argument (did you mean 'stride'?); expected ppl_max(",
        ),
        (("m", "d", 1.0), {"zzz": 4}, "zzz: unknown argument; expected ppl_max("),
        (("m", "d", 1.0, 512), {}, "too many positional arguments; expected ppl_max(model, dataset, limit, *, "),
        (("m", "d", 1.0), {"limit": 2.0}, "multiple values for argument 'limit'; expected ppl_max("),
        (("", "d", 1.0), {}, "model: expected a name of lmgate.yaml, a path, a hub id or lmgate.fixture(...), got ''"),
        ((None, "d", 1.0), {}, "model: expected a name of lmgate.yaml, a path, a hub id or lmgate.fixture(...), got "),
        (("m", 16.5, "d"), {}, "limit: expected a number, got 'd'"),
        (
            ("m", 16.5, 16.5),
            {},
            "dataset: expected a name of lmgate.yaml, a path, a hub id or lmgate.fixture(...), got",
        ),
        (("m", "d", 1.0), {"protocol": "slidng"}, "protocol: expected one of sliding, "),
        (("m", "d", 1.0), {"stride": 0}, "stride: expected a whole number of tokens, 1 or more; got 0"),
    ],
)
def test_unknown_missing_and_misplaced_arguments_are_named(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_marker("ppl_max", args, kwargs)
    assert str(raised.value).startswith(message)


def test_a_fixture_has_no_limit_and_bits_per_byte_no_unit() -> None:
    with pytest.raises(ConfigError, match=r"limit: unknown argument.*expected ppl_of\(model, dataset, "):
        parse_fixture_call("ppl_of", ("m", "d"), {"limit": 3.0})
    with pytest.raises(ConfigError, match=r"unit: unknown argument.*expected bpb_of\(model, dataset, "):
        parse_fixture_call("bpb_of", ("m", "d"), {"unit": "word"})


def test_a_protocol_error_is_a_configuration_error() -> None:
    with pytest.raises(ProtocolError):
        parse_marker("bpb_max", ("m", "d", 1.0), {"protocol": "gptq"})


@pytest.mark.parametrize("limit", [True, False, None, "16.5", (16.5,), 16.5j, np.float32(16.5)])
def test_a_limit_that_is_not_a_number_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_marker("ppl_max", ("m", "d", limit), {})
    assert str(raised.value) == f"limit: expected a number, got {limit!r}"


@pytest.mark.parametrize("limit", [math.nan, -math.nan, math.inf, -math.inf, 0, 0.0, -0.0, -1, -16.5, 10**400])
def test_a_limit_that_could_not_judge_is_refused(limit: float) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_marker("ppl_max", ("m", "d", limit), {})
    assert str(raised.value).startswith("limit: expected a positive finite number, got ")


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False) | st.integers(1, 10**300))
def test_every_positive_finite_limit_is_kept_unrounded(limit: float) -> None:
    kept = parse_marker("bpb_max", ("m", "d", limit), {}).limit
    assert type(kept) is float
    assert kept == float(limit)


def test_a_score_can_be_a_limit_and_is_then_a_plain_number() -> None:
    limit = parse_marker("ppl_max", ("m", "d", Score(3.5, metric="ppl", n=1, signature="")), {}).limit
    assert (type(limit), limit) == (float, 3.5)


def test_rows_in_memory_may_be_an_array() -> None:
    rows = np.array(["one text", "another"])
    assert parse_fixture_call("ppl_of", ("m", rows), {}).dataset is rows


@pytest.mark.parametrize("name", ["", None, 3, ("a",)])
def test_a_fixture_reference_needs_a_name(name: Any) -> None:
    with pytest.raises(TypeError, match="expects the name of a pytest fixture, got"):
        fixture(name)


def test_a_fixture_reference_is_a_value() -> None:
    assert fixture("pair") == FixtureReference("pair")
    assert hash(fixture("pair")) == hash(fixture("pair"))


@pytest.mark.parametrize("metric", ["perplexity", "ppl2"])
def test_an_argument_that_a_registered_metric_does_not_take_may_be_of_a_metric_that_is_written_otherwise(
    metric: str,
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_marker("no_regression", (metric, "m", "d", "1%"), {"stride": 8})
    assert str(raised.value).startswith("stride: unknown argument; expected no_regression(metric, ")
    assert str(raised.value).endswith(
        f"; {metric!r} is not a metric of pytest-lmgate, so it is taken for a registered metric (did you mean 'ppl'?)"
    )


@pytest.mark.parametrize("metric", [["ppl"], 3, None, {"ppl": 1}])
def test_a_metric_is_a_name(metric: Any) -> None:
    with pytest.raises(ConfigError, match="metric: expected the name of a registered metric, got "):
        parse_marker("no_regression", (metric, "m", "d", "1%"), {})


@pytest.mark.parametrize("marker", ["ppl_max", "accuracy_min", "bleu_min", "top1_min"])
def test_a_limit_gate_may_be_asked_for_a_confidence(marker: str) -> None:
    names = ("m", "r", "d") if marker == "top1_min" else ("m", "d")

    assert parse_marker(marker, (*names, 1.0), {}).confidence is None
    gate = parse_marker(marker, (*names, 1.0), {"confidence": 0.95})

    assert (gate.confidence, gate.limit) == (0.95, 1.0)
    assert gate.evaluation == parse_marker(marker, (*names, 1.0), {}).evaluation


@pytest.mark.parametrize("confidence", [95, 0.5, 1, 0, -0.95, "0.95", True, math.nan])
def test_a_confidence_of_a_limit_gate_is_a_one_sided_level(confidence: object) -> None:
    with pytest.raises(ConfigError, match=r"confidence: expected a one-sided level above 0\.5 and below 1, got "):
        parse_marker("accuracy_min", ("m", "d", 0.5), {"confidence": confidence})


def test_a_statistic_that_is_no_mean_has_no_confidence() -> None:
    with pytest.raises(ConfigError, match=r"statistic: expected 'mean', got 'p99', which is no mean"):
        parse_marker("kl_max", ("m", "r", "d", 0.5), {"statistic": "p99", "confidence": 0.95})


def test_a_fixture_has_no_confidence() -> None:
    with pytest.raises(ConfigError, match="confidence: unknown argument"):
        parse_fixture_call("ppl_of", ("m", "d"), {"confidence": 0.95})
