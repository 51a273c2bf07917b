"""ROUGE of every row of a corpus, with the counts behind it; a corpus's ROUGE is the mean over rows."""

from __future__ import annotations

__all__ = ["RougeMean", "RougeRows", "rouge_rows"]

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.rouge.convention import Overlap
from pytest_lmgate.metrics.rouge.reading import Sentences
from pytest_lmgate.metrics.rouge.settings import RougeSettings
from pytest_lmgate.metrics.rouge.tokenizers import Tokenizer

Floats = NDArray[np.float64]


class RougeMean(NamedTuple):
    """Means over rows, each in 0-1; the mean F is not made of the other two."""

    precision: float
    recall: float
    fmeasure: float


@dataclass(frozen=True, eq=False)
class RougeRows:
    """Scores of each row and the counts they came from; all arrays have the shape ``[rows]``.

    Attributes:
        precision: ``match / candidate`` (W: the inverse weight of that), 0 where the candidate is empty.
        recall: ``match / reference``, likewise.
        fmeasure: Their harmonic mean.
        match: What candidate and reference share: n-grams, words of a subsequence, skip-bigrams, or a weight.
        candidate: What the candidate holds; with ``multi_reference="average"``, times the number of references.
        reference: What the reference holds; with ``multi_reference="average"``, summed over the references.
        chosen: Which reference of the row was taken as the best one; -1 with ``multi_reference="average"``.
        settings: How they were computed.
    """

    precision: Floats
    recall: Floats
    fmeasure: Floats
    match: Floats
    candidate: Floats
    reference: Floats
    chosen: NDArray[np.int64]
    settings: RougeSettings

    def __len__(self) -> int:
        return len(self.fmeasure)

    @property
    def signature(self) -> str:
        """Variant, treatment of references, tokenizer, stemmer, convention and version, in one line."""
        return self.settings.signature

    def mean(self) -> RougeMean:
        """Return the corpus's scores: plain means over rows."""
        return RougeMean(float(self.precision.mean()), float(self.recall.mean()), float(self.fmeasure.mean()))


def rouge_rows(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    variant: str = "rougeL",
    stemmer: bool | Callable[[str], str] = False,
    multi_reference: str = "best",
    tokenizer: str | Tokenizer | None = None,
    convention: str = "lin2004",
) -> RougeRows:
    r"""Score each prediction against its references.

    Args:
        predictions: One text a row; sentences are separated by ``\n`` where the variant knows sentences.
        references: At least one text for each prediction, likewise.
        variant: ``rouge1``, ``rouge2``, ..., ``rougeL`` (longest common subsequence of the whole text), ``rougeLsum``
            (union over sentences), ``rougeW`` (weighted, exponent 1.2; ``rougeW<exponent>``), ``rougeS`` (skip-bigrams
            with any gap; ``rougeS<gap>``), ``rougeSU`` (the same and unigrams; ``rougeSU<gap>``).
        stemmer: Stem words of more than three characters by the convention's dialect of Porter's stemmer, or by the
            function given.
        multi_reference: ``best`` takes the reference with the best F (``rouge-1.5.5``: the best recall), the first of
            equals; ``average`` pools the counts of all references.
        tokenizer: ``unicode``, ``rouge-score``, ``rouge-1.5.5``, or a function from a text to a list of tokens. By
            default ``unicode`` for ``lin2004`` and the program's own for ``rouge-1.5.5``.
        convention: ``lin2004``, the paper (on N, L and Lsum equal to rouge-score 0.1.2, given its tokenizer); or
            ``rouge-1.5.5``, the program with its quirks and its rounding, where ``rougeL`` and ``rougeLsum`` are one.

    Returns:
        Scores in 0-1 and counts of each row. An empty prediction scores 0.

    Raises:
        MetricInputError: No rows, counts that differ, a row without a reference, or something that is not a text.
        ConfigError: A variant, tokenizer, convention or treatment of references that does not exist.
    """
    settings = RougeSettings.of(
        variant, stemmer=stemmer, multi_reference=multi_reference, tokenizer=tokenizer, convention=convention
    )
    _check(predictions, references)
    read = settings.reader().read
    overlaps, chosen = [], []
    for prediction, options in zip(predictions, references, strict=True):
        overlap, index = _row(settings, read(prediction), [read(reference) for reference in options])
        overlaps.append(overlap)
        chosen.append(index)
    scores = [settings.convention.scores(settings.variant, overlap) for overlap in overlaps]
    columns = (np.array(column, dtype=np.float64) for rows in (scores, overlaps) for column in zip(*rows, strict=True))
    precision, recall, fmeasure, match, candidate, reference = columns
    return RougeRows(
        precision, recall, fmeasure, match, candidate, reference, np.array(chosen, dtype=np.int64), settings
    )


def _row(settings: RougeSettings, candidate: Sentences, references: Sequence[Sentences]) -> tuple[Overlap, int]:
    """Return the counts of a row and the index of the reference they are with, or -1 for all."""
    rules, variant = settings.convention, settings.variant
    overlaps = [rules.overlap(variant, candidate, reference) for reference in references]
    if settings.multi_reference == "average":
        return reduce(Overlap.plus, overlaps), -1
    if len(overlaps) == 1:
        return overlaps[0], 0
    ranks = [rules.rank(variant, overlap, reference) for overlap, reference in zip(overlaps, references, strict=True)]
    best = ranks.index(max(ranks))
    return overlaps[best], best


def _check(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    for name, texts in (("predictions", predictions), ("references", references)):
        if not _is_list(texts):
            raise MetricInputError(f"{name}: expected a list with one entry a row, got {_shown(texts)}")
    if len(predictions) != len(references):
        raise MetricInputError(
            f"expected as many lists of references as predictions, got {len(predictions)} predictions and "
            f"{len(references)} lists of references"
        )
    if not len(predictions):
        raise MetricInputError("expected at least one row to score, got no predictions and no references")
    for row, (prediction, options) in enumerate(zip(predictions, references, strict=True)):
        if not isinstance(prediction, str):
            raise MetricInputError(f"row {row}: expected a string as prediction, got {_shown(prediction)}")
        if not _is_list(options):
            raise MetricInputError(f"row {row}: expected a list of references, got {_shown(options)}")
        if not len(options):
            raise MetricInputError(f"row {row}: expected at least one reference, got none")
        for reference in options:
            if not isinstance(reference, str):
                raise MetricInputError(f"row {row}: expected strings as references, got {_shown(reference)}")


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, Collection) and not isinstance(value, (str, bytes)))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
