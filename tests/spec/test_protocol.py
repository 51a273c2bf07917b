"""Protocols: what each name fixes, what it refuses, and the numbers that the model fills in."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.data.protocols.table import PROTOCOLS
from pytest_lmgate.data.protocols.windowing import Windowing
from pytest_lmgate.errors import ProtocolError
from pytest_lmgate.spec.protocol import AVERAGES, UNITS, Protocol


def test_no_name_of_the_definitions_is_lost_and_the_first_is_the_default() -> None:
    assert {*PROTOCOLS} >= {"sliding", "disjoint", "bos-chunks", "gptq", "llama.cpp", "lm-eval", "document"}
    assert next(iter(PROTOCOLS)) == Protocol().name == "sliding"
    assert UNITS == ("token", "word", "byte", "char", "bits_per_byte")
    assert AVERAGES == ("token", "window")


@pytest.mark.parametrize(
    ("protocol", "context", "windowing"),
    [
        (Protocol(), 1024, Windowing("sliding", 1024, 512)),
        (Protocol(), 1023, Windowing("sliding", 1023, 511)),
        (Protocol(), 2, Windowing("sliding", 2, 1)),
        (Protocol(max_length=512), 1024, Windowing("sliding", 512, 256)),
        (Protocol(stride=300), 1024, Windowing("sliding", 1024, 300)),
        (Protocol(max_length=512, stride=128), 1024, Windowing("sliding", 512, 128)),
        (Protocol(max_length=512), None, Windowing("sliding", 512, 256)),
        (Protocol("disjoint"), 1024, Windowing("disjoint", 1024, 1024)),
        (Protocol("disjoint", max_length=7), 1024, Windowing("disjoint", 7, 7)),
        (Protocol("bos-chunks"), 2048, Windowing("bos-chunks", 2048, 2048)),
        (Protocol("gptq"), 4096, Windowing("gptq", 2048, 2048)),
        (Protocol("gptq"), None, Windowing("gptq", 2048, 2048)),
        (Protocol("gptq", max_length=1024), 1024, Windowing("gptq", 1024, 1024)),
        (Protocol("llama.cpp"), 4096, Windowing("llama.cpp", 512, 512)),
        (Protocol("llama.cpp", max_length=2048), 4096, Windowing("llama.cpp", 2048, 2048)),
        (Protocol("lm-eval"), 1024, Windowing("lm-eval", 1024, 1024, False)),
        (Protocol("lm-eval", add_bos_token=None), 1024, Windowing("lm-eval", 1024, 1024, None)),
        (Protocol("document"), 1024, Windowing("document", 1024, 512)),
        (Protocol("document", stride=1024), 1024, Windowing("document", 1024, 1024)),
        (Protocol(max_length=4096, allow_beyond_context=True), 2048, Windowing("sliding", 4096, 2048)),
        (Protocol("gptq", allow_beyond_context=True), 1024, Windowing("gptq", 2048, 2048)),
    ],
)
def test_what_is_not_said_comes_from_the_convention_or_the_model(
    protocol: Protocol, context: int | None, windowing: Windowing
) -> None:
    assert protocol.windowing(context, model="m") == windowing


@given(length=st.integers(2, 4096), unit=st.sampled_from(UNITS))
def test_a_stride_as_long_as_the_window_is_the_disjoint_protocol(length: int, unit: str) -> None:
    sliding = Protocol(max_length=length, stride=length, unit=unit).windowing(None, model="m")
    disjoint = Protocol("disjoint", max_length=length, unit=unit).windowing(None, model="m")
    assert sliding == disjoint
    assert sliding.signature == f"protocol:disjoint|max_length:{length}"


def test_unit_average_and_permission_are_not_part_of_the_windows() -> None:
    plain = Protocol(max_length=64).windowing(128, model="m")
    for unit in UNITS:
        assert Protocol(max_length=64, unit=unit).windowing(128, model="m") == plain
    assert Protocol(max_length=64, average="window").windowing(128, model="m") == plain
    assert Protocol(max_length=64, allow_beyond_context=True).windowing(128, model="m") == plain


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
        windowing = Protocol(name, max_length, stride, allow_beyond_context=allow).windowing(context, model="m")
    except ProtocolError:
        return
    assert 1 <= windowing.stride <= windowing.max_length
    assert max_length in (None, windowing.max_length)
    assert stride in (None, windowing.stride)
    assert allow or context is None or windowing.max_length <= context


@pytest.mark.parametrize(
    ("windowing", "signature", "by_document", "whole_text", "average"),
    [
        (Windowing("sliding", 512, 256), "protocol:sliding|max_length:512|stride:256", False, True, "token"),
        (Windowing("disjoint", 512, 512), "protocol:disjoint|max_length:512", False, True, "token"),
        (Windowing("bos-chunks", 512, 512), "protocol:bos-chunks|max_length:512", False, False, "token"),
        (Windowing("gptq", 2048, 2048), "protocol:gptq|max_length:2048", False, False, "window"),
        (Windowing("llama.cpp", 512, 512), "protocol:llama.cpp|max_length:512", False, False, "token"),
        (Windowing("lm-eval", 512, 512), "protocol:lm-eval|max_length:512|add_bos_token:false", True, True, "token"),
        (
            Windowing("lm-eval", 512, 512, None),
            "protocol:lm-eval|max_length:512|add_bos_token:none",
            True,
            True,
            "token",
        ),
        (Windowing("document", 512, 64), "protocol:document|max_length:512|stride:64", True, True, "token"),
    ],
)
def test_a_windowing_says_what_its_protocol_fixes(
    windowing: Windowing, signature: str, by_document: bool, whole_text: bool, average: str
) -> None:
    assert windowing.signature == signature
    assert (windowing.by_document, windowing.convention.whole_text, windowing.average) == (
        by_document,
        whole_text,
        average,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "sildign"},
            f"protocol: expected one of {', '.join(PROTOCOLS)}; got 'sildign' (did you mean 'sliding'?)",
        ),
        ({"name": None}, "protocol: expected one of sliding, "),
        ({"name": ["sliding"]}, "protocol: expected one of sliding, "),
        (
            {"unit": "bpb"},
            "unit: expected one of token, word, byte, char, bits_per_byte; got 'bpb'",
        ),
        ({"unit": "words"}, "unit: expected one of token, word, byte, char, bits_per_byte; got 'words' (did you mean "),
        ({"average": "mean"}, "average: expected one of token, window; got 'mean'"),
        ({"max_length": 1}, "max_length: expected a whole number of tokens, 2 or more; got 1"),
        ({"max_length": 0}, "max_length: expected a whole number of tokens, 2 or more; got 0"),
        ({"max_length": -5}, "max_length: expected a whole number of tokens, 2 or more; got -5"),
        ({"max_length": 512.0}, "max_length: expected a whole number of tokens, 2 or more; got 512.0"),
        ({"max_length": "512"}, "max_length: expected a whole number of tokens, 2 or more; got '512'"),
        ({"max_length": True}, "max_length: expected a whole number of tokens, 2 or more; got True"),
        ({"stride": 0}, "stride: expected a whole number of tokens, 1 or more; got 0"),
        ({"stride": -1}, "stride: expected a whole number of tokens, 1 or more; got -1"),
        ({"stride": True}, "stride: expected a whole number of tokens, 1 or more; got True"),
        ({"stride": float("nan")}, "stride: expected a whole number of tokens, 1 or more; got nan"),
        (
            {"max_length": 8, "stride": 9},
            "stride: at most max_length=8 (else tokens are skipped), got 9",
        ),
        ({"allow_beyond_context": "yes"}, "allow_beyond_context: expected true or false, got 'yes'"),
        ({"allow_beyond_context": 1}, "allow_beyond_context: expected true or false, got 1"),
        ({"name": "lm-eval", "add_bos_token": "no"}, "add_bos_token: expected true, false or None, got 'no'"),
        ({"add_bos_token": True}, "add_bos_token: only protocol 'lm-eval' has it, not 'sliding'"),
        (
            {"name": "llama.cpp", "max_length": 2},
            "max_length: protocol 'llama.cpp' scores nothing in fewer than 3 tokens, got 2",
        ),
        ({"name": "gptq", "add_bos_token": None}, "add_bos_token: only protocol 'lm-eval' has it, not 'gptq'"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_with_what_was_expected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        Protocol(**arguments)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("name", ["disjoint", "bos-chunks", "gptq", "llama.cpp", "lm-eval"])
def test_a_stride_is_refused_where_the_protocol_has_none(name: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        Protocol(name, stride=64)
    assert str(raised.value) == f"stride: protocol {name!r} has none; remove it, or use protocol='sliding'"


@pytest.mark.parametrize("name", ["bos-chunks", "gptq", "llama.cpp"])
@pytest.mark.parametrize("unit", ["word", "byte", "char", "bits_per_byte"])
def test_units_of_the_text_are_refused_where_part_of_it_is_not_scored(name: str, unit: str) -> None:
    with pytest.raises(ProtocolError, match=f"unit: '{unit}' counts the whole text, but protocol '{name}' leaves"):
        Protocol(name, unit=unit)


@pytest.mark.parametrize("name", ["sliding", "disjoint", "document", "lm-eval"])
@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_is_defined_where_the_whole_text_is_scored(name: str, unit: str) -> None:
    assert Protocol(name, unit=unit).unit == unit


@pytest.mark.parametrize(
    ("name", "average", "own"),
    [
        ("bos-chunks", "window", "token"),
        ("llama.cpp", "window", "token"),
        ("lm-eval", "window", "token"),
        ("gptq", "token", "window"),
    ],
)
def test_a_convention_is_not_averaged_in_another_way_than_its_own(name: str, average: str, own: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        Protocol(name, average=average)
    assert str(raised.value) == f"average: protocol {name!r} is defined with average={own!r} only"
    assert Protocol(name, average=own).average == own


@pytest.mark.parametrize("name", ["sliding", "disjoint", "document"])
def test_the_mean_of_window_means_is_per_token_only(name: str) -> None:
    assert Protocol(name, average="window").average == "window"
    with pytest.raises(ProtocolError, match="average='window' is defined per token only, not per 'word'"):
        Protocol(name, average="window", unit="word")


@pytest.mark.parametrize(
    ("protocol", "context", "message"),
    [
        (
            Protocol(),
            None,
            "max_length: the model 'int8' names no context length of its own; say max_length=1024, for example",
        ),
        (
            Protocol(max_length=1025),
            1024,
            "max_length: 1025 is longer than the context of the model 'int8', 1024 tokens; say max_length=1024 or "
            "less, or allow_beyond_context=True to measure it all the same",
        ),
        (
            Protocol("gptq"),
            1024,
            "max_length: 2048 (the default of protocol 'gptq') is longer than the context of the model 'int8', 1024 "
            "tokens; say max_length=1024 or less, or allow_beyond_context=True to measure it all the same",
        ),
        (
            Protocol("llama.cpp"),
            256,
            "max_length: 512 (the default of protocol 'llama.cpp') is longer than the context of the model 'int8', 256 "
            "tokens; say max_length=256 or less, or allow_beyond_context=True to measure it all the same",
        ),
        (Protocol(stride=1025), 1024, "stride: at most max_length=1024 (else tokens are skipped), got 1025"),
    ],
)
def test_what_only_the_model_can_tell_is_refused_when_it_is_known(
    protocol: Protocol, context: int | None, message: str
) -> None:
    with pytest.raises(ProtocolError) as raised:
        protocol.windowing(context, model="int8")
    assert str(raised.value) == message


def test_a_window_as_long_as_the_context_is_within_it() -> None:
    assert Protocol(max_length=1024).windowing(1024, model="m").max_length == 1024


def test_a_protocol_cannot_be_changed_after_it_was_checked() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Protocol().stride = 0
