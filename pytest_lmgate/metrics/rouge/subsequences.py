"""Longest common subsequences of token lists: length, union over sentences, weights (Lin 2004, 3.1, 3.2 and 4).

A longest common subsequence is rarely unique, and a union over sentences depends on which one is taken. ROUGE-1.5.5
and rouge-score take the same: from the ends of both texts, a match is taken where there is one; else one step back in
the reference if that loses nothing, else one in the candidate. `union_of_subsequences` follows exactly that path, for
all sentences of the reference at once, on the bits of Python's integers (Crochemore et al. 2001, "A fast and practical
bit-vector algorithm for the longest common subsequence problem"; the walk back is ours).
"""

from __future__ import annotations

__all__ = ["longest_common_subsequence", "shared_in_union", "union_of_subsequences", "weighted_table"]

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, chain, compress

from rapidfuzz.distance import LCSseq

from pytest_lmgate.metrics.rouge.ngrams import clipped_overlap
from pytest_lmgate.metrics.rouge.tokens import Sentences

_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def longest_common_subsequence(candidate: Sequence[str], reference: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    return LCSseq.similarity(candidate, reference)


def shared_in_union(candidate: Sentences, reference: Sentences) -> int:
    """Return the size of the union longest common subsequence of two texts of sentences.

    For each sentence of the reference, the words in its longest common subsequence with any sentence of the candidate;
    over all sentences, a word counts no more often than the candidate holds it, as ROUGE-1.5.5 clips.
    """
    if len(candidate) == len(reference) == 1:
        return longest_common_subsequence(candidate[0], reference[0])  # nothing to unite, nothing to clip
    return clipped_overlap(union_of_subsequences(candidate, reference), chain.from_iterable(candidate))


def union_of_subsequences(candidate: Sentences, reference: Sentences) -> list[str]:
    """Return the words of `reference` in the union, in order.

    Bits stand for the words of the reference that the candidate holds too (another never stops the walk), sentence
    after sentence, a guard bit before, between and after them. With t[j][i] the length for the first j words of a
    candidate sentence and the first i of a reference sentence, bit i of `level` after word j is 1 where t[j][i] =
    t[j][i-1]. Walking back at word j, a step back in the reference is free there, unless it would pass a match: these
    bits are `free`. Carries run up, so that the walk down needs the bits mirrored.
    """
    words, masks, last_words, guards = _layout(candidate, reference)
    width = (guards.bit_length() + 7) // 8
    words_only = ((1 << guards.bit_length()) - 1) ^ guards
    mirrored_masks = {word: _mirror(mask.to_bytes(width, "little")) for word, mask in masks.items()}
    ends = _mirror(last_words.to_bytes(width, "little"))

    union = 0
    for sentence in candidate:
        level = words_only
        frees: list[bytes] = []
        matches: list[int] = []
        for word in sentence:
            mask = masks.get(word)
            if mask is not None:
                hit = level & mask
                missed = level ^ hit
                level = (level + hit | missed) & words_only
                frees.append((level ^ (level & mask)).to_bytes(width, "little"))
                matches.append(mirrored_masks[word])
            elif not matches or matches[-1]:
                # At a word without a match the walk goes down to the next bit that is not free; a second such word
                # moves it no further.
                frees.append(level.to_bytes(width, "little"))
                matches.append(0)
        mirrored = b"".join(frees).translate(_MIRRORED)
        at, end = ends, len(mirrored)
        for match in reversed(matches):
            free = int.from_bytes(mirrored[end - width : end], "big")
            end -= width
            at = (free + at | free) ^ free
            hit = at & match
            if hit:
                union |= hit
                at += hit  # one word down, which in mirrored bits is up
    flags = f"{union:0{8 * width}b}"[1:]  # the first bit, now the most significant, was the lowest guard
    return list(compress(words, map(int, flags)))


def _layout(candidate: Sentences, reference: Sentences) -> tuple[list[str], dict[str, int], int, int]:
    """Lay the reference's words out on bits.

    Returns:
        What each bit from the second on stands for, a guard being an empty string; the bits of each word; the bits of
        last words; the guards.
    """
    held = set(chain.from_iterable(candidate))
    words: list[str] = []
    masks: dict[str, int] = {}
    bit, guards, last_words = 2, 1, 0
    for sentence in reference:
        before = bit
        for word in sentence:
            if word in held:
                masks[word] = masks.get(word, 0) | bit
                bit <<= 1
                words.append(word)
        if bit > before:
            last_words |= bit >> 1
            guards |= bit
            bit <<= 1
            words.append("")
    return words, masks, last_words, guards


def _mirror(data: bytes) -> int:
    """Return the little-endian number in `data` with its bits in opposite order."""
    return int.from_bytes(data.translate(_MIRRORED), "big")


def weighted_table(
    candidate: Sequence[str], reference: Sequence[str], exponent: float, *, stepwise: bool = False
) -> list[list[float]]:
    """Return the dynamic programming table of Lin 2004, section 4, shape ``[reference + 1, candidate + 1]``.

    Where words match, a cell extends the run on its diagonal; elsewhere it is the larger of its upper and left
    neighbours. The last cell is the weighted length; as a match is always taken, a larger one may exist.

    Args:
        candidate: Tokens.
        reference: Tokens.
        exponent: Of the weight ``f(k) = k ** exponent`` of k matches in a row.
        stepwise: Add ``f(k+1) - f(k)`` at each match, rounding each time, as ROUGE-1.5.5 does; else add f of the
            whole run to what stood before it, so that the weight of identical texts is exact.
    """
    weights = [math.pow(k, exponent) for k in range(len(reference) + 1)]
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, word in enumerate(candidate, start=1):
        places[word].append(place)
    row = [0.0] * (len(candidate) + 1)
    table = [row]
    runs: dict[int, tuple[int, float]] = {}  # end of a run of matches -> its length, what stood before it
    for word in reference:
        above, runs_above = row, runs
        row, runs = [], {}
        begin, value = 0, 0.0
        for place in places.get(word, ()):
            row.extend(accumulate(above[begin + 1 : place], max, initial=value))
            length, before = runs_above.get(place - 1, (0, above[place - 1]))
            runs[place] = length + 1, before
            if stepwise:
                value = above[place - 1] + weights[length + 1] - weights[length]
            else:
                value = before + weights[length + 1]
            begin = place
        row.extend(accumulate(above[begin + 1 :], max, initial=value))
        table.append(row)
    return table
