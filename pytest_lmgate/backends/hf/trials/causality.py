"""Proof that a causal model sees no token before it is asked for it.

A model that looks ahead, by one token or by many, sees the very tokens it has to predict, and its perplexity means
nothing: BERT without ``is_decoder``, XLNet, prefix models within their prefix, an attention mask that is off by one.
"""

from __future__ import annotations

__all__ = ["require_causal"]

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pytest_lmgate.backends.hf.likelihood.scoring import Scorer
from pytest_lmgate.backends.memory import is_out_of_memory
from pytest_lmgate.errors import ModelError

_TOKENS = 24
# Positions of the tokens that are changed, one in each row. The first ones are inside any prefix, and inside any block
# that is read both ways; the last ones have up to 23 tokens before them that a mask could show them to.
_CHANGED = (1, 2, 5, 10, 17, 23)
# And positions from which on every token is changed: a model that sees little of each later token sees more of many.
_CHANGED_FROM = (3, 12)
_FLOAT32_ROUNDING = 1e-5
# Int8 activations with one scale for a whole row let later tokens through: 0.07 to 0.51 of what a token changes at the
# position after its own (16 models, trained and fresh). Masks that look 1, 2 and 8 tokens ahead, prefixes and blocks
# let through 1.06 times as much and up to 38 times (48 models). A scale for each token (bitsandbytes), or one for the
# whole batch (torch's dynamic int8), lets nothing through between the rows of one batch.
_LEAK = 0.75


def require_causal(model: Any, ids: Tensor, scorer: Scorer) -> None:
    """Refuse a model whose likelihood of a token depends on the tokens after it.

    In each row of one batch another token, or all tokens from one on, are changed. No position before them may see
    that, each position taken by itself: the mean change of its logits may be rounding, which is ``eps`` of the model's
    dtype (at least 1e-5) times the mean size of the logits. Quantized activations let a little more through; it is
    accepted up to 0.75 times the change that a token makes at the position after its own, the median over the rows.

    Args:
        model: In evaluation mode.
        ids: Token ids on the model's device, shape ``[tokens]``. Up to 24 are read, so that masks that look up to 23
            tokens ahead are seen; a shorter text cannot be looked ahead in further than it is long.
        scorer: How the model's targets will be scored; its logits are compared.

    Raises:
        ModelError: It is not causal, or not deterministic.
    """
    ids = ids[:_TOKENS]
    if len(ids) < 2:
        return
    try:
        leak, reach = _leak_and_reach(model, ids, scorer)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        leak = reach = math.nan
    # Alone, nothing is shared out in a batch, as mixtures of experts share their capacity.
    if not leak <= _LEAK * reach:
        leak, reach = _leak_and_reach(model, ids, scorer, alone=True)
    if leak > _LEAK * reach:
        raise ModelError(
            f"perplexity is undefined for the model {scorer.name!r} ({type(model).__name__}): its likelihood of a "
            "token depends on the tokens after it, but a causal model was expected; if it was trained as one, its "
            "config may lack is_decoder: true, or its attention mask looks ahead"
        )


def _leak_and_reach(model: Any, ids: Tensor, scorer: Scorer, *, alone: bool = False) -> tuple[float, float]:
    """Change later tokens, and compare the logits with those of the row unchanged; `alone` reads each row by itself.

    Returns:
        The largest mean change of the logits at a position before a changed token, 0 where it is rounding, and the
        median over the rows of the mean change at the position after a changed token.
    """
    # Its neighbour in the vocabulary: always another token, always a valid one.
    other = (ids - 1).abs()
    # A short text has its last token changed in place of those that it lacks.
    single = sorted({min(at, len(ids) - 1) for at in _CHANGED})
    rows = [ids, *(torch.cat([ids[:at], other[at : at + 1], ids[at + 1 :]]) for at in single)]
    several = [at for at in _CHANGED_FROM if at < len(ids) - 1]
    rows += [torch.cat([ids[:at], other[at:]]) for at in several]
    read: list[Tensor] = []
    for batch in [row[None] for row in rows] if alone else [torch.stack(rows)]:
        read += scorer.some_logits(model, batch)
    unchanged = _finite(read[0])
    changes = [(_finite(logits) - unchanged).abs().mean(-1) for logits in read[1:]]
    leak = max(float(change[:at].max()) for at, change in zip([*single, *several], changes, strict=True))
    reach = [float(change[at + 1]) for at, change in zip(single, changes, strict=False) if at + 1 < len(ids)]
    rounding = max(_epsilon(model), _FLOAT32_ROUNDING) * float(unchanged.abs().mean())
    return leak if leak > rounding else 0.0, float(np.median(reach)) if reach else 0.0


def _finite(logits: Tensor) -> Tensor:
    """Return logits without extremes; a token that is forbidden by an infinite or huge logit says nothing."""
    return logits.float().nan_to_num().clamp(-1e4, 1e4)


def _epsilon(model: Any) -> float:
    dtype = getattr(model, "dtype", torch.float32)
    return float(torch.finfo(dtype).eps) if dtype.is_floating_point else 0.0
