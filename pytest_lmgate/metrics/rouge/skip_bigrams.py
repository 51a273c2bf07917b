"""Skip-bigrams that two texts share: ordered pairs of words with at most `gap` words between them (Lin 2004, 5)."""

from __future__ import annotations

__all__ = ["shared_skip_bigrams", "total_skip_bigrams"]

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from pytest_lmgate.metrics.rouge.ngrams import clipped_overlap


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
