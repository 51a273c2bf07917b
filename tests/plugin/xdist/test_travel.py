"""What a report carries is plain before it travels from a worker of xdist to the controller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.errors import LmgateError
from pytest_lmgate.plugin.xdist.travel import make_plain


class Number(float):
    """As a `Score` is."""

    def __repr__(self) -> str:
        return "a number"


class Count(int):
    pass


class Name(str):
    __slots__ = ()


def plain(value: Any) -> Any:
    report: Any = SimpleNamespace(value=value)
    make_plain(report)
    return report.value


@pytest.mark.parametrize(
    ("value", "expected"),
    [(Number(1.5), 1.5), (Count(3), 3), (Name("die"), "die"), (np.float64(0.25), 0.25), (True, True), (None, None)],
)
def test_numbers_and_texts_of_other_classes_become_builtins(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    assert type(plain(value)) is type(expected)


def test_builtins_are_found_within_lists_tuples_and_dictionaries() -> None:
    found = plain([("lmgate", {Name("value"): [Number(1.5), {"n": Count(3)}]})])
    assert found == [("lmgate", {"value": [1.5, {"n": 3}]})]
    assert type(found[0]) is tuple
    assert {type(key) for key in found[0][1]} == {str}
    assert [type(each) for each in found[0][1]["value"]] == [float, dict]


def test_an_object_of_this_package_becomes_its_text_and_any_other_stays_for_pytest() -> None:
    other = object()
    assert plain(LmgateError("broken")) == "broken"
    assert plain(other) is other
