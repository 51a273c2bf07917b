"""Tiles of a vocabulary: how much of the logits exists at a time, and which targets lie in which tile."""

from __future__ import annotations

__all__ = ["TileShape", "tile_shape", "vocabulary_tiles"]

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_lmgate.backends.memory import sent


class TileShape(NamedTuple):
    """How much of the logits exists at a time: positions and tokens of the vocabulary."""

    rows: int
    tokens: int


def tile_shape(device: torch.device) -> TileShape:
    """Return the tile for a device: 2 MiB of float32 on a CPU (a second-level cache), 256 MiB on an accelerator."""
    return TileShape(1024, 512) if device.type == "cpu" else TileShape(8192, 8192)


def vocabulary_tiles(
    targets: Tensor, vocabulary: int, tokens: int, device: torch.device
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Yield the begin and end of each tile of a vocabulary, the rows whose target lies in it, their columns in it.

    Args:
        targets: Token ids, shape ``[rows]``, on the host, where they are sorted: no device is waited for.
        vocabulary: Tokens of the vocabulary.
        tokens: Tokens of a tile.
        device: Where rows and columns go.
    """
    order = targets.argsort()
    in_order = targets[order]
    bounds = torch.searchsorted(in_order, torch.arange(0, vocabulary + tokens, tokens)).tolist()
    order, in_order = sent(order, device), sent(in_order, device)
    for index, begin in enumerate(range(0, vocabulary, tokens)):
        part = slice(bounds[index], bounds[index + 1])
        yield begin, min(begin + tokens, vocabulary), order[part], in_order[part] - begin
