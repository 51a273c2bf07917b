"""Exact match: the share of rows whose output is one of the references (as in SQuAD, Rajpurkar et al. 2016)."""

from __future__ import annotations

__all__ = ["exact"]

import string
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.metrics.texts.inputs import checked_flag
from pytest_lmgate.metrics.texts.text_metric import References, TextMetric


def exact(ignore_case: bool = False, ignore_punctuation: bool = False, strip: bool = True) -> TextMetric:
    """Make exact match, scale 0-1; a row with several references matches if it equals any.

    Args:
        ignore_case: Compare texts after full case folding (the Unicode standard's, so that "STRASSE" is "straße").
        ignore_punctuation: Leave out ASCII punctuation and every character that Unicode classes as punctuation.
        strip: Leave out white space at both ends, last of all.

    Returns:
        Statistics ``[match, 1]``. Details: ``matches``.

    Raises:
        ConfigError: An option is not true or false.
    """
    options = {"ignore_case": ignore_case, "ignore_punctuation": ignore_punctuation, "strip": strip}
    for option, given in options.items():
        checked_flag("exact", option, given)

    def compared(text: str) -> str:
        if ignore_case:
            text = text.casefold()
        if ignore_punctuation:
            text = "".join(c for c in text if c not in string.punctuation and unicodedata.category(c)[0] != "P")
        return text.strip() if strip else text

    def statistics(predictions: Sequence[str], references: References, rows: Sequence[Mapping[str, Any]]) -> Floats:
        matches = [
            any(compared(reference) == output for reference in of_row)
            for output, of_row in zip(map(compared, predictions), references, strict=True)
        ]
        return np.stack([np.array(matches, dtype=np.float64), np.ones(len(matches))], axis=1)

    case, punct = "fold" if ignore_case else "mixed", "no" if ignore_punctuation else "yes"
    return TextMetric(
        name="exact",
        direction="higher",
        signature=f"exact|case:{case}|punct:{punct}|strip:{'yes' if strip else 'no'}",
        statistics=statistics,
        details=lambda sums: {"matches": int(sums[0])},
        right_or_wrong=True,
        lowest=0,
        highest=1,
    )
