"""Signatures: rendered from fields, never read again."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from pytest_lmgate.config.signature import Signature

MADE = Signature([("BLEU", None), ("tok", "13a"), ("version", "2.6"), ("stop", "['|version:3']"), ("lmgate", "0.1")])


def test_a_signature_is_the_line_that_its_fields_make() -> None:
    assert MADE == "BLEU|tok:13a|version:2.6|stop:['|version:3']|lmgate:0.1"
    assert MADE.plus(("unit", "row")) == f"{MADE}|unit:row"
    assert json.loads(json.dumps(MADE)) == MADE


def test_versions_of_programs_take_no_part_in_a_comparison_and_a_text_that_looks_like_one_does() -> None:
    assert MADE.compared == "BLEU|tok:13a|stop:['|version:3']"
    assert type(MADE.compared) is str
    assert Signature([("version", None), ("lmgate", None)]).compared == "version|lmgate"


@pytest.mark.parametrize("text", ["", "s", "a|b:c", "a||b:c:d|", "length|version:3"])
def test_a_text_that_is_read_is_rendered_as_it_was(text: str) -> None:
    assert Signature.parse(text) == text


def test_a_copy_knows_its_fields() -> None:
    for again in (copy.deepcopy(MADE), pickle.loads(pickle.dumps(MADE))):
        assert (again, again.fields) == (MADE, MADE.fields)
