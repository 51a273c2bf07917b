"""Which requests share a batch of llama.cpp, and that they share none where company changes a number."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_lmgate.backends.llamacpp.together import Together, planned
from pytest_lmgate.data.requests.requests import Request


def request(number: int, tokens: int = 10) -> Request:
    ids = np.full(tokens, number)
    return Request(ids, np.arange(tokens), ids)


def alone(request: Request) -> np.ndarray:
    return request.ids * 1.0


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([128] * 16, (128, 4)),
        ([128] * 15, (128, 1)),  # too few to pay for the trial
        ([128] * 16 + [90], (128, 4)),
        ([128] * 16 + [1024], (128, 2)),  # each sequence has room for the longest
        ([128] * 16 + [2048], (128, 1)),
        ([10] * 100, (10, 8)),
        ([257] * 100, (257, 1)),
        ([1] * 100, (0, 1)),
        ([], (0, 1)),
    ],
)
def test_rows_of_the_length_that_most_have_share_a_batch(lengths: list[int], expected: tuple[int, int]) -> None:
    found = planned(np.array(lengths, dtype=np.int64), 512)
    assert (found.tokens, found.rows) == expected


def test_full_batches_are_read_together_and_other_rows_alone() -> None:
    rows = [request(1), request(2, 7), *(request(number) for number in range(3, 10))]
    batches = []

    def together(some: list[Request]) -> list[np.ndarray]:
        batches.append([int(each.ids[0]) for each in some])
        return [alone(each) for each in some]

    how = Together(10, 3)
    found = how.read(rows, alone, together)
    assert batches == [[1, 3, 4], [5, 6, 7]]
    assert how.is_proven
    for row, numbers in zip(rows, found, strict=True):
        assert np.array_equal(numbers, alone(row))


@pytest.mark.parametrize("place", [0, 2])
def test_one_bit_of_difference_has_all_rows_read_alone(place: int) -> None:
    rows, batches = [request(number) for number in range(1, 10)], []

    def together(some: list[Request]) -> list[np.ndarray]:
        batches.append(len(some))
        found = [alone(each) for each in some]
        found[place][-1] = np.nextafter(found[place][-1], 99)
        return found

    how = Together(10, 3)
    found = how.read(rows, alone, together)
    assert batches == [3]
    assert how.rows == 1
    for row, numbers in zip(rows, found, strict=True):
        assert np.array_equal(numbers, alone(row))
