"""Causal models whose attention mask shows them tokens that they are asked for."""

from typing import Any

import torch
from torch import Tensor, nn


class LookingAhead(nn.Module):
    """A model under a mask of its own.

    Args:
        model: A causal model that takes a mask of shape ``[batch, 1, tokens, tokens]``.
        ahead: Tokens after its own position that each position sees.
        prefix: Tokens at the beginning that see each other.
        block: Length of blocks of tokens that see each other; 0 for none.
    """

    def __init__(self, model: Any, ahead: int = 0, *, prefix: int = 0, block: int = 0) -> None:
        super().__init__()
        self.model, self.ahead, self.prefix, self.block = model, ahead, prefix, block

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    def get_input_embeddings(self) -> Any:
        return self.model.get_input_embeddings()

    def get_output_embeddings(self) -> Any:
        return self.model.get_output_embeddings()

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Any:
        position = torch.arange(input_ids.shape[1])
        row, column = position[:, None], position[None]
        seen = (column <= row + self.ahead) | ((row < self.prefix) & (column < self.prefix))
        if self.block:
            seen |= row // self.block == column // self.block
        mask = torch.zeros(seen.shape, dtype=self.dtype).masked_fill(~seen, torch.finfo(self.dtype).min)
        mask = mask.expand(len(input_ids), 1, *mask.shape)
        return self.model(input_ids=input_ids, attention_mask=mask, use_cache=use_cache)
