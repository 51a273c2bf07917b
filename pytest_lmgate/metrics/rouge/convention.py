"""What a convention decides: which tokens, what is counted, how counts become scores, which reference is best."""

from __future__ import annotations

__all__ = ["Convention", "Overlap", "Scores", "total_words"]

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from pytest_lmgate.metrics.rouge.reading import Sentences, Stems
from pytest_lmgate.metrics.rouge.variants import Variant


class Overlap(NamedTuple):
    """What one candidate and one reference share, or the sum of that over references.

    Attributes:
        match: What both hold: n-grams, words of a subsequence, skip-bigrams, or the weight of a subsequence.
        candidate: What the candidate holds.
        reference: What the reference holds.
    """

    match: float
    candidate: float
    reference: float

    def plus(self, other: Overlap) -> Overlap:
        """Return the counts of both together."""
        return Overlap(self.match + other.match, self.candidate + other.candidate, self.reference + other.reference)


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
    """

    name: str
    tokenizer: str
    stem: Callable[[str], str]
    stems: Stems
    stemmer_name: str

    @abstractmethod
    def reads_sentences(self, variant: Variant) -> bool:
        """Whether `variant` is computed over newline-separated sentences; else a text is one sentence."""

    @abstractmethod
    def overlap(self, variant: Variant, candidate: Sentences, reference: Sentences) -> Overlap:
        """Count what a candidate and one reference share."""

    @abstractmethod
    def scores(self, variant: Variant, overlap: Overlap) -> Scores:
        """Return the scores for these counts; 0 where nothing was counted."""

    @abstractmethod
    def rank(self, variant: Variant, overlap: Overlap, reference: Sentences) -> float:
        """Return what the best of several references has most of; the first wins ties."""


def total_words(sentences: Sentences) -> int:
    """Return the number of tokens."""
    return sum(map(len, sentences))
