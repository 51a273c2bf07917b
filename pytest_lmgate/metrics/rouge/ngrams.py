"""N-grams and skip-bigrams that two texts share, each counted as often as in the text that has it less often.

Lin 2004, sections 2 and 5: a skip-bigram is an ordered pair of words with at most `gap` words between them.
"""

from __future__ import annotations

__all__ = ["clipped_overlap", "shared_ngrams", "shared_skip_bigrams", "total_ngrams", "total_skip_bigrams"]

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain


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


def shared_skip_bigrams(candidate: Sequence[str], reference: Sequence[str], gap: int | None) -> int:
    """Return how many skip-bigrams the two share, clipped; any gap if `gap` is None.

    One first word at a time, so that memory stays linear in the texts while time is that of listing all pairs.
    """
    in_candidate, in_reference = _positions(candidate), _positions(reference)
    return sum(
        clipped_overlap(_followers(candidate, here, gap), _followers(reference, in_reference[first], gap))
        for first, here in in_candidate.items()
        if first in in_reference
    )


def total_skip_bigrams(length: int, gap: int | None) -> int:
    """Return how many skip-bigrams a text of `length` words holds."""
    reach = length if gap is None else min(gap + 1, length)
    return reach * length - reach * (reach + 1) // 2


def _positions(tokens: Sequence[str]) -> dict[str, list[int]]:
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for position, token in enumerate(tokens):
        positions[token].append(position)
    return positions


def _followers(tokens: Sequence[str], positions: Sequence[int], gap: int | None) -> chain[str]:
    """Second words of all skip-bigrams whose first word stands at one of `positions`."""
    if gap is None:
        return chain.from_iterable(tokens[position + 1 :] for position in positions)
    return chain.from_iterable(tokens[position + 1 : position + 2 + gap] for position in positions)
