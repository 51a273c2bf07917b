"""Counts and bytes as people read them."""

from __future__ import annotations

import pytest

from pytest_lmgate.report.wording.counted import byte_size


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1.25e6, "1.25 MB"), (1.41e11, "141 GB"), (2.5e12, "2.5 TB")],
)
def test_bytes_have_the_largest_unit_below_them(number: float, words: str) -> None:
    assert byte_size(number) == words
