"""Requests that read the same are read once: of a question whose choices are the letters A to D, the question."""

from __future__ import annotations

__all__ = ["read_once"]

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.data.requests.requests import Request


def read_once(requests: Sequence[Request]) -> tuple[list[Request], Callable[[Sequence[Floats]], list[Floats]]]:
    """Join requests that read the same tokens; those with a source stay as they are.

    Returns:
        The joined requests, each with the targets of all that it stands for, and what turns their NLLs into those of
        the requests given.
    """
    equal: dict[Hashable, list[int]] = {}
    for number, request in enumerate(requests):
        equal.setdefault(request.ids.tobytes() if request.source is None else number, []).append(number)
    joined = [_joined([requests[number] for number in numbers]) for numbers in equal.values()]

    def parted(nll: Sequence[Floats]) -> list[Floats]:
        found: list[Floats] = [np.empty(0)] * len(requests)
        for numbers, together in zip(equal.values(), nll, strict=True):
            ends = np.cumsum([len(requests[number].targets) for number in numbers])[:-1]
            for number, part in zip(numbers, np.split(together, ends), strict=True):
                found[number] = part
        return found

    return joined, parted


def _joined(same: Sequence[Request]) -> Request:
    if len(same) == 1:
        return same[0]
    return Request(
        same[0].ids, np.concatenate([each.at for each in same]), np.concatenate([each.targets for each in same])
    )
