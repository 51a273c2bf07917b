"""Models in memory: one at a time, unless the next one fits beside those that are there."""

from __future__ import annotations

__all__ = ["ModelPool"]

from pytest_lmgate.backends.base import Model, Runner
from pytest_lmgate.backends.memory import available_bytes

# Beside the weights a model needs room for activations and for what loading holds twice.
_ROOM = 2.0


class ModelPool:
    """Open models by key; the least recently used go first."""

    def __init__(self) -> None:
        self._runners: dict[str, Runner] = {}

    def get(self, key: str, model: Model) -> Runner:
        """Return the model under `key`, loading it if need be."""
        if key in self._runners:
            self._runners[key] = self._runners.pop(key)
            return self._runners[key]
        self._make_room(model)
        self._runners[key] = model.open()
        return self._runners[key]

    def drop(self, beginning: str) -> None:
        """Let go of the models whose keys begin so."""
        for key in [key for key in self._runners if key.startswith(beginning)]:
            self._runners.pop(key).close()

    def fits_beside(self, kept: str, key: str, model: Model) -> bool:
        """Return whether a model fits in memory beside the one under `kept`; all others go first where they must."""
        return key in self._runners or self._make_room(model, kept)

    def _make_room(self, model: Model, kept: str | None = None) -> bool:
        while available_bytes(model.device) < _ROOM * model.weight_bytes:
            oldest = next((key for key in self._runners if key != kept), None)
            if oldest is None:
                return False
            self._runners.pop(oldest).close()
        return True

    def __len__(self) -> int:
        return len(self._runners)
