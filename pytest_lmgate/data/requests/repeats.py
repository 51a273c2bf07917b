"""Equal requests are scored once: the same tokens read, the same positions, the same targets. Pure.

Otherwise the rounding of their batches could make two numbers of one, and decide between equal choices.
"""

from __future__ import annotations

__all__ = ["repeats"]

from collections.abc import Hashable, Iterable


def repeats(requests: Iterable[Hashable]) -> dict[int, list[int]]:
    """Return the number of the first of each set of equal requests, with the numbers of all of the set, in order.

    Args:
        requests: What identifies each request: all that its numbers depend on.
    """
    first: dict[Hashable, int] = {}
    found: dict[int, list[int]] = {}
    for number, request in enumerate(requests):
        found.setdefault(first.setdefault(request, number), []).append(number)
    return found
