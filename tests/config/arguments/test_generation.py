"""How texts are generated: greedy unless sampling is asked for, and everything that can change a text in one line."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.errors import ConfigError


def test_greedy_is_the_default() -> None:
    settings = GenerationSettings.of()
    assert settings == GenerationSettings(max_new_tokens=128, num_beams=1)
    assert not settings.is_sampling
    assert settings.signature == "max_new_tokens:128|num_beams:1"


def test_everything_that_was_said_is_in_the_signature() -> None:
    settings = GenerationSettings.of(
        stop=["\n", "|"], max_new_tokens=5, seed=0, temperature=0.5, top_p=1, top_k=40, truncate="left"
    )
    assert settings.is_sampling
    assert settings.signature == (
        "max_new_tokens:5|num_beams:1|seed:0|temperature:0.5|top_p:1|top_k:40|truncate:left|stop:['\\n', '|']"
    )


_SAMPLING = {"seed": 1, "temperature": 0.5}


@pytest.mark.parametrize(
    ("base", "change"),
    [
        ({}, {"max_new_tokens": 7}),
        ({}, {"num_beams": 2}),
        ({}, {"stop": "a"}),
        ({}, {"truncate": "left"}),
        ({}, _SAMPLING),
        (_SAMPLING, {"seed": 2}),
        (_SAMPLING, {"temperature": 0.6}),
        (_SAMPLING, {"top_p": 0.9}),
        (_SAMPLING, {"top_k": 9}),
    ],
)
def test_the_signature_changes_with_every_setting(base: dict[str, Any], change: dict[str, Any]) -> None:
    assert GenerationSettings.of(**base).signature != GenerationSettings.of(**{**base, **change}).signature


@pytest.mark.parametrize(("one", "other"), [("a", ["a"]), ("a", ("a",)), (None, []), (None, ())])
def test_one_stop_string_is_a_list_of_one(one: Any, other: Any) -> None:
    assert GenerationSettings.of(stop=one) == GenerationSettings.of(stop=other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens: expected a whole number from 1, got 0"),
        ({"max_new_tokens": 1.5}, "max_new_tokens: expected a whole number from 1, got 1.5"),
        ({"max_new_tokens": None}, "max_new_tokens: expected a whole number from 1, got None"),
        ({"num_beams": True}, "num_beams: expected a whole number from 1, got True"),
        ({"seed": -1, "top_k": 5}, "seed: expected a whole number from 0, got -1"),
        ({"seed": "1", "top_k": 5}, "seed: expected a whole number from 0, got '1'"),
        ({"seed": 1, "top_k": 0}, "top_k: expected a whole number from 1, got 0"),
        ({"seed": 1, "top_k": 2.5}, "top_k: expected a whole number from 1, got 2.5"),
        ({"seed": 1, "temperature": 0}, "temperature: expected a positive number, got 0"),
        ({"seed": 1, "temperature": math.inf}, "temperature: expected a positive number, got inf"),
        ({"seed": 1, "temperature": math.nan}, "temperature: expected a positive number, got nan"),
        ({"seed": 1, "temperature": True}, "temperature: expected a positive number, got True"),
        ({"seed": 1, "top_p": 1.1}, "top_p: expected a positive number up to 1, got 1.1"),
        ({"seed": 1, "top_p": "0.9"}, "top_p: expected a positive number up to 1, got '0.9'"),
        (
            {"temperature": 0.5, "top_k": 5},
            "temperature, top_k: sampling needs a seed, or no two runs agree; say seed=1234",
        ),
        ({"seed": 1}, "seed: only sampling needs one; say temperature, top_p or top_k beside it, or leave it out"),
        (
            {"seed": 1, "top_p": 0.9, "num_beams": 2},
            "num_beams: beam search does not sample; leave out top_p and seed",
        ),
        ({"stop": ""}, "stop: expected strings that are not empty, got ['']"),
        ({"stop": ["a", 1]}, "stop: expected strings that are not empty, got ['a', 1]"),
        ({"stop": 5}, "stop: expected a string or a list of strings, got 5"),
        ({"truncate": "right"}, "truncate: expected 'left' or nothing, got 'right'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_was_expected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        GenerationSettings.of(**arguments)
    assert str(raised.value) == message


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GenerationSettings().num_beams = 4
