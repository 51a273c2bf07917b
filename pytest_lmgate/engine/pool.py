"""Models in memory: one at a time, unless the next one fits beside those that are there."""

from __future__ import annotations

__all__ = ["ModelPool"]

from collections.abc import Callable

import torch

from pytest_lmgate.engine.loading import LoadedModel
from pytest_lmgate.engine.memory import available_bytes, release

# Beside the weights a model needs room for activations and for what loading holds twice.
_ROOM = 2.0


class ModelPool:
    """Loaded models by key; the least recently used go first."""

    def __init__(self) -> None:
        """Make an empty pool."""
        self._models: dict[str, LoadedModel] = {}

    def get(self, key: str, *, load: Callable[[], LoadedModel], weight_bytes: int, device: str) -> LoadedModel:
        """Return the model under `key`, loading it if need be.

        Args:
            key: Identity of the model.
            load: Loads it.
            weight_bytes: About what its weights take.
            device: Where it will live.
        """
        if key in self._models:
            self._models[key] = self._models.pop(key)
            return self._models[key]
        self._make_room(weight_bytes, device)
        self._models[key] = load()
        return self._models[key]

    def drop(self, beginning: str) -> None:
        """Let go of the models whose keys begin so."""
        for key in [key for key in self._models if key.startswith(beginning)]:
            gone = self._models.pop(key).device
            release(gone)

    def fits_beside(self, kept: str, key: str, *, weight_bytes: int, device: str) -> bool:
        """Whether a model can be had without letting go of another; all others go first where they must.

        Args:
            kept: The model that stays.
            key: The model that is to join it.
            weight_bytes: About what its weights take.
            device: Where it will live.
        """
        return key in self._models or self._make_room(weight_bytes, device, kept)

    def _make_room(self, weight_bytes: int, device: str, kept: str | None = None) -> bool:
        while available_bytes(torch.device(device)) < _ROOM * weight_bytes:
            oldest = next((key for key in self._models if key != kept), None)
            if oldest is None:
                return False
            gone = self._models.pop(oldest)
            where = gone.device
            del gone
            release(where)
        return True

    def __len__(self) -> int:
        return len(self._models)
