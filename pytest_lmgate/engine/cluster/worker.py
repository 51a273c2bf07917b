"""`Worker`: a process of the cluster that holds models and reads with them."""

from __future__ import annotations

__all__ = ["Worker"]

import contextlib
import platform
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_lmgate import __version__
from pytest_lmgate.backends.base import Batching, Model, Runner
from pytest_lmgate.data.tokenization.tokens import TokenizerFacts
from pytest_lmgate.engine.cluster.tasks import Recipe, Task
from pytest_lmgate.engine.pool import ModelPool
from pytest_lmgate.errors import EngineError


class Worker:
    """Holds models as a session does: one at a time, unless the next fits beside those that are there."""

    def __init__(self) -> None:
        self._pool, self._node = ModelPool(), platform.node()
        self._models: dict[str, Model] = {}  # as described here, by the key of their recipes
        self._task: Task | None = None
        self._batching = Batching()

    def ready(self, version: str) -> None:
        """Answer as soon as the worker is there.

        Raises:
            EngineError: It has another version of this package.
        """
        if version != __version__:
            raise EngineError(
                f"the worker on {self._node} has pytest-lmgate {__version__}, here it is {version}: expected one "
                "version on all nodes"
            )

    def tokenizer(self, recipe: Recipe) -> TokenizerFacts:
        """Return the tokenizer of a model that has none without being loaded."""
        return self._runner(recipe).tokenizer

    def prepare(self, task: list[Any]) -> Batching:
        """Load the models of a task and have them prepare for it, once.

        Args:
            task: A reference to the task, in a list, so that Ray does not fetch it for each call.
        """
        import ray

        found: Task = ray.get(task[0])
        if self._task is None or self._task.id != found.id:
            self._task = None
            runners = self._runners(found)
            with _measuring(runners):
                self._batching = found.prepare(*runners)
            self._task = found
        return self._batching

    def run(self, identity: str, task: list[Any], items: Sequence[Any]) -> Sequence[Any]:
        """Return the result of each item of a task."""
        if self._task is None or self._task.id != identity:
            self.prepare(task)
        assert self._task is not None
        runners = self._runners(self._task)
        with _measuring(runners):
            return self._task.run(*runners, items=items)

    def _runners(self, task: Task) -> list[Runner]:
        first, *others = task.models
        runners = [self._runner(first)]
        for recipe in others:
            if not self._pool.fits_beside(first.key, recipe.key, self._model(recipe)):
                raise EngineError(
                    f"models {first.entry.name!r} and {recipe.entry.name!r} do not fit in the memory of the worker on "
                    f"{self._node} together: give each worker more, as in num_gpus=2"
                )
            runners.append(self._runner(recipe))
        return runners

    def _runner(self, recipe: Recipe) -> Runner:
        return self._pool.get(recipe.key, self._model(recipe))

    def _model(self, recipe: Recipe) -> Model:
        if recipe.key not in self._models:
            self._models[recipe.key] = recipe.model(self._node)
        return self._models[recipe.key]


@contextlib.contextmanager
def _measuring(runners: Sequence[Runner]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for runner in runners:
            stack.enter_context(runner.measuring())
        yield
