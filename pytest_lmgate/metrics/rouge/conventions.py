"""What is counted, how counts become scores, and which reference is best: the paper's way and the program's.

`Lin2004` is the paper: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries"; N, L and Lsum equal
rouge-score's. Where the paper leaves a choice, F weighs precision and recall alike; a text is one sequence of words,
except for Lsum; the union of Lsum is clipped by word counts, as both programs do; SU counts each unigram once, which is
what the paper's begin-of-sentence marker comes to with any gap.

`Rouge155` is the program, ROUGE-1.5.5.pl of 2005, quirks included, so that tables published with it can be checked: its
L is the union over sentences, clipped; its W is too, weighs the length of the reference twice, and gives the weight of
a run to what clipping left of it; its SU leaves the last word's unigram out; R and P are rounded to five decimals
before F is made of them; the best of several references has the best recall.
"""

from __future__ import annotations

__all__ = ["Convention", "Lin2004", "Overlap", "Rouge155", "Scores"]

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

from pytest_lmgate.metrics.rouge.ngrams import shared_ngrams, shared_skip_bigrams, total_ngrams, total_skip_bigrams
from pytest_lmgate.metrics.rouge.porter import nltk_stem, program_stem
from pytest_lmgate.metrics.rouge.subsequences import longest_common_subsequence, shared_in_union, weighted_table
from pytest_lmgate.metrics.rouge.tokens import Sentences, Stems
from pytest_lmgate.metrics.rouge.variants import Variant

_PRINTED_DIGITS = 5


class Overlap(NamedTuple):
    """What one candidate and one reference share, and what each of them holds; or the sum of that over references.

    N-grams, words of a subsequence, skip-bigrams, or the weight of a subsequence.
    """

    match: float
    candidate: float
    reference: float

    def plus(self, other: Overlap) -> Overlap:
        """Return the counts of both together."""
        return Overlap(*(a + b for a, b in zip(self, other, strict=True)))


class Scores(NamedTuple):
    """Precision, recall and their harmonic mean, each in 0-1."""

    precision: float
    recall: float
    fmeasure: float


class Convention(ABC):
    """One way to compute ROUGE.

    Attributes:
        name: As in the signature.
        tokenizer: Name of the tokenizer taken when the user names none.
        stem: From a word to its stem.
        stems: The same, remembered from one corpus to the next.
        stemmer_name: As in the signature.
        by_sentence: The families that are computed over newline-separated sentences; for others a text is one sentence.
        unigrams: Which words of a text SU counts as unigrams.
    """

    name: str
    tokenizer: str
    stem: Callable[[str], str]
    stems: Stems
    stemmer_name: str
    by_sentence: frozenset[str]
    unigrams: slice

    def overlap(self, variant: Variant, candidate: Sentences, reference: Sentences) -> Overlap:
        """Count what a candidate and one reference share."""
        if variant.family == "W":
            return self._weighted(variant.exponent, candidate, reference)
        if variant.family in self.by_sentence:
            return Overlap(shared_in_union(candidate, reference), _total_words(candidate), _total_words(reference))
        (left,), (right,) = candidate, reference
        if variant.family == "N":
            order = variant.order
            return Overlap(shared_ngrams(left, right, order), total_ngrams(left, order), total_ngrams(right, order))
        if variant.family == "L":
            return Overlap(longest_common_subsequence(left, right), len(left), len(right))
        totals = (total_skip_bigrams(len(tokens), variant.gap) for tokens in (left, right))
        skipped = Overlap(shared_skip_bigrams(left, right, variant.gap), *totals)
        if variant.family == "S":
            return skipped
        left, right = left[self.unigrams], right[self.unigrams]
        return skipped.plus(Overlap(shared_ngrams(left, right, 1), len(left), len(right)))

    def scores(self, variant: Variant, overlap: Overlap) -> Scores:
        """Return the scores for these counts; 0 where nothing was counted."""
        precision = overlap.match / overlap.candidate if overlap.candidate else 0.0
        recall = overlap.match / overlap.reference if overlap.reference else 0.0
        if variant.family == "W":
            precision, recall = (math.pow(each, 1 / variant.exponent) for each in (precision, recall))
        return self._with_f(precision, recall)

    @abstractmethod
    def rank(self, variant: Variant, overlap: Overlap, reference: Sentences) -> float:
        """Return what the best of several references has most of; the first wins ties."""

    @abstractmethod
    def _weighted(self, exponent: float, candidate: Sentences, reference: Sentences) -> Overlap: ...

    @abstractmethod
    def _with_f(self, precision: float, recall: float) -> Scores: ...


