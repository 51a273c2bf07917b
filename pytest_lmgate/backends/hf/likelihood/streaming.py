"""Negative log-likelihoods of targets from hidden states, by a log-sum-exp over tiles of the vocabulary.

The logits are never held whole: a tile of some rows and some tokens is made, exponentiated and summed while it is in
the processor's cache. Each row is shifted by (about) its target's logit, so that one pass is enough:
``NLL = log sum_v exp(x_v - shift) + shift - x_target``; where that logit is of moderate size, the shift is left out,
which spares a pass over the tile. A row for which the sum overflows (its NLL, or a logit, is above 88) or underflows is
done again with a running maximum (Milakov and Gimelshein 2018, arXiv 1805.02867).
"""

from __future__ import annotations

__all__ = ["TileShape", "streamed_nll", "tile_shape", "vocabulary_tiles"]

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_lmgate.backends.hf.likelihood.head import VocabularyHead

# Targets' logits up to this size need no shift: exp(-50) = 2e-22 is part of the sum, so that what float32 loses in
# terms below its smallest normal number, 1e-38, is less than a rounding of the sum, whatever the vocabulary.
_UNSHIFTED = 50.0


class TileShape(NamedTuple):
    """How much of the logits exists at a time: positions and tokens of the vocabulary."""

    rows: int
    tokens: int


def tile_shape(device: torch.device) -> TileShape:
    """Return the tile for a device: 2 MiB of float32 on a CPU (a second-level cache), 256 MiB on an accelerator."""
    return TileShape(1024, 512) if device.type == "cpu" else TileShape(8192, 8192)


def streamed_nll(hidden: Tensor, targets: Tensor, head: VocabularyHead, tile: TileShape | None = None) -> Tensor:
    """Return the NLL in nats of each target, shape ``[positions]``, float64.

    It is not finite where the logits are not, or where the target's probability is zero.

    Args:
        hidden: What the head takes, shape ``[positions, hidden]``.
        targets: Token ids, shape ``[positions]``.
        head: The head.
        tile: Tile to work in; None for the device's own.
    """
    # A head may live on another device than the layers before it.
    hidden, targets = hidden.to(head.weight), targets.to(head.weight.device)
    tile = tile or tile_shape(hidden.device)
    buffer = torch.empty(
        min(tile.rows, hidden.shape[0]) * min(tile.tokens, head.vocabulary_size),
        dtype=head.dtype,
        device=hidden.device,
    )
    parts = [
        _block(rows, wanted, head, buffer, tile.tokens)
        for rows, wanted in zip(hidden.split(tile.rows), targets.split(tile.rows), strict=True)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=hidden.device)


def _block(hidden: Tensor, targets: Tensor, head: VocabularyHead, buffer: Tensor, tokens: int) -> Tensor:
    shift = head.at(hidden, targets)
    # NaN is not within reach, and is left to the shifted form to carry on.
    within_reach = bool((shift.abs() <= _UNSHIFTED).all())
    total = torch.zeros(len(targets), dtype=torch.float64, device=hidden.device)
    target_logit = torch.empty_like(total)
    for begin, end, rows, columns in vocabulary_tiles(targets, head.vocabulary_size, tokens):
        logits = head.tile(hidden, begin, end, buffer)
        target_logit[rows] = logits[rows, columns].double()
        shifted = logits if within_reach else logits.sub_(shift[:, None])
        total += shifted.exp_().sum(-1)
    nll = total.log() - target_logit
    if not within_reach:
        nll += shift.double()
    again = ~nll.isfinite()
    if again.any():
        nll[again] = _safe_block(hidden[again], targets[again], head, buffer, tokens)
    return nll


def _safe_block(hidden: Tensor, targets: Tensor, head: VocabularyHead, buffer: Tensor, tokens: int) -> Tensor:
    """The same with a running maximum: one more pass over each tile, and no overflow."""
    highest = torch.full((len(targets),), -torch.inf, dtype=torch.float64, device=hidden.device)
    total = torch.zeros_like(highest)
    target_logit = torch.empty_like(highest)
    for begin, end, rows, columns in vocabulary_tiles(targets, head.vocabulary_size, tokens):
        logits = head.tile(hidden, begin, end, buffer)
        target_logit[rows] = logits[rows, columns].double()
        new = torch.maximum(highest, logits.amax(-1).double())
        # exp(-inf - -inf) is NaN: a row without a finite logit so far adds nothing.
        scale = torch.where(highest == -torch.inf, torch.zeros_like(total), (highest - new).exp())
        base = torch.where(new == -torch.inf, torch.zeros_like(new), new)
        total = total * scale + (logits.double() - base[:, None]).exp().sum(-1)
        highest = new
    return total.log() + highest - target_logit


def vocabulary_tiles(targets: Tensor, vocabulary: int, tokens: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Yield the begin and end of each tile of a vocabulary, the rows whose target lies in it, their columns in it."""
    order = targets.argsort()
    begins = torch.arange(0, vocabulary + tokens, tokens, device=targets.device)
    bounds = torch.searchsorted(targets[order], begins).tolist()
    for index, begin in enumerate(range(0, vocabulary, tokens)):
        rows = order[bounds[index] : bounds[index + 1]]
        yield begin, min(begin + tokens, vocabulary), rows, targets[rows] - begin
