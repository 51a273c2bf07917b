"""Divergence of a candidate q from a reference p at each target: one pass over tiles of both vocabularies.

Per position, ``KL(p || q) = sum_i p_i (log p_i - log q_i)`` in nats over the full vocabulary. With the logits x and y,
shifted by their running maxima a and b (Milakov and Gimelshein 2018, arXiv 1805.02867), three sums are kept:
``P = sum e^(x-a)``, ``Q = sum e^(y-b)`` and ``S = sum e^(x-a) ((x-a) - (y-b))``, whence ``KL = S/P - log P + log Q``.
When a maximum rises by d_a or d_b, ``S`` becomes ``e^-d_a (S + P (d_b - d_a))``. Equal logits make S zero and P equal
to Q, so the divergence of a model from itself is exactly zero.
"""

from __future__ import annotations

__all__ = ["Logits", "streamed_divergence"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pytest_lmgate.backends.base import COLUMNS
from pytest_lmgate.backends.memory import wide, within_memory
from pytest_lmgate.backends.tiles import TileShape, tile_shape, vocabulary_tiles

if TYPE_CHECKING:
    from pytest_lmgate.backends.hf.likelihood.head import VocabularyHead


@dataclass(frozen=True)
class Logits:
    """Logits at some positions, a tile at a time.

    Attributes:
        states: What the head takes, shape ``[positions, hidden]``; without a head the logits themselves.
        head: The head, or None.
    """

    states: Tensor
    head: VocabularyHead | None

    @property
    def vocabulary_size(self) -> int:
        """Logits per position."""
        return self.states.shape[1] if self.head is None else self.head.vocabulary_size

    @property
    def device(self) -> torch.device:
        """Where tiles are made."""
        return self.states.device if self.head is None else self.head.weight.device

    def against(self, candidate: Logits, targets: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compare a candidate's logits with these; see `streamed_divergence`.

        Raises:
            OutOfMemory: Fewer positions may fit.
        """
        return within_memory(
            self.device, lambda: streamed_divergence(self, candidate, torch.from_numpy(targets)).cpu().double().numpy()
        )

    def stored(self) -> Tensor:
        """Return what `restored` makes them of again, without the head."""
        return self.states.cpu()

    def restored(self, parts: Sequence[Tensor]) -> Logits:
        """Return the logits of other states before the same head."""
        return Logits(torch.cat(list(parts)), self.head)

    def rows(self, begin: int, end: int) -> Logits:
        """Return those of some positions, where the head can take them."""
        states = self.states[begin:end]
        return Logits(states if self.head is None else states.to(self.head.weight), self.head)

    def buffer(self, shape: TileShape) -> Tensor:
        """Return scratch for `tile`."""
        if self.head is None:
            return torch.empty(0)
        size = min(shape.rows, self.states.shape[0]) * min(shape.tokens, self.vocabulary_size)
        return torch.empty(size, dtype=self.head.dtype, device=self.device)

    def tile(self, begin: int, end: int, buffer: Tensor) -> Tensor:
        """Return the logits of the tokens ``begin..end-1`` in float32 or better, which the caller may change."""
        if self.head is not None:
            return self.head.tile(self.states, begin, end, buffer)
        dtype = torch.promote_types(self.states.dtype, torch.float32)
        return self.states[:, begin:end].to(dtype, copy=True)


def streamed_divergence(p: Logits, q: Logits, targets: Tensor, tile: TileShape | None = None) -> Tensor:
    """Compare the candidate q with the reference p at each target.

    Args:
        p: Logits of the reference.
        q: Logits of the candidate at the same positions, over a vocabulary of the same size.
        targets: Token ids, shape ``[positions]``, on the host.
        tile: Tile to work in; None for the device's own.

    Returns:
        The `COLUMNS`, shape ``[positions, 5]``, in the `wide` dtype of the reference's device and on it, in nats,
        probabilities and 1 or 0. Not finite where the logits are not, or where the candidate rules a token out that
        the reference does not.
    """
    tile = tile or tile_shape(p.device)
    buffers = p.buffer(tile), q.buffer(tile)
    parts = []
    for begin in range(0, len(targets), tile.rows):
        end = begin + tile.rows
        parts.append(_block(p.rows(begin, end), q.rows(begin, end), targets[begin:end], buffers, tile.tokens))
    return torch.cat(parts) if parts else torch.zeros(0, len(COLUMNS), device=p.device)


def _block(p: Logits, q: Logits, targets: Tensor, buffers: tuple[Tensor, Tensor], tokens: int) -> Tensor:
    reference, candidate = _Side(len(targets), p.device), _Side(len(targets), p.device)
    product = torch.zeros_like(reference.total)  # S
    for begin, end, rows, columns in vocabulary_tiles(targets, p.vocabulary_size, tokens, p.device):
        x = p.tile(begin, end, buffers[0])
        y = q.tile(begin, end, buffers[1]).to(p.device)
        before = reference.total
        shrunk, risen = reference.raise_to(x, begin, rows, columns)
        product = shrunk * (product + before * (candidate.raise_to(y, begin, rows, columns)[1] - risen))
        apart = x - y
        weight = reference.add(x)
        candidate.add(y)
        # Where the reference's probability is zero, so is the term, whatever the candidate's.
        apart.masked_fill_(weight == 0, 0).mul_(weight)
        product += apart.sum(-1, dtype=product.dtype)
    log_p, log_q = reference.log_likelihood, candidate.log_likelihood
    kl = product / reference.total - reference.total.log() + candidate.total.log()
    same_top = (reference.top == candidate.top).to(kl.dtype)
    # A divergence is never negative; rounding may make one of nearly nothing so. NaN stays NaN.
    return torch.stack([kl.clamp(min=0), log_q.exp() - log_p.exp(), same_top, -log_p, -log_q], 1)


class _Side:
    """One model's running maximum, sum of exponentials, target's logit and highest token at each position."""

    def __init__(self, positions: int, device: torch.device) -> None:
        self.total = torch.zeros(positions, dtype=wide(device), device=device)
        # Finite from the beginning: a row without a finite logit so far would else be shifted by infinity.
        self._highest = torch.full_like(self.total, torch.finfo(torch.float32).min)
        self._target = torch.zeros_like(self.total)
        self.top = torch.zeros(positions, dtype=torch.long, device=device)

    def raise_to(self, logits: Tensor, begin: int, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Take a tile's maxima and targets in, and shift the tile by the running maxima, in place.

        Return the factor by which earlier terms have shrunk, and by how much the maxima have risen.
        """
        self._target[rows] = logits[rows, columns].to(self.total.dtype)
        highest = torch.maximum(self._highest, logits.amax(-1).to(self.total.dtype))
        self._take_tops(logits, begin, highest > self._highest)
        risen = highest - self._highest
        factor = (-risen).exp()
        self.total = self.total * factor
        self._highest = highest
        logits.sub_(highest.to(logits.dtype)[:, None])
        return factor, risen

    def _take_tops(self, logits: Tensor, begin: int, higher: Tensor) -> None:
        """Note the highest token of the rows that are higher than in earlier tiles; the lowest index wins ties."""
        if higher.device.type == "cpu":
            rows = higher.nonzero()[:, 0]  # few, and a pass over the others takes longer than all else
            self.top[rows] = logits[rows].argmax(-1) + begin
        else:  # where the host would wait to learn which rows they are
            self.top = torch.where(higher, logits.argmax(-1) + begin, self.top)

    def add(self, shifted: Tensor) -> Tensor:
        """Add a shifted tile's exponentials, which replace it."""
        self.total = self.total + shifted.exp_().sum(-1, dtype=self.total.dtype)
        return shifted

    @property
    def log_likelihood(self) -> Tensor:
        """Log-likelihood of each target, in nats."""
        return self._target - self._highest - self.total.log()
