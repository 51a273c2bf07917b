"""Arguments of the markers and fixtures on two models."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_lmgate.config.arguments.fixture import FixtureReference
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.metrics.divergence import KL_STATISTICS
from pytest_lmgate.spec.gates import EvaluationSpec, Gate
from pytest_lmgate.spec.markers import parse_fixture_call, parse_marker
from pytest_lmgate.spec.protocol import Protocol
from pytest_lmgate.spec.requests import DivergenceRequest


def test_the_reference_stands_behind_the_model() -> None:
    gate = parse_marker("kl_max", ("q", "p", "d", 0.1), {"stride": 8, "max_length": 16})

    how = DivergenceRequest("p", Protocol(stride=8, max_length=16))
    assert gate == Gate("kl_max", EvaluationSpec("kl", "q", "d", how), 0.1)
    assert (gate.label, gate.direction) == ("kl_max[q-p-d-max_length:16-stride:8]", "lower")


def test_by_name_the_order_does_not_matter() -> None:
    said = {"limit": 0.9, "dataset": "d", "reference": "p", "model": "q"}
    assert parse_marker("top1_min", (), said) == parse_marker("top1_min", ("q", "p", "d", 0.9), {})
    assert parse_marker("top1_min", (), said).direction == "higher"


def test_a_statistic_is_in_the_label() -> None:
    for statistic in KL_STATISTICS:
        gate = parse_marker("kl_max", ("q", "p", "d", 1), {"statistic": statistic})
        assert gate.label == ("kl_max[q-p-d]" if statistic == "mean" else f"kl_max:{statistic}[q-p-d]")


def test_a_limit_of_zero_is_one_for_a_divergence_only() -> None:
    assert parse_marker("kl_max", ("q", "p", "d", 0), {}).limit == 0
    with pytest.raises(ConfigError, match="limit: expected a positive finite number, got 0"):
        parse_marker("top1_min", ("q", "p", "d", 0), {})


def test_fixtures_take_the_same_less_the_limit() -> None:
    for fixture, metric in (("kl_of", "kl"), ("top1_of", "top1"), ("compare_of", "compare")):
        spec = parse_fixture_call(fixture, ("q", "p", "d"), {"protocol": "llama.cpp"})
        assert spec == EvaluationSpec(metric, "q", "d", DivergenceRequest("p", Protocol(name="llama.cpp")))


def test_everything_given_is_resolved() -> None:
    things = {name: FixtureReference(name) for name in ("q", "p", "d")}
    spec = parse_fixture_call("kl_of", tuple(things.values()), {})

    assert spec.given == [things["q"], things["d"], things["p"]]
    found = spec.resolved(lambda given: f"resolved {given.name}")
    assert (found.model, found.reference, found.dataset) == ("resolved q", "resolved p", "resolved d")
    assert spec.names == "q-p-d"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"statistic": "p999"}, r"statistic: expected one of mean, .*; got 'p999' \(did you mean 'p99.9'\?\)"),
        ({"statistic": 99}, "statistic: expected one of mean"),
        ({"average": "window"}, "average: unknown argument"),
        ({"strid": 8}, r"strid: unknown argument \(did you mean 'stride'\?\)"),
        ({"reference": None}, "reference: expected a name of lmgate.yaml"),
        ({"reference": ""}, "reference: expected a name of lmgate.yaml"),
        ({"reference": 3}, "reference: expected a name of lmgate.yaml"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_fixture_call("kl_of", (), {"model": "q", "reference": "p", "dataset": "d", **arguments})


@pytest.mark.parametrize("fixture", ["top1_of", "compare_of"])
def test_only_kl_has_a_statistic(fixture: str) -> None:
    with pytest.raises(ConfigError, match="statistic: unknown argument"):
        parse_fixture_call(fixture, ("q", "p", "d"), {"statistic": "p99"})
