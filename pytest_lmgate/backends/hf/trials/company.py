"""Which rows may share a batch, tried out on the model at hand: any, those of one length, or none.

In most models a row has the same numbers in any company. Not in all: rotary frequencies chosen by the longest row
(``longrope``, dynamic scaling), one int8 scale for a whole batch, experts whose capacity the batch shares, attention
that looks at padding (ProphetNet). Their rows run alone, or only with rows of their length.
"""

from __future__ import annotations

__all__ = ["find_company", "has_same_numbers"]

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.backends.base import Company, OutOfMemory
from pytest_lmgate.backends.hf.likelihood.forward import not_deterministic
from pytest_lmgate.backends.hf.likelihood.rotary import follows_length
from pytest_lmgate.backends.hf.models.loading import LoadedModel
from pytest_lmgate.backends.memory import within_memory

Row = TypeVar("Row")

_TOKENS = 24
_PIECES = 4
# Mean difference of the NLLs of a row, relative to their mean, that is rounding: eps of the dtype, and this at least.
# Measured on 29 architectures: 2e-7 in float32, 5e-4 in bfloat16 (eps 8e-3), 1.4e-4 in float16 (eps 1e-3).
_FLOAT32_ROUNDING = 1e-4


def has_same_numbers(
    read: Callable[[Sequence[Row]], Sequence[Floats]], row: Row, beside: Sequence[Row], loaded: LoadedModel
) -> bool | None:
    """Try out whether a row has the same NLLs behind other rows in a batch as alone, but for rounding.

    None where memory does not suffice for the trial.

    Raises:
        ModelError: The row has two NLLs when it is read alone twice.
    """

    def trial() -> bool:
        alone, together = read([row])[0], read([*beside, row])[-1]
        if _agree(alone, together, loaded.dtype):
            return True
        if not _agree(alone, read([row])[0], loaded.dtype):
            raise not_deterministic(loaded.name)
        return False

    try:
        return within_memory(loaded.device, trial)
    except OutOfMemory:
        return None


def find_company(
    read: Callable[[Sequence[Ints]], Sequence[Floats]],
    longest: Ints,
    other: Ints,
    lengths: Ints,
    *,
    budget: int,
    loaded: LoadedModel,
) -> tuple[Company, bool]:
    """Try out on a model which rows of token ids may share a batch.

    A few tokens of `other` are read alone and beside the longest row, which is what padding and frequencies chosen by
    length show in. Where the rows have two lengths at most, a full one and a rest, rows of one length go together
    anyway, and only a few tokens of each are read.

    Args:
        read: Returns the NLLs of each of some rows that are read together.
        longest: Token ids of the longest row.
        other: Token ids of another row.
        lengths: Lengths of all rows.
        budget: Tokens that a batch may hold; two rows that no batch would hold are not tried.
        loaded: The model.

    Returns:
        The company, and whether a trial that differed decided it, which is worth a remark.

    Raises:
        ModelError: The model gives a row two NLLs.
    """
    if len(longest) < 2:
        return Company.ANY, False  # nothing to score but what is read alone
    # A row of one token has no NLL to compare.
    other = other if len(other) > 1 else longest
    whole = longest[: max(2, budget // 2)]
    row = other[: max(2, min(_TOKENS, len(whole) // 2))]
    company, differs = Company.EQUAL, False
    if len(np.unique(lengths)) > 2:
        differs = follows_length(loaded.model, len(longest))
        if not differs:
            same = has_same_numbers(read, row, [whole], loaded)
            if same:
                return Company.ANY, False
            differs = same is not None
    begins = range(0, min(len(whole) - len(row) + 1, _PIECES * len(row)), len(row))
    pieces = [whole[begin : begin + len(row)] for begin in begins]
    same = has_same_numbers(read, row, pieces, loaded)
    if not same:
        company, differs = Company.ALONE, same is not None
    return company, differs


def _agree(one: Floats, other: Floats, dtype: torch.dtype) -> bool:
    """Whether NLLs differ by rounding only. NaN agrees with NaN: it is an error where it is measured."""
    tolerance = max(torch.finfo(dtype).eps, _FLOAT32_ROUNDING) if dtype.is_floating_point else 0.0
    one, other = np.nan_to_num(one), np.nan_to_num(other)
    return bool(np.abs(one - other).mean() <= tolerance * np.abs(one).mean())
