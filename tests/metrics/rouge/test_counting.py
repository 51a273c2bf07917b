"""What is counted, against counting in the plainest way."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_lmgate.metrics.rouge.ngrams import shared_ngrams, shared_skip_bigrams, total_ngrams, total_skip_bigrams
from pytest_lmgate.metrics.rouge.subsequences import (
    longest_common_subsequence,
    shared_in_union,
    union_of_subsequences,
    weighted_table,
)

TOKENS = st.lists(st.sampled_from("abcdef"), max_size=14)
SENTENCES = st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12), max_size=6)
LONG = st.lists(st.lists(st.sampled_from("abcdefghijklmnop"), min_size=1, max_size=150), min_size=1, max_size=3)


def subsequence_table(candidate: list[str], reference: list[str]) -> list[list[int]]:
    table = [[0] * (len(candidate) + 1) for _ in range(len(reference) + 1)]
    for i, word in enumerate(reference, start=1):
        for j, other in enumerate(candidate, start=1):
            table[i][j] = table[i - 1][j - 1] + 1 if word == other else max(table[i - 1][j], table[i][j - 1])
    return table


def plain_path(candidate: list[str], reference: list[str]) -> set[int]:
    """Positions in the reference that both programs take: a match first, then back in the reference if that is free."""
    table = subsequence_table(candidate, reference)
    i, j, path = len(reference), len(candidate), set()
    while i and j:
        if reference[i - 1] == candidate[j - 1]:
            i, j = i - 1, j - 1
            path.add(i)
        elif table[i][j - 1] > table[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return path


def plain_union(candidate: list[list[str]], reference: list[list[str]]) -> list[str]:
    words = []
    for sentence in reference:
        union = set().union(*(plain_path(other, sentence) for other in candidate))
        words += [sentence[position] for position in sorted(union)]
    return words


@settings(deadline=None, max_examples=1000)
@given(SENTENCES, SENTENCES)
def test_union_holds_exactly_the_words_of_the_plain_walk(candidate, reference):
    assert union_of_subsequences(candidate, reference) == plain_union(candidate, reference)


@settings(deadline=None, max_examples=60)
@given(LONG, LONG)
def test_union_is_exact_across_machine_words(candidate, reference):
    assert union_of_subsequences(candidate, reference) == plain_union(candidate, reference)


@settings(deadline=None)
@given(st.lists(TOKENS, max_size=4), st.lists(TOKENS, max_size=4))
def test_union_is_clipped_by_the_candidates_counts(candidate, reference):
    left = Counter(word for sentence in candidate for word in sentence)
    hits = 0
    for word in plain_union(candidate, reference):
        hits += left[word] > 0
        left[word] -= 1
    assert shared_in_union(candidate, reference) == hits


@given(TOKENS, TOKENS)
def test_subsequence_length(candidate, reference):
    assert longest_common_subsequence(candidate, reference) == subsequence_table(candidate, reference)[-1][-1]


@given(TOKENS, TOKENS, st.booleans())
def test_weighted_table_follows_the_papers_recurrence(candidate, reference, stepwise):
    def f(k: int) -> float:
        return k**1.2

    value = [[0.0] * (len(candidate) + 1) for _ in range(len(reference) + 1)]
    run = [[0] * (len(candidate) + 1) for _ in range(len(reference) + 1)]
    for i, word in enumerate(reference, start=1):
        for j, other in enumerate(candidate, start=1):
            if word == other:
                k = run[i - 1][j - 1]
                value[i][j] = value[i - 1][j - 1] + f(k + 1) - f(k)
                run[i][j] = k + 1
            else:
                value[i][j] = max(value[i - 1][j], value[i][j - 1])
    table = weighted_table(candidate, reference, 1.2, stepwise=stepwise)
    for ours, theirs in zip(table, value, strict=True):
        assert ours == (theirs if stepwise else pytest.approx(theirs))


@given(TOKENS, TOKENS, st.none() | st.integers(0, 15))
def test_skip_bigrams_are_the_pairs_within_the_gap(candidate, reference, gap):
    def pairs(tokens: list[str]) -> Counter:
        return Counter(
            (tokens[i], tokens[j]) for i, j in combinations(range(len(tokens)), 2) if gap is None or j - i - 1 <= gap
        )

    assert shared_skip_bigrams(candidate, reference, gap) == (pairs(candidate) & pairs(reference)).total()
    assert total_skip_bigrams(len(candidate), gap) == pairs(candidate).total()


@given(TOKENS, TOKENS, st.integers(1, 5))
def test_ngrams_are_the_runs_of_words(candidate, reference, order):
    def runs(tokens: list[str]) -> Counter:
        return Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))

    assert shared_ngrams(candidate, reference, order) == (runs(candidate) & runs(reference)).total()
    assert total_ngrams(candidate, order) == runs(candidate).total()
