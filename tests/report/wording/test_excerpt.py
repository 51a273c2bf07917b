"""A model's text in one line of a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.report.wording.excerpt import excerpt, printable


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("", 20, ""),
        ("short", 20, "short"),
        ("exactly as many cell", 20, "exactly as many cell"),
        ("exactly as many cells", 20, "exactly as many..."),
        ("x" * 21, 20, "x" * 17 + "..."),
        ("a very" + "long" * 10, 20, "a verylonglonglon..."),
        ("天气很好" * 3, 20, "天气很好天气很好..."),
        ("天气很好天气很好天气", 20, "天气很好天气很好天气"),
        ("류현진이 공을 던졌다.", 20, "류현진이 공을..."),
        ("e\u0301" * 20, 20, "e\u0301" * 20),
        ("two\nlines\tand\r\x1b[31mred\x1b[0m", 80, r"two\nlines\tand\r\x1b[31mred\x1b[0m"),
        ("no\xa0break, \u202eright to left, half \ud800", 80, r"no\xa0break, \u202eright to left, half \ud800"),
        ("می\u200cخواهم", 20, "می\u200cخواهم"),
        ("\x1b" * 9, 20, r"\x1b\x1b\x1b\x1b..."),
    ],
)
def test_a_text_is_shown_in_one_line_as_far_as_it_fits(text: str, width: int, shown: str) -> None:
    assert excerpt(text, width) == shown


@given(text=st.text(), width=st.integers(4, 60))
def test_an_excerpt_is_printable_and_never_wider_than_it_may_be(text: str, width: int) -> None:
    shown = excerpt(text, width)
    assert "\n" not in shown
    shown.encode("utf-8")
    wide = sum(
        0
        if c in "\u200c\u200d" or unicodedata.category(c) in ("Mn", "Me")
        else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in shown
    )
    assert wide <= width


def test_a_long_text_is_not_read_to_its_end() -> None:
    def letters() -> object:
        yield from "abcdefghij" * 10
        raise AssertionError("read on although nothing more could be shown")

    class Endless(str):
        __slots__ = ()

        def __iter__(self):  # type: ignore[no-untyped-def]
            return letters()

    assert excerpt(Endless(), 20) == "abcdefghijabcdefg..."


def test_what_no_file_takes_is_written_as_an_escape() -> None:
    assert printable("half \ud800 of 류현진") == r"half \ud800 of 류현진"
