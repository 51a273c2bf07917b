"""N-grams that two texts share, each counted as often as it stands in the one that has it less often (Lin 2004, 2)."""

from __future__ import annotations

__all__ = ["clipped_overlap", "shared_ngrams", "total_ngrams"]

from collections.abc import Hashable, Iterable, Sequence


def shared_ngrams(candidate: Sequence[str], reference: Sequence[str], order: int) -> int:
    """Return how many n-grams of `order` words the two share, clipped."""
    if order == 1:
        return clipped_overlap(candidate, reference)
    return clipped_overlap(_ngrams(candidate, order), _ngrams(reference, order))


def total_ngrams(tokens: Sequence[str], order: int) -> int:
    """Return how many n-grams of `order` words `tokens` holds."""
    return max(0, len(tokens) - order + 1)


def clipped_overlap(left: Iterable[Hashable], right: Iterable[Hashable]) -> int:
    """Return the size of the intersection of two multisets."""
    unmatched: dict[Hashable, int] = {}
    for item in left:
        unmatched[item] = unmatched.get(item, 0) + 1
    shared = 0
    for item in right:
        if unmatched.get(item):
            unmatched[item] -= 1
            shared += 1
    return shared


def _ngrams(tokens: Sequence[str], order: int) -> Iterable[tuple[str, ...]]:
    return zip(*(tokens[start:] for start in range(order)), strict=False)
