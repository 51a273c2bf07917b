"""ROUGE (Lin 2004) as a text metric: the mean over rows of F, with precision and recall kept.

What is counted, and by which convention, is in `pytest_lmgate.metrics.rouge`.
"""

from __future__ import annotations

__all__ = ["rouge"]

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.metrics.texts.text_metric import References, TextMetric


def rouge(
    variant: str = "rougeL",
    stemmer: bool | Callable[[str], str] = False,
    multi_reference: str = "best",
    tokenizer: str | Callable[[str], Sequence[str]] | None = None,
    convention: str = "lin2004",
) -> TextMetric:
    """Make ROUGE, scale 0-1; its name is the variant's.

    Args:
        variant: ``rouge1``, ``rouge2``, ...: n-grams. ``rougeL``: longest common subsequence of the whole text.
            ``rougeLsum``: its union over newline-separated sentences. ``rougeW``: weighted, exponent 1.2;
            ``rougeW<exponent>``. ``rougeS``: skip-bigrams with any gap; ``rougeS<gap>``. ``rougeSU``: the same and
            unigrams; ``rougeSU<gap>``.
        stemmer: Stem words of more than three characters by the convention's dialect of Porter's stemmer, or by the
            function given.
        multi_reference: ``best`` takes the reference with the best F (``rouge-1.5.5``: the best recall), the first of
            equals; ``average`` pools the counts of all references.
        tokenizer: ``unicode``, ``rouge-score``, ``rouge-1.5.5`` or a function from a text to tokens; the convention's
            own where None, which is ``unicode`` for ``lin2004``.
        convention: ``lin2004``, the paper (on N, L and Lsum equal to rouge-score 0.1.2, given its tokenizer); or
            ``rouge-1.5.5``, the program with its quirks and its rounding, where ``rougeL`` and ``rougeLsum`` are one.

    Returns:
        Statistics ``[F, precision, recall, 1]``. Details: ``f``, ``precision`` and ``recall``, means over rows.

    Raises:
        ConfigError: An option does not exist.
    """
    from pytest_lmgate.metrics.rouge.settings import RougeSettings

    settings = RougeSettings.of(
        variant, stemmer=stemmer, multi_reference=multi_reference, tokenizer=tokenizer, convention=convention
    )

    def statistics(predictions: Sequence[str], references: References, rows: Sequence[Mapping[str, Any]]) -> Floats:
        scores = (row.scores for row in settings.rows(predictions, references))
        return np.array([(each.fmeasure, each.precision, each.recall, 1.0) for each in scores])

    return TextMetric(
        name=settings.variant.name,
        direction="higher",
        signature=settings.signature,
        statistics=statistics,
        details=_details,
        lowest=0,
        highest=1,
    )


def _details(sums: Floats) -> dict[str, float]:
    f, precision, recall, rows = sums.tolist()
    return {"f": f / rows, "precision": precision / rows, "recall": recall / rows}
