"""Requests that read the same tokens are joined, and each gets its own numbers back."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.arrays import Floats
from pytest_lmgate.windows.requests import Request, read_once

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=3)


def request(ids: list[int], targets: list[int], source: list[int] | None = None) -> Request:
    at = np.arange(len(ids) - len(targets), len(ids))
    return Request(np.array(ids), at, np.array(targets), None if source is None else np.array(source))


def score(requests: list[Request]) -> list[Floats]:
    """Numbers that depend on all that a request reads and scores."""
    return [
        sum(each.ids * 3.0 ** np.arange(len(each.ids))) + 100.0 * each.at + 1000.0 * each.targets for each in requests
    ]


@given(st.lists(st.tuples(TOKENS, st.integers(1, 3)), min_size=1, max_size=12))
def test_each_request_gets_the_numbers_that_it_has_alone(drawn: list[tuple[list[int], int]]) -> None:
    requests = [request(ids, list(range(min(targets, len(ids))))) for ids, targets in drawn]
    joined, parted = read_once(requests)
    assert len(joined) == len({tuple(ids) for ids, _ in drawn})
    for found, expected in zip(parted(score(joined)), score(requests), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_requests_with_a_source_stay_as_they_are() -> None:
    requests = [request([1, 2], [3], [5]), request([1, 2], [3], [6])]
    joined, parted = read_once(requests)
    assert joined == requests
    assert [found.tolist() for found in parted(score(joined))] == [found.tolist() for found in score(requests)]
