"""Negative log-likelihoods of targets from hidden states, by a log-sum-exp over tiles of the vocabulary.

The logits are never held whole: a tile of some rows and some tokens is made, exponentiated and summed while it is in
the processor's cache. Each row is shifted by (about) its target's logit, so that one pass is enough:
``NLL = log sum_v exp(x_v - shift) + shift - x_target``; where that logit is of moderate size, the shift is left out,
which spares a pass over the tile. A row for which the sum overflows (its NLL, or a logit, is above 88) or underflows is
done again with a running maximum (Milakov and Gimelshein 2018, arXiv 1805.02867).

`launch_nll` asks a GPU for nothing, so that the host can prepare and launch the next batch meanwhile.
"""

from __future__ import annotations

__all__ = ["launch_nll"]

from collections.abc import Callable

import torch
from torch import Tensor

from pytest_lmgate.backends.hf.likelihood.head import VocabularyHead
from pytest_lmgate.backends.memory import sent, wide
from pytest_lmgate.backends.tiles import TileShape, tile_shape, vocabulary_tiles

# Targets' logits up to this size need no shift: exp(-50) = 2e-22 is part of the sum, so that what float32 loses in
# terms below its smallest normal number, 1e-38, is less than a rounding of the sum, whatever the vocabulary.
_UNSHIFTED = 50.0


def launch_nll(
    hidden: Tensor, targets: Tensor, head: VocabularyHead, tile: TileShape | None = None
) -> Callable[[], Tensor]:
    """Begin to compute the NLL of each target.

    Args:
        hidden: What the head takes, shape ``[positions, hidden]``.
        targets: Token ids, shape ``[positions]``, on the host.
        head: The head.
        tile: Tile to work in; None for the device's own.

    Returns:
        A function that waits for the NLLs in nats, shape ``[positions]``, float64, on the host. They are not finite
        where the logits are not, or where the target's probability is zero.
    """
    # A head may live on another device than the layers before it.
    hidden = hidden.to(head.weight)
    tile = tile or tile_shape(hidden.device)
    buffer = torch.empty(
        min(tile.rows, hidden.shape[0]) * min(tile.tokens, head.vocabulary_size), dtype=head.dtype, device=hidden.device
    )
    parts = [
        _block(rows, wanted, head, buffer, tile.tokens)
        for rows, wanted in zip(hidden.split(tile.rows), targets.split(tile.rows), strict=True)
    ]
    launched = torch.cat(parts) if parts else torch.zeros(0)

    def wait() -> Tensor:
        nll = launched.cpu().double()
        again = (~nll.isfinite()).nonzero()[:, 0]
        for some in again.split(tile.rows) if len(again) else ():
            rows = hidden[some.to(hidden.device)]
            nll[some] = _safe_block(rows, targets[some], head, buffer, tile.tokens).cpu().double()
        return nll

    return wait


def _block(hidden: Tensor, targets: Tensor, head: VocabularyHead, buffer: Tensor, tokens: int) -> Tensor:
    shift = head.at(hidden, sent(targets, hidden.device))
    # A GPU would be waited for, and shifts every row; NaN is not within reach, and is left to the shift to carry on.
    within_reach = hidden.device.type == "cpu" and bool((shift.abs() <= _UNSHIFTED).all())
    total = torch.zeros(len(targets), dtype=wide(hidden.device), device=hidden.device)
    target_logit = torch.empty_like(total)
    for begin, end, rows, columns in vocabulary_tiles(targets, head.vocabulary_size, tokens, hidden.device):
        logits = head.tile(hidden, begin, end, buffer)
        target_logit[rows] = logits[rows, columns].to(total.dtype)
        shifted = logits if within_reach else logits.sub_(shift[:, None])
        total += shifted.exp_().sum(-1)
    nll = total.log() - target_logit
    if not within_reach:
        nll += shift.to(nll.dtype)
    return nll


def _safe_block(hidden: Tensor, targets: Tensor, head: VocabularyHead, buffer: Tensor, tokens: int) -> Tensor:
    """The same with a running maximum: one more pass over each tile, and no overflow."""
    highest = torch.full((len(targets),), -torch.inf, dtype=wide(hidden.device), device=hidden.device)
    total = torch.zeros_like(highest)
    target_logit = torch.empty_like(highest)
    for begin, end, rows, columns in vocabulary_tiles(targets, head.vocabulary_size, tokens, hidden.device):
        logits = head.tile(hidden, begin, end, buffer)
        target_logit[rows] = logits[rows, columns].to(total.dtype)
        new = torch.maximum(highest, logits.amax(-1).to(total.dtype))
        # exp(-inf - -inf) is NaN: a row without a finite logit so far adds nothing.
        scale = torch.where(highest == -torch.inf, torch.zeros_like(total), (highest - new).exp())
        base = torch.where(new == -torch.inf, torch.zeros_like(new), new)
        total = total * scale + (logits.to(total.dtype) - base[:, None]).exp().sum(-1)
        highest = new
    return total.log() + highest - target_logit