class Lin2004(Convention):
    """The paper's definitions; of several references the one with the best F counts, as in rouge-score."""

    name = "lin2004"
    tokenizer = "unicode"
    stem = staticmethod(nltk_stem)
    stems = Stems(nltk_stem)
    stemmer_name = "porter-nltk"
    by_sentence = frozenset({"Lsum"})
    unigrams = slice(None)

    def rank(self, variant: Variant, overlap: Overlap, reference: Sentences) -> float:
        """Return F."""
        return self.scores(variant, overlap).fmeasure

    def _weighted(self, exponent: float, candidate: Sentences, reference: Sentences) -> Overlap:
        (left,), (right,) = candidate, reference
        match = weighted_table(left, right, exponent)[-1][-1]
        return Overlap(match, math.pow(len(left), exponent), math.pow(len(right), exponent))

    def _with_f(self, precision: float, recall: float) -> Scores:
        total = precision + recall
        return Scores(precision, recall, 2 * precision * recall / total if total else 0.0)


class Rouge155(Convention):
    """What the program prints for each evaluation (``-a -f B``, or ``-f A`` for pooled references)."""

    name = "rouge-1.5.5"
    tokenizer = "rouge-1.5.5"
    stem = staticmethod(program_stem)
    stems = Stems(program_stem)
    stemmer_name = "porter-rouge-1.5.5"
    by_sentence = frozenset({"L", "Lsum", "W"})
    unigrams = slice(-1)

    def rank(self, variant: Variant, overlap: Overlap, reference: Sentences) -> float:
        """Return recall, rounded for n-grams and skip-bigrams only; for W over the reference weighted once."""
        total = overlap.reference
        if variant.family == "W":
            total = _weight_of_sentences(reference, variant.exponent)
            return math.pow(overlap.match / total, 1 / variant.exponent) if total else 0.0
        recall = overlap.match / total if total else 0.0
        return recall if variant.family in self.by_sentence else round(recall, _PRINTED_DIGITS)

    def _weighted(self, exponent: float, candidate: Sentences, reference: Sentences) -> Overlap:
        return Overlap(
            _weight_of_union(candidate, reference, exponent),
            math.pow(_total_words(candidate), exponent),
            math.pow(_weight_of_sentences(reference, exponent), exponent),
        )

    def _with_f(self, precision: float, recall: float) -> Scores:
        precision, recall = round(precision, _PRINTED_DIGITS), round(recall, _PRINTED_DIGITS)
        mean = 0.5 * precision + 0.5 * recall
        return Scores(precision, recall, round(precision * recall / mean, _PRINTED_DIGITS) if mean else 0.0)


def _total_words(sentences: Sentences) -> int:
    return sum(map(len, sentences))


def _weight_of_sentences(sentences: Sentences, exponent: float) -> float:
    total = 0.0
    for sentence in sentences:  # not sum(), which compensates rounding from Python 3.12 on
        total += math.pow(len(sentence), exponent)
    return total


def _weight_of_union(candidate: Sentences, reference: Sentences, exponent: float) -> float:
    """Weigh the runs in the union of weighted subsequences, sentence by sentence of the reference.

    A word that clipping takes out neither lengthens nor ends a run; a run whose last word it takes out goes on at
    the next word of the union, and is lost if there is none in the sentence.
    """
    left_in_candidate = Counter(chain.from_iterable(candidate))
    total = 0.0
    for sentence in reference:
        union: set[int] = set()
        for other in candidate:
            union.update(_weighted_path(other, sentence, exponent))
        run = 0
        for position in sorted(union):
            word = sentence[position]
            if not left_in_candidate[word]:
                continue
            left_in_candidate[word] -= 1
            run += 1
            if position + 1 not in union:
                total += math.pow(run, exponent)
                run = 0
    return total


def _weighted_path(candidate: Sequence[str], reference: Sequence[str], exponent: float) -> list[int]:
    """Return the positions in `reference` of the weighted subsequence that the program walks back along."""
    table = weighted_table(candidate, reference, exponent, stepwise=True)
    row, column = len(reference), len(candidate)
    path = []
    while row and column:
        if reference[row - 1] == candidate[column - 1]:
            row -= 1
            column -= 1
            path.append(row)
        elif table[row - 1][column] >= table[row][column - 1]:
            row -= 1
        else:
            column -= 1
    return path
