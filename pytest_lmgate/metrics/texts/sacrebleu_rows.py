"""Row statistics and signatures from sacrebleu's metric objects, whose own program sums the same numbers.

The methods with an underscore are those its `significance` module calls; BLEU, chrF and TER share them (2.4 to 2.6).
"""

from __future__ import annotations

__all__ = ["SegmentMetric", "segment_statistics", "signature_of", "streams"]

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pytest_lmgate.metrics.texts.text_metric import Floats, References, Statistics


class SegmentMetric(Protocol):
    """What BLEU, CHRF and TER of sacrebleu have in common, as far as it is used here."""

    num_refs: int

    def _extract_corpus_statistics(self, hypotheses: Sequence[str], references: Any) -> list[list[float]]: ...

    def get_signature(self) -> Any:
        """What reproduces the number; needs `num_refs`."""


def segment_statistics(metric: SegmentMetric) -> Statistics:
    """Return the function from texts to `metric`'s statistics of each row, shape ``[rows, k]``."""

    def statistics(predictions: Sequence[str], references: References, rows: Sequence[Mapping[str, Any]]) -> Floats:
        # Lines are read by the program without the white space at their end.
        outputs = [text.rstrip() for text in predictions]
        return np.array(metric._extract_corpus_statistics(outputs, streams(references)), dtype=np.float64)

    return statistics


def streams(references: References) -> list[list[str | None]]:
    """Turn references per row into sacrebleu's streams, None where a row has no more."""
    width = max(len(of_row) for of_row in references)
    return [[of_row[i].rstrip() if i < len(of_row) else None for of_row in references] for i in range(width)]


def signature_of(label: str, metric: SegmentMetric) -> str:
    """Return ``label|fields``: sacrebleu's signature less the number of references, which the texts decide."""
    metric.num_refs = 0
    signature = metric.get_signature()
    signature.update("nrefs", None)
    return f"{label}|{signature.format()}"
