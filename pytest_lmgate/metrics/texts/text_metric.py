"""`TextMetric`: a pure function from texts to one vector of additive statistics per row, and what to make of their sum.

The one vector feeds the score, its noise, the paired test and the worst rows, so that texts are read once. A metric
written by a user is made of the same parts as those here. Nothing in this module reads a text.
"""

from __future__ import annotations

__all__ = ["Details", "References", "Rows", "Statistics", "TextMetric", "Value", "ratio"]

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from pytest_lmgate.arrays import Floats
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.metrics.score import Direction

References = Sequence[Sequence[str]]
Rows = Sequence[Mapping[str, Any]]
Statistics = Callable[[Sequence[str], References, Rows], ArrayLike]
Value = Callable[[Floats], float]
Details = Callable[[Floats], Mapping[str, Any]]

_NAME = re.compile(r"[a-z][A-Za-z0-9_.]*")


def ratio(sums: Floats) -> float:
    """``sums[0] / sums[-1]``, a mean over the things that the last counts; NaN where there are none."""
    return float(sums[0] / sums[-1]) if sums[-1] else float("nan")


@dataclass(frozen=True)
class TextMetric:
    """How a system's texts become one number.

    Attributes:
        name: As in ``bleu``; a letter in lower case, then letters, digits, dots and underscores.
        direction: ``higher`` if larger values are better, else ``lower``.
        signature: One line that reproduces the number: a label, then ``key:value`` fields, all separated by ``|``.
        statistics: From predictions, references and rows to an array ``[rows, k]`` of finite numbers, row for row,
            that may be added over rows. It must be pure: the same texts give the same numbers.
        value: From statistics summed over rows, shape ``[k]``, to the number. The default is `ratio`: then the last
            column counts what the mean is over (1 for each row), and the noise has a closed form.
        row_value: From the statistics of one row to that row's own number, by which the worst rows are found; `value`
            where None.
        details: From summed statistics to further figures under the field's names (plain numbers, strings, lists).
        scale: What a perfect or complete score is written as: 1 or 100.
        needs_references: Whether a row without references is an error.
        right_or_wrong: Whether the number is the share of rows that are right: each row's statistics are ``[0, 1]`` or
            ``[1, 1]``, and the noise is that of counts (docs/noise.md).
        lowest: The lowest value there can be; no interval goes below it.
        highest: The highest value there can be; no interval goes above it.

    Raises:
        ConfigError: A field is not what it should be.
    """

    name: str
    direction: Direction
    signature: str
    statistics: Statistics
    value: Value = ratio
    row_value: Value | None = None
    details: Details | None = None
    scale: float = 1.0
    needs_references: bool = True
    right_or_wrong: bool = False
    lowest: float = -math.inf
    highest: float = math.inf

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                "expected a text metric's name to be a letter in lower case, then letters, digits, dots or "
                f"underscores (as in 'keyword_recall'), got {self.name!r}"
            )
        wrong = ""
        if self.direction not in ("higher", "lower"):
            wrong = f"expected direction 'higher' (larger is better) or 'lower', got {self.direction!r}"
        elif not isinstance(self.signature, str) or not self.signature or "\n" in self.signature:
            wrong = f"expected a signature of one line that says how the number is made, got {self.signature!r}"
        for field in ("statistics", "value", "row_value", "details"):
            given = getattr(self, field)
            if not callable(given) and (given is not None or field in ("statistics", "value")):
                wrong = wrong or f"expected {field} to be a function, got {type(given).__name__}"
        if self.right_or_wrong and not self.is_mean:
            wrong = wrong or "right_or_wrong is for a share of rows, which has no `value` of its own"
        if wrong:
            raise ConfigError(f"text metric {self.name!r}: {wrong}")

    @property
    def is_mean(self) -> bool:
        """Whether the number is a mean over what the last column counts, with noise in closed form."""
        return self.value is ratio

    def signed(self, references: References) -> str:
        """Return the signature with the number of references of a row after the label, ``var`` where rows differ.

        This is where and how sacrebleu writes it: ``BLEU|nrefs:2|case:mixed|...``.
        """
        counts = {len(of_row) for of_row in references}
        label, bar, fields = self.signature.partition("|")
        return f"{label}|nrefs:{counts.pop() if len(counts) == 1 else 'var'}{bar}{fields}"
