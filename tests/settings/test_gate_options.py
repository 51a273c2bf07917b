"""Arguments of markers and fixtures: all are checked before anything is measured."""

import contextlib
import json
import math
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.errors import ConfigError, ProtocolError
from pytest_lmgate.settings.decoding import parse_fixture_call, parse_marker
from pytest_lmgate.settings.gate_options import (
    DivergenceRequest,
    GenerationRequest,
    Signature,
    TextRequest,
    Unit,
    Windowing,
    WindowProtocol,
)
from pytest_lmgate.settings.gates import EvaluationSpec, FixtureReference, LimitGate, Tolerance, fixture, model, untaken
from pytest_lmgate.windows.protocols import PROTOCOLS


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


NO_LIMIT = (True, None, "16.5", (16.5,), 16.5j, np.float32(16.5), math.nan, math.inf, -math.inf, 0, -0.0, -1, 10**400)


@pytest.mark.parametrize("limit", NO_LIMIT)
def test_a_limit_that_is_no_number_or_could_not_judge_is_refused(limit: Any) -> None:
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


UNITS = get_args(Unit)


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
    assert untaken("ppl_max[m-d]", {"ppl_max[m-d]", "ppl_max[m-d#2]"}) == "ppl_max[m-d#3]"


def limited(marker: str, limit: float) -> Any:
    names = ("x",) if marker.startswith("metric") else ()
    return parse_marker(marker, (*names, "m", "d", limit), {})


def test_a_limit_may_be_whatever_can_be_kept_to() -> None:
    for marker, limits in {"ter_max": [0], "metric_max": [0], "metric_min": [-2.5, 1e300], "bleu_min": [0.001]}.items():
        assert [limited(marker, limit).limit for limit in limits] == limits


@pytest.mark.parametrize(
    ("marker", "limit", "expected"),
    [
        *[("bleu_min", limit, f"from 0 to 100, got {limit}") for limit in (100.1, 0.35)],
        *[(marker, 40, "from 0 to 1, got 40") for marker in ("rouge_min", "exact_min", "accuracy_min")],
        ("chrf_min", 101, "from 0 to 100, got 101"),
        ("ter_max", -0.1, "from 0, got -0.1"),
        ("ter_max", math.nan, "got nan"),
        ("metric_min", -math.inf, "got -inf"),
        ("bleu_min", 0, "got 0"),
    ],
)
def test_a_limit_that_no_value_or_every_value_keeps_to_is_refused(marker: str, limit: float, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"^limit: .*{expected}"):
        limited(marker, limit)


def test_a_fixture_takes_texts_in_place_of_model_and_dataset_but_not_beside_them() -> None:
    texts = {"predictions": ["a"], "references": [["b"]]}
    how = TextRequest("bleu", (("lowercase", True),), GenerationRequest(), ["a"], [["b"]])
    assert parse_fixture_call("bleu_of", (), {**texts, "lowercase": True}) == EvaluationSpec("bleu", None, None, how)
    for names, more, wrong in (
        (("m", "d"), texts, "predictions"),
        ((), {}, "model"),
        (("m", "d"), {"references": [["b"]]}, "references"),
        ((), {**texts, "stop": ".", "num_beams": 2}, "num_beams, stop"),
    ):
        with pytest.raises(ConfigError, match=f"^{wrong}: "):
            parse_fixture_call("bleu_of", names, more)


@pytest.mark.parametrize(
    ("protocol", "context", "windowing"),
    [
        (WindowProtocol(), 1024, Windowing("sliding", 1024, 512)),
        (WindowProtocol(max_length=512, stride=128), 1024, Windowing("sliding", 512, 128)),
        (WindowProtocol(max_length=512), None, Windowing("sliding", 512, 256)),
        (WindowProtocol("disjoint"), 1024, Windowing("disjoint", 1024, 1024)),
        (WindowProtocol("gptq"), 4096, Windowing("gptq", 2048, 2048)),
        (WindowProtocol("gptq", max_length=1024), 1024, Windowing("gptq", 1024, 1024)),
        (WindowProtocol("llama.cpp"), 4096, Windowing("llama.cpp", 512, 512)),
        (WindowProtocol("lm-eval"), 1024, Windowing("lm-eval", 1024, 1024, False)),
        (WindowProtocol("lm-eval", add_bos_token=None), 1024, Windowing("lm-eval", 1024, 1024, None)),
        (WindowProtocol("document"), 1024, Windowing("document", 1024, 512)),
        (WindowProtocol(max_length=4096, allow_beyond_context=True), 2048, Windowing("sliding", 4096, 2048)),
        (WindowProtocol("gptq", allow_beyond_context=True), 1024, Windowing("gptq", 2048, 2048)),
    ],
)
def test_what_is_not_said_comes_from_the_convention_or_the_model(
    protocol: WindowProtocol, context: int | None, windowing: Windowing
) -> None:
    assert protocol.windowing(context, model="m") == windowing


