"""Requests that read the same are read once: of a question whose choices are the letters A to D, the question. Pure."""

from __future__ import annotations

__all__ = ["read_once"]

from collections.abc import Callable, Sequence

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.data.requests.repeats import repeats
from pytest_lmgate.data.requests.requests import Request, by_request


def read_once(requests: Sequence[Request]) -> tuple[list[Request], Callable[[Sequence[Floats]], list[Floats]]]:
    """Join requests that read the same tokens; those with a source stay as they are.

    Returns:
        The joined requests, each with the targets of all that it stands for, and what turns their NLLs into those of
        the requests given.
    """
    equal = repeats(each.ids.tobytes() if each.source is None else number for number, each in enumerate(requests))
    same = [[requests[number] for number in numbers] for numbers in equal.values()]

    def parted(nll: Sequence[Floats]) -> list[Floats]:
        found: list[Floats] = [np.empty(0)] * len(requests)
        for numbers, several, together in zip(equal.values(), same, nll, strict=True):
            for number, part in zip(numbers, by_request(together, several), strict=True):
                found[number] = part
        return found

    return [_joined(several) for several in same], parted


def _joined(same: Sequence[Request]) -> Request:
    if len(same) == 1:
        return same[0]
    return Request(
        same[0].ids, np.concatenate([each.at for each in same]), np.concatenate([each.targets for each in same])
    )
