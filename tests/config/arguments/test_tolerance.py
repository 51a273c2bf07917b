"""A tolerance is read as written or refused, and one that no candidate could exceed is no gate."""

from __future__ import annotations

import math

import pytest

from pytest_lmgate.config.arguments.tolerance import Tolerance
from pytest_lmgate.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "size", "relative"),
    [
        ("1%", 0.01, True),
        (" 0.5 % ", 0.005, True),
        (".25%", 0.0025, True),
        ("0%", 0.0, True),
        ("100%", 1.0, True),
        (0, 0.0, False),
        (2, 2.0, False),
        (0.01, 0.01, False),
    ],
)
def test_a_percentage_is_relative_and_a_number_is_absolute(written: object, size: float, relative: bool) -> None:
    assert Tolerance.parse(written) == Tolerance(size, relative)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "1",
        "0.01",
        "-1%",
        "101%",
        "150 %",
        "%",
        "1%%",
        "1e-2%",
        "one percent",
        "nan%",
        -0.01,
        math.nan,
        math.inf,
        True,
        None,
        [1],
    ],
)
def test_anything_else_is_refused_with_what_was_written(written: object) -> None:
    with pytest.raises(ConfigError, match="tolerance: expected") as refused:
        Tolerance.parse(written)

    assert repr(written) in str(refused.value)


@pytest.mark.parametrize(
    "written", [10**400, -(10**400), 10**5000, "9" * 400 + "%", f"{'9' * 400}.5 %"], ids=["a", "b", "c", "d", "e"]
)
def test_what_is_beyond_a_float_is_refused_in_one_line(written: object) -> None:
    with pytest.raises(ConfigError, match=r"tolerance: expected a finite .{20,80}$"):
        Tolerance.parse(written)


@pytest.mark.parametrize("written", ["1%", "0.5%", 0.02, 3])
def test_a_tolerance_is_shown_as_it_can_be_written(written: str | float) -> None:
    assert str(Tolerance.parse(written)) == str(written)


@pytest.mark.parametrize(
    ("written", "direction", "span"),
    [
        (1, "higher", 1.0),
        (1.5, "higher", 1.0),
        ("100%", "higher", 1.0),
        ("100%", "higher", None),
        (100, "lower", 100.0),
    ],
)
def test_a_gate_that_could_never_fail_is_refused(written: str | float, direction: str, span: float | None) -> None:
    with pytest.raises(ConfigError, match="the gate could never fail"):
        Tolerance.parse(written).require_that_it_can_fail("accuracy", direction, span)


@pytest.mark.parametrize(
    ("written", "direction", "span"),
    [
        (0.99, "higher", 1.0),
        ("99%", "higher", 1.0),
        ("100%", "lower", None),
        (40, "lower", None),
    ],
)
def test_a_gate_that_can_fail_is_not(written: str | float, direction: str, span: float | None) -> None:
    Tolerance.parse(written).require_that_it_can_fail("ppl", direction, span)
