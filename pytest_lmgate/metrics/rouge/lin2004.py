"""The paper: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries"; N, L and Lsum equal rouge-score's.

Where the paper leaves a choice, it is made here: F weighs precision and recall alike; a text is one sequence of words,
except for Lsum; the union of Lsum is clipped by word counts, as both programs do; SU counts each unigram once, which is
what the paper's begin-of-sentence marker comes to with any gap.
"""

from __future__ import annotations

__all__ = ["Lin2004"]

from pytest_lmgate.metrics.rouge.convention import Convention, Overlap, Scores, total_words
from pytest_lmgate.metrics.rouge.ngrams import shared_ngrams, total_ngrams
from pytest_lmgate.metrics.rouge.porter import nltk_stem
from pytest_lmgate.metrics.rouge.reading import Sentences, Stems
from pytest_lmgate.metrics.rouge.skip_bigrams import shared_skip_bigrams, total_skip_bigrams
from pytest_lmgate.metrics.rouge.subsequences import longest_common_subsequence, shared_in_union
from pytest_lmgate.metrics.rouge.variants import Variant
from pytest_lmgate.metrics.rouge.weighted import weight, weight_inverse, weighted_table


class Lin2004(Convention):
    """The paper's definitions; of several references the one with the best F counts, as in rouge-score."""

    name = "lin2004"
    tokenizer = "unicode"
    stem = staticmethod(nltk_stem)
    stems = Stems(nltk_stem)
    stemmer_name = "porter-nltk"

    def reads_sentences(self, variant: Variant) -> bool:
        """Only the union of subsequences knows sentences."""
        return variant.family == "Lsum"

    def overlap(self, variant: Variant, candidate: Sentences, reference: Sentences) -> Overlap:
        """Count what a candidate and one reference share."""
        if variant.family == "Lsum":
            return Overlap(shared_in_union(candidate, reference), total_words(candidate), total_words(reference))
        (left,), (right,) = candidate, reference
        if variant.family == "N":
            order = variant.order
            return Overlap(shared_ngrams(left, right, order), total_ngrams(left, order), total_ngrams(right, order))
        if variant.family == "L":
            return Overlap(longest_common_subsequence(left, right), len(left), len(right))
        if variant.family == "W":
            match = weighted_table(left, right, variant.exponent)[-1][-1]
            return Overlap(match, weight(len(left), variant.exponent), weight(len(right), variant.exponent))
        skipped = Overlap(
            shared_skip_bigrams(left, right, variant.gap),
            total_skip_bigrams(len(left), variant.gap),
            total_skip_bigrams(len(right), variant.gap),
        )
        if variant.family == "S":
            return skipped
        return skipped.plus(Overlap(shared_ngrams(left, right, 1), len(left), len(right)))

    def scores(self, variant: Variant, overlap: Overlap) -> Scores:
        """Return precision, recall and F1, unrounded."""
        precision = overlap.match / overlap.candidate if overlap.candidate else 0.0
        recall = overlap.match / overlap.reference if overlap.reference else 0.0
        if variant.family == "W":
            precision = weight_inverse(precision, variant.exponent)
            recall = weight_inverse(recall, variant.exponent)
        total = precision + recall
        return Scores(precision, recall, 2 * precision * recall / total if total else 0.0)

    def rank(self, variant: Variant, overlap: Overlap, reference: Sentences) -> float:
        """Return F."""
        return self.scores(variant, overlap).fmeasure
