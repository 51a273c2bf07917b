"""Models in memory: one at a time, unless the next one fits beside those that are there."""

from __future__ import annotations

__all__ = ["FilesChanged", "ModelPool", "steadily"]

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pytest_lmgate.backends.base import Model, Runner
from pytest_lmgate.backends.memory import available_bytes
from pytest_lmgate.backends.raised import raised
from pytest_lmgate.data.tokenization.tokens import TokenizerFacts
from pytest_lmgate.errors import LmgateError, ModelError

P = ParamSpec("P")
T = TypeVar("T")
_ATTEMPTS = 3
# Beside the weights a model needs room for activations and for what loading holds twice.
_ROOM = 2.0


class FilesChanged(ModelError):
    """A model's files changed between their digest and the loading."""


class ModelPool:
    """Open models by key; the least recently used go first."""

    def __init__(self) -> None:
        self._runners: dict[str, Runner] = {}

    def get(self, key: str, model: Model) -> Runner:
        """Return the model under `key`, loading it if need be.

        Raises:
            ModelError: It cannot be loaded.
            FilesChanged: Another file stands in the place of one that its content tells of.
        """
        if key in self._runners:
            self._runners[key] = self._runners.pop(key)
            return self._runners[key]
        self._make_room(model)
        self._runners[key] = _opened(model)
        return self._runners[key]

    def drop(self, beginning: str) -> None:
        """Let go of the models whose keys begin so."""
        for key in [key for key in self._runners if key.startswith(beginning)]:
            self._runners.pop(key).close()

    def fits_beside(self, kept: str, key: str, model: Model) -> bool:
        """Return whether a model fits in memory beside the one under `kept`; all others go first where they must."""
        return key in self._runners or self._make_room(model, kept)

    def _make_room(self, model: Model, kept: str | None = None) -> bool:
        # What has no size is elsewhere, and so may its device be.
        while model.weight_bytes and available_bytes(model.device) < _ROOM * model.weight_bytes:
            oldest = next((key for key in self._runners if key != kept), None)
            if oldest is None:
                return False
            self._runners.pop(oldest).close()
        return True

    def __len__(self) -> int:
        return len(self._runners)


def steadily(evaluate: Callable[P, T]) -> Callable[P, T]:
    """Measure again if a model's files change while they are loaded, as when a training run saves a new checkpoint."""

    @functools.wraps(evaluate)
    def steadily(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(FilesChanged):
                return evaluate(*args, **kwargs)
        return evaluate(*args, **kwargs)

    return steadily


def _opened(model: Model) -> Runner:
    try:
        runner = model.open()
    except LmgateError:
        raise
    except Exception as error:  # whatever an engine raises
        raise ModelError(f"model {model.name!r}: its engine cannot load it: {raised(error)}") from error
    if not isinstance(tokenizer := getattr(runner, "tokenizer", None), TokenizerFacts):
        raise ModelError(
            f"model {model.name!r}: expected its engine to open a Runner whose tokenizer is a TokenizerFacts, got "
            f"{type(runner).__name__} with {type(tokenizer).__name__}"
        )
    if changed := model.changed():
        runner.close()
        raise FilesChanged(
            f"model {model.name!r}: {', '.join(changed[:3])} changed while the model was loaded, three times: "
            "expected files that stay as they are; run again when nothing writes to them"
        )
    return runner
