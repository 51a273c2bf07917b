"""Arguments of what is not a perplexity: generated texts, multiple choice, masked models."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.spec.gates import EvaluationSpec, untaken
from pytest_lmgate.spec.markers import parse_fixture_call, parse_marker
from pytest_lmgate.spec.requests import ChoiceRequest, MaskedRequest, TextRequest


@pytest.mark.parametrize(
    ("marker", "metric", "direction", "limit"),
    [
        ("ppl_max", "ppl", "lower", 1000.0),
        ("bpb_max", "bpb", "lower", 1000.0),
        ("pppl_max", "pppl", "lower", 1000.0),
        ("ter_max", "ter", "lower", 1000.0),
        ("bleu_min", "bleu", "higher", 100),
        ("chrf_min", "chrf", "higher", 100),
        ("rouge_min", "rouge", "higher", 1),
        ("exact_min", "exact", "higher", 1),
        ("accuracy_min", "accuracy", "higher", 1),
    ],
)
def test_a_marker_says_which_side_of_the_limit_is_wrong(marker: str, metric: str, direction: str, limit: float) -> None:
    gate = parse_marker(marker, ("m", "d", limit), {})
    assert (gate.evaluation.metric, gate.direction, gate.limit) == (metric, direction, limit)
    assert gate.label == f"{marker}[m-d]"


@pytest.mark.parametrize(
    ("marker", "limit", "scale"),
    [
        ("bleu_min", 100.1, 100),
        ("chrf_min", 101, 100),
        ("rouge_min", 40, 1),
        ("exact_min", 1.5, 1),
        ("accuracy_min", 65, 1),
    ],
)
def test_a_limit_beyond_the_scale_is_refused(marker: str, limit: float, scale: int) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_marker(marker, ("m", "d", limit), {})
    assert (
        str(raised.value) == f"limit: {marker} is on a scale from 0 to {scale}, got {limit!r}: nothing could reach it"
    )


@pytest.mark.parametrize("marker", ["bleu_min", "chrf_min"])
def test_a_share_as_limit_on_a_scale_to_100_is_refused(marker: str) -> None:
    with pytest.raises(ConfigError, match=r"from 0 to 100, got 0\.35: write 35 if that is meant"):
        parse_marker(marker, ("m", "d", 0.35), {})
    for limit in (0.001, 1, 35):
        parse_marker(marker, ("m", "d", limit), {})


@pytest.mark.parametrize(
    ("marker", "args", "kwargs", "label"),
    [
        ("rouge_min", (0.4, "rouge2"), {}, "rouge_min:rouge2[m-d]"),
        ("rouge_min", (0.4,), {"variant": "rougeLsum"}, "rouge_min:rougeLsum[m-d]"),
        ("rouge_min", (0.4, "rougeL"), {"stemmer": True}, "rouge_min[m-d-stemmer:True]"),
        ("accuracy_min", (0.4,), {"variant": "acc_norm"}, "accuracy_min:acc_norm[m-d]"),
        ("accuracy_min", (0.4,), {"variant": "acc"}, "accuracy_min[m-d]"),
        ("ppl_max", (9,), {"stride": 512}, "ppl_max[m-d-stride:512]"),
        ("ppl_max", (9,), {"protocol": "gptq", "max_length": 64}, "ppl_max[m-d-protocol:gptq-max_length:64]"),
        ("ppl_max", (9,), {"protocol": "sliding", "unit": "token", "confidence": 0.9}, "ppl_max[m-d]"),
        ("bpb_max", (9,), {"stride": 8}, "bpb_max[m-d-stride:8]"),
        ("kl_max", (9,), {"reference": "r", "stride": 8, "statistic": "p99"}, "kl_max:p99[m-r-d-stride:8]"),
        ("bleu_min", (9,), {"max_new_tokens": 64, "stop": ["\n"]}, "bleu_min[m-d-max_new_tokens:64-stop:01ba47]"),
        ("bleu_min", (9,), {"tokenize": "zh", "stop": ["a", "b"]}, "bleu_min[m-d-tokenize:zh-stop:a,b]"),
    ],
)
def test_a_gate_is_named_by_the_arguments_that_are_not_the_usual_ones(
    marker: str, args: tuple[Any, ...], kwargs: dict[str, Any], label: str
) -> None:
    names = ("m", kwargs.pop("reference"), "d") if "reference" in kwargs else ("m", "d")
    assert parse_marker(marker, (*names, *args), kwargs).label == label
    if marker == "ppl_max":
        kwargs.pop("confidence", None)
        against = parse_marker("no_regression", ("ppl", "m", "d", "1%"), {**kwargs, "against": "x"})
        assert against.label == label.replace("ppl_max[m-d", "no_regression:ppl[m-d-vs-x")


def test_gates_of_one_label_are_counted_before_the_bracket() -> None:
    assert untaken("ppl_max[m-d]", ()) == "ppl_max[m-d]"
    assert untaken("ppl_max[m-d]", {"ppl_max[m-d]", "ppl_max[m-d#2]"}) == "ppl_max[m-d#3]"


@pytest.mark.parametrize(
    ("marker", "names", "limit"),
    [("ter_max", (), 0), ("metric_max", ("x",), 0), ("metric_min", ("x",), -2.5), ("metric_min", ("x",), 1e300)],
)
def test_a_limit_may_be_zero_or_less_where_that_can_be_kept_to(
    marker: str, names: tuple[str, ...], limit: float
) -> None:
    assert parse_marker(marker, (*names, "m", "d", limit), {}).limit == limit


@pytest.mark.parametrize(
    ("marker", "limit", "expected"),
    [
        ("ter_max", -0.1, "a finite number from 0, got -0.1"),
        ("ter_max", math.nan, "a finite number from 0, got nan"),
        ("metric_max", math.nan, "a finite number, got nan"),
        ("metric_min", -math.inf, "a finite number, got -inf"),
        ("metric_max", math.inf, "a finite number, got inf"),
        ("bleu_min", 0, "a positive finite number, got 0"),
        ("accuracy_min", 0.0, "a positive finite number, got 0.0"),
    ],
)
def test_a_limit_that_no_value_or_every_value_keeps_to_is_refused(marker: str, limit: float, expected: str) -> None:
    names = ("x",) if marker.startswith("metric") else ()
    with pytest.raises(ConfigError) as raised:
        parse_marker(marker, (*names, "m", "d", limit), {})
    assert str(raised.value) == f"limit: expected {expected}: nothing could be judged by it"


def test_options_of_the_metric_and_of_generation_are_told_apart() -> None:
    gate = parse_marker("bleu_min", ("m", "d", 20), {"tokenize": "zh", "num_beams": 4, "max_ngram_order": 1})
    assert gate.evaluation == EvaluationSpec(
        "bleu",
        "m",
        "d",
        TextRequest("bleu", (("max_ngram_order", 1), ("tokenize", "zh")), GenerationSettings(num_beams=4)),
    )


@pytest.mark.parametrize(("args", "kwargs"), [(("rouge2",), {}), ((), {"variant": "rouge2"})])
def test_the_variant_of_rouge_may_stand_behind_the_limit(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    gate = parse_marker("rouge_min", ("m", "d", 0.4, *args), kwargs)
    assert gate.evaluation.how == TextRequest("rouge", (("variant", "rouge2"),), GenerationSettings())


def test_a_users_metric_is_named_first() -> None:
    gate = parse_marker("metric_min", ("politeness", "m", "d", 250.0), {})
    assert (gate.evaluation.metric, gate.limit) == ("politeness", 250.0)
    assert gate.label == "metric_min:politeness[m-d]"
    with pytest.raises(ConfigError, match="metric: expected the name of a registered metric, got 3"):
        parse_marker("metric_min", (3, "m", "d", 1.0), {})


def test_a_fixture_takes_texts_in_place_of_model_and_dataset_but_not_beside_them() -> None:
    texts = {"predictions": ["a"], "references": [["b"]]}
    spec = parse_fixture_call("bleu_of", (), {**texts, "lowercase": True})
    assert spec == EvaluationSpec(
        "bleu", None, None, TextRequest("bleu", (("lowercase", True),), GenerationSettings(), ["a"], [["b"]])
    )
    with pytest.raises(ConfigError, match="predictions: give texts, or a model and a dataset, not both"):
        parse_fixture_call("bleu_of", ("m", "d"), texts)
    with pytest.raises(ConfigError, match=r"model: expected a name of lmgate\.yaml"):
        parse_fixture_call("bleu_of", (), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("m", "d"), {"references": [["b"]]}, "references: only for predictions; a dataset names its columns"),
        (
            (),
            {"predictions": ["a"], "references": [["b"]], "stop": ".", "num_beams": 2},
            "num_beams, stop: for a model",
        ),
    ],
)
def test_an_argument_that_would_go_unheard_is_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_fixture_call("bleu_of", args, kwargs)
    assert str(raised.value).startswith(message)


def test_a_marker_takes_no_texts() -> None:
    with pytest.raises(ConfigError, match="predictions: unknown argument"):
        parse_marker("bleu_min", ("m", "d", 1.0), {"predictions": ["a"]})


def test_choices_and_masked_models_have_requests_of_their_own() -> None:
    assert parse_fixture_call("accuracy_of", ("m", "d"), {"variant": "acc_norm"}).how == ChoiceRequest("acc_norm")
    assert parse_fixture_call("pppl_of", ("m", "d"), {"max_length": 64}).how == MaskedRequest(64)


@pytest.mark.parametrize(
    ("fixture", "arguments", "message"),
    [
        (
            "accuracy_of",
            {"variant": "acc_nrom"},
            "variant: expected one of acc, acc_norm, acc_bytes; got 'acc_nrom' (did",
        ),
        ("accuracy_of", {"max_length": 1}, "max_length: expected a whole number of tokens, 2 or more; got 1"),
        ("pppl_of", {"max_length": True}, "max_length: expected a whole number of tokens, 2 or more; got True"),
        ("pppl_of", {"stride": 4}, "stride: unknown argument; expected pppl_of(model, dataset, max"),
        ("chrf_of", {"word_odrer": 2}, "word_odrer: unknown argument (did you mean 'word_order'?);"),
        ("bleu_of", {"stop": 5}, "stop: expected a string or a list of strings, got 5"),
    ],
)
def test_arguments_that_cannot_be_are_refused(fixture: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_fixture_call(fixture, ("m", "d"), arguments)
    assert str(raised.value).startswith(message)
