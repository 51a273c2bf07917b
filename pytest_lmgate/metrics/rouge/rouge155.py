"""The program: ROUGE-1.5.5.pl of 2005, quirks included, so that tables published with it can be checked.

Where it departs from the paper: its L is the union over sentences, clipped; its W is too, weighs the length of the
reference twice, and gives the weight of a run to what clipping left of it; its SU leaves the last word's unigram out;
R and P are rounded to five decimals before F is made of them; the best of several references has the best recall.
"""

from __future__ import annotations

__all__ = ["Rouge155"]

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from pytest_lmgate.metrics.rouge.convention import Convention, Overlap, Scores, total_words
from pytest_lmgate.metrics.rouge.ngrams import shared_ngrams, total_ngrams
from pytest_lmgate.metrics.rouge.porter import program_stem
from pytest_lmgate.metrics.rouge.reading import Sentences, Stems
from pytest_lmgate.metrics.rouge.skip_bigrams import shared_skip_bigrams, total_skip_bigrams
from pytest_lmgate.metrics.rouge.subsequences import shared_in_union
from pytest_lmgate.metrics.rouge.variants import Variant
from pytest_lmgate.metrics.rouge.weighted import weight, weight_inverse, weighted_table

_PRINTED_DIGITS = 5


class Rouge155(Convention):
    """What the program prints for each evaluation (``-a -f B``, or ``-f A`` for pooled references)."""

    name = "rouge-1.5.5"
    tokenizer = "rouge-1.5.5"
    stem = staticmethod(program_stem)
    stems = Stems(program_stem)
    stemmer_name = "porter-rouge-1.5.5"

    def reads_sentences(self, variant: Variant) -> bool:
        """Every subsequence is sought between sentences."""
        return variant.family in ("L", "Lsum", "W")

    def overlap(self, variant: Variant, candidate: Sentences, reference: Sentences) -> Overlap:
        """Count what a candidate and one reference share."""
        if variant.family in ("L", "Lsum"):
            return Overlap(shared_in_union(candidate, reference), total_words(candidate), total_words(reference))
        if variant.family == "W":
            return Overlap(
                _weight_of_union(candidate, reference, variant.exponent),
                weight(total_words(candidate), variant.exponent),
                weight(_weight_of_sentences(reference, variant.exponent), variant.exponent),
            )
        (left,), (right,) = candidate, reference
        if variant.family == "N":
            order = variant.order
            return Overlap(shared_ngrams(left, right, order), total_ngrams(left, order), total_ngrams(right, order))
        match = shared_skip_bigrams(left, right, variant.gap)
        in_candidate = total_skip_bigrams(len(left), variant.gap)
        in_reference = total_skip_bigrams(len(right), variant.gap)
        if variant.family == "SU":
            match += shared_ngrams(left[:-1], right[:-1], 1)
            in_candidate += len(left[:-1])
            in_reference += len(right[:-1])
        return Overlap(match, in_candidate, in_reference)

    def scores(self, variant: Variant, overlap: Overlap) -> Scores:
        """Return precision, recall and F as printed, F from the rounded two."""
        precision = overlap.match / overlap.candidate if overlap.candidate else 0.0
        recall = overlap.match / overlap.reference if overlap.reference else 0.0
        if variant.family == "W":
            precision = weight_inverse(precision, variant.exponent)
            recall = weight_inverse(recall, variant.exponent)
        precision, recall = round(precision, _PRINTED_DIGITS), round(recall, _PRINTED_DIGITS)
        mean = 0.5 * precision + 0.5 * recall
        return Scores(precision, recall, round(precision * recall / mean, _PRINTED_DIGITS) if mean else 0.0)

    def rank(self, variant: Variant, overlap: Overlap, reference: Sentences) -> float:
        """Return recall, rounded for n-grams and skip-bigrams only; for W over the reference weighted once."""
        total = overlap.reference
        if variant.family == "W":
            total = _weight_of_sentences(reference, variant.exponent)
            return weight_inverse(overlap.match / total, variant.exponent) if total else 0.0
        recall = overlap.match / total if total else 0.0
        return recall if variant.family in ("L", "Lsum") else round(recall, _PRINTED_DIGITS)


def _weight_of_sentences(sentences: Sentences, exponent: float) -> float:
    total = 0.0
    for sentence in sentences:  # not sum(), which compensates rounding from Python 3.12 on
        total += weight(len(sentence), exponent)
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
                total += weight(run, exponent)
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
