"""`Scattered`: a runner whose batches are read by whichever worker is free."""

from __future__ import annotations

__all__ = ["Scattered"]

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_lmgate.arrays import Floats
from pytest_lmgate.backends.base import Batching, Runner
from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.data.requests.requests import Request, Requests
from pytest_lmgate.data.tokenization.prompting import PromptIds
from pytest_lmgate.data.tokenization.tokens import TokenizerFacts
from pytest_lmgate.engine.cluster.tasks import Comparing, Recipe, Scoring, Task, Writing, outline
from pytest_lmgate.engine.comparing import Elsewhere
from pytest_lmgate.errors import ModelError

if TYPE_CHECKING:
    from pytest_lmgate.engine.cluster.cluster import Cluster


class Scattered(Elsewhere):
    """Has the workers of a cluster read; each loads the model when its first batch comes.

    Args:
        cluster: The workers.
        recipe: How they make the model.
        tokenizer: What the planning needs to know of its tokenizer.
    """

    def __init__(self, cluster: Cluster, recipe: Recipe, tokenizer: TokenizerFacts) -> None:
        self._cluster, self._recipe, self.tokenizer = cluster, recipe, tokenizer
        self._task: _Given | None = None

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        """Have a worker look at all requests, without their text."""
        self._task = _Given(self._cluster, Scoring(models=(self._recipe,), requests=outline(requests)))
        return self._task.prepare()

    def score(self, requests: Sequence[Request]) -> Sequence[Floats]:
        """Have a free worker score some requests; called from several threads."""
        assert self._task is not None
        return self._task.run(requests)

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        """Have a worker look at all prompts."""
        self._task = _Given(self._cluster, Writing(models=(self._recipe,), prompts=prompts, settings=settings))
        return self._task.prepare()

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Sequence[tuple[str, int]]:
        """Have a free worker write; called from several threads."""
        assert self._task is not None
        return self._task.run(prompts)

    def beside(
        self, candidate: Runner, requests: Requests
    ) -> tuple[Callable[[], Batching], Callable[[Sequence[Request]], Sequence[Floats]]]:
        """Return what prepares a comparison on the workers, and what makes it of some requests there."""
        if not isinstance(candidate, Scattered):
            self._refuse()
        models = (self._recipe, candidate._recipe)
        task = _Given(self._cluster, Comparing(models=models, requests=outline(requests)))
        return task.prepare, task.run

    def distributions(self, requests: Sequence[Request]) -> NoReturn:
        """Refuse a comparison with a model that is not on the workers."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ModelError(
            f"model {self._recipe.entry.name!r} is on the workers of Ray, and cannot be compared with a model in this "
            "process: name both in lmgate.yaml or by a path, or leave --lmgate-executor out"
        )


class _Given:
    """A task that was given to the workers."""

    def __init__(self, cluster: Cluster, task: Task) -> None:
        self._cluster, self._id = cluster, task.id
        # In a list, so that Ray does not fetch it for each call.
        self._reference = [cluster.keep(task)]

    def prepare(self) -> Batching:
        batching: Batching = self._cluster.ask("prepare", self._reference)
        return replace(batching, at_once=self._cluster.size)

    def run(self, items: Sequence[Any]) -> Sequence[Any]:
        found: Sequence[Any] = self._cluster.ask("run", self._id, self._reference, list(items))
        return found
