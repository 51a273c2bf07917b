"""An engine's exception in a message: with the line to look at, where it is one of the user's own."""

from __future__ import annotations

import json

import pytest

from pytest_lmgate.backends.raised import raised


def test_what_was_raised_is_told_with_the_line_of_the_users_own_code() -> None:
    def refuse() -> None:
        json.loads("{")

    with pytest.raises(ValueError, match="Expecting property name") as found:
        refuse()
    line = refuse.__code__.co_firstlineno + 1
    assert raised(found.value) == f"JSONDecodeError: {found.value} ({__file__}:{line})"


def test_what_a_library_raised_by_itself_has_no_line() -> None:
    with pytest.raises(ValueError, match="Expecting property name") as found:
        json.loads("{")
    while found.value.__traceback__ is not None and found.value.__traceback__.tb_frame.f_code.co_filename == __file__:
        found.value.__traceback__ = found.value.__traceback__.tb_next
    assert raised(found.value) == f"JSONDecodeError: {found.value}"