@given(length=st.integers(2, 4096), unit=st.sampled_from(UNITS))
def test_a_stride_as_long_as_the_window_is_the_disjoint_protocol(length: int, unit: str) -> None:
    sliding = WindowProtocol(max_length=length, stride=length, unit=unit).windowing(None, model="m")
    disjoint = WindowProtocol("disjoint", max_length=length, unit=unit).windowing(None, model="m")
    assert sliding == disjoint
    assert sliding.signature == f"protocol:disjoint|max_length:{length}"


@given(
    name=st.sampled_from(list(PROTOCOLS)),
    max_length=st.none() | st.integers(2, 5000),
    stride=st.none() | st.integers(1, 5000),
    context=st.none() | st.integers(2, 5000),
    allow=st.booleans(),
)
def test_windows_are_within_the_context_and_strides_within_the_window_or_it_is_an_error(
    name: str, max_length: int | None, stride: int | None, context: int | None, allow: bool
) -> None:
    try:
        windowing = WindowProtocol(name, max_length, stride, allow_beyond_context=allow).windowing(context, model="m")
    except ProtocolError:
        return
    assert 1 <= windowing.stride <= windowing.max_length
    assert max_length in (None, windowing.max_length)
    assert stride in (None, windowing.stride)
    assert allow or context is None or windowing.max_length <= context


@pytest.mark.parametrize(
    ("windowing", "signature", "by_document", "whole_text", "average"),
    [
        (Windowing("sliding", 512, 256), "protocol:sliding|max_length:512|stride:256", False, False, "token"),
        (Windowing("gptq", 2048, 2048), "protocol:gptq|max_length:2048", False, False, "window"),
        (Windowing("llama.cpp", 512, 512), "protocol:llama.cpp|max_length:512", False, False, "token"),
        (Windowing("lm-eval", 512, 512), "protocol:lm-eval|max_length:512|add_bos_token:false", True, True, "token"),
        (Windowing("document", 512, 64), "protocol:document|max_length:512|stride:64", True, False, "token"),
    ],
)
def test_a_windowing_says_what_its_protocol_fixes(
    windowing: Windowing, signature: str, by_document: bool, whole_text: bool, average: str
) -> None:
    assert windowing.signature == signature
    found = (windowing.rules.by_document, windowing.rules.whole_text, windowing.average)
    assert found == (by_document, whole_text, average)


@pytest.mark.parametrize(
    ("protocol", "context", "key", "fact"),
    [
        (WindowProtocol(), None, "max_length", "'int8' has no context length"),
        (WindowProtocol(max_length=1025), 1024, "max_length", "longer than the context of the model 'int8', 1024"),
        (WindowProtocol("gptq"), 1024, "max_length", "2048 (the default of protocol 'gptq')"),
        (WindowProtocol(stride=1025), 1024, "stride", "max_length=1024"),
    ],
)
def test_what_only_the_model_can_tell_is_refused_when_it_is_known(
    protocol: WindowProtocol, context: int | None, key: str, fact: str
) -> None:
    with pytest.raises(ProtocolError) as raised:
        protocol.windowing(context, model="int8")
    assert str(raised.value).startswith(f"{key}: ")
    assert fact in str(raised.value)


def asked(fixture: str, **arguments: Any) -> Any:
    how = parse_fixture_call(fixture, ("m", "d"), arguments).how
    return how.generation.settings() if isinstance(how, TextRequest) else how


def test_everything_that_was_said_is_in_the_signature() -> None:
    sampling = {"seed": 0, "temperature": 0.5, "top_p": 1, "top_k": 40}
    assert asked("bleu_of", stop=["\n", "|"], max_new_tokens=5, truncate="left", **sampling).signature == (
        "max_new_tokens:5|num_beams:1|seed:0|temperature:0.5|top_p:1|top_k:40|truncate:left|stop:['\\n', '|']"
    )


@pytest.mark.parametrize(
    ("fixture", "arguments", "key", "fact"),
    [
        ("ppl_of", {"protocol": "sildign"}, "protocol", "'sliding'"),
        ("ppl_of", {"unit": "bpb"}, "unit", "'bpb'"),
        ("ppl_of", {"average": "mean"}, "average", "'mean'"),
        ("ppl_of", {"average": "window", "unit": "word"}, "unit", "'word'"),
        ("ppl_of", {"protocol": "gptq", "average": "token"}, "average", "average='window' only"),
        ("ppl_of", {"protocol": "lm-eval", "average": "window"}, "average", "average='token' only"),
        ("ppl_of", {"max_length": 1}, "max_length", "got 1"),
        ("ppl_of", {"stride": 0}, "stride", "got 0"),
        ("ppl_of", {"stride": math.nan}, "stride", "got nan"),
        ("ppl_of", {"max_length": 8, "stride": 9}, "stride", "max_length=8"),
        ("ppl_of", {"allow_beyond_context": "yes"}, "allow_beyond_context", "'yes'"),
        ("ppl_of", {"protocol": "lm-eval", "add_bos_token": "no"}, "add_bos_token", "'no'"),
        ("ppl_of", {"add_bos_token": True}, "add_bos_token", "'lm-eval'"),
        ("ppl_of", {"protocol": "llama.cpp", "max_length": 2}, "max_length", "3 tokens, got 2"),
        ("accuracy_of", {"variant": "acc_nrom"}, "variant", "'acc_norm'"),
        ("pppl_of", {"max_length": True}, "max_length", "got True"),
        ("pppl_of", {"stride": 4}, "stride", "unknown argument"),
        ("chrf_of", {"word_odrer": 2}, "word_odrer", "'word_order'"),
        ("bleu_of", {"max_new_tokens": 0}, "max_new_tokens", "got 0"),
        ("bleu_of", {"num_beams": True}, "num_beams", "got True"),
        ("bleu_of", {"seed": -1, "top_k": 5}, "seed", "got -1"),
        ("bleu_of", {"seed": 1, "top_k": 0}, "top_k", "got 0"),
        ("bleu_of", {"seed": 1, "temperature": 0}, "temperature", "got 0"),
        ("bleu_of", {"seed": 1, "temperature": math.inf}, "temperature", "got inf"),
        ("bleu_of", {"seed": 1, "temperature": math.nan}, "temperature", "got nan"),
        ("bleu_of", {"seed": 1, "top_p": 1.1}, "top_p", "got 1.1"),
        ("bleu_of", {"seed": 1, "top_p": "0.9"}, "top_p", "got '0.9'"),
        ("bleu_of", {"temperature": 0.5, "top_k": 5}, "temperature, top_k", "seed"),
        ("bleu_of", {"seed": 1}, "seed", "only sampling"),
        ("bleu_of", {"seed": 1, "top_p": 0.9, "num_beams": 2}, "num_beams", "top_p and seed"),
        ("bleu_of", {"stop": ""}, "stop", "got ['']"),
        ("bleu_of", {"stop": ["a", 1]}, "stop", "got ['a', 1]"),
        ("bleu_of", {"truncate": "right"}, "truncate", "got 'right'"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_by_its_name(
    fixture: str, arguments: dict[str, Any], key: str, fact: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        asked(fixture, **arguments)
    assert str(raised.value).startswith(f"{key}: ")
    assert fact in str(raised.value)


MADE = Signature([("BLEU", None), ("tok", "13a"), ("version", "2.6"), ("stop", "['|version:3']"), ("lmgate", "0.1")])


def test_a_signature_is_the_line_that_its_fields_make() -> None:
    assert MADE == "BLEU|tok:13a|version:2.6|stop:['|version:3']|lmgate:0.1"
    assert MADE.plus(("unit", "row")) == f"{MADE}|unit:row"
    assert json.loads(json.dumps(MADE)) == MADE


def test_versions_of_programs_take_no_part_in_a_comparison_and_a_text_that_looks_like_one_does() -> None:
    assert MADE.compared == "BLEU|tok:13a|stop:['|version:3']"
    assert Signature([("version", None), ("lmgate", None)]).compared == "version|lmgate"
