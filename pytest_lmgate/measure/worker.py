"""What travels to a worker: how it makes a model, and what a measurement asks of it."""

from __future__ import annotations

import contextlib
import platform
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_lmgate.arrays import Floats
from pytest_lmgate.cache.fingerprint import Fingerprint, difference, sha256
from pytest_lmgate.engines.base import Backend, Batching, Model, ModelEntry, Runner, discard_note
from pytest_lmgate.engines.devices import Card, cards_of, device_class
from pytest_lmgate.engines.registry import described
from pytest_lmgate.errors import EngineError, ModelError
from pytest_lmgate.measure.divergence import compared, strictest
from pytest_lmgate.measure.lookup import ModelPool
from pytest_lmgate.measure.loop import explained
from pytest_lmgate.measure.scoring import prepared_to_score
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.version import __version__
from pytest_lmgate.windows.requests import Request, Requests
from pytest_lmgate.windows.tokens import PromptIds, TokenizerFacts


@dataclass(frozen=True)
class Recipe:
    """Describes a model to a worker."""

    backend: Backend  # its engine
    entry: ModelEntry  # its entry; its digests of files are computed on the worker
    ingredients: Mapping[str, str]  # the model's ingredients in the judging process; the worker's must be equal
    # unique for a model that is not fully identified, so that workers load it again as a session without a cluster
    # would
    mark: str = ""
    # GPUs of the judging process, whose names are in the address; empty if it has none, and workers are not compared
    cards: frozenset[Card] = frozenset()

    @classmethod
    def of(cls, model: Model, backend: Backend, entry: ModelEntry) -> Recipe:
        mark = uuid.uuid4().hex if model.content is None or model.not_kept else ""
        cards = frozenset(cards_of(model.device)) if device_class(model.device) == "cuda" else frozenset[Card]()
        return cls(backend, replace(entry, digest=sha256, note=discard_note), model.ingredients, mark, cards)

    @property
    def key(self) -> str:
        return Fingerprint.of(
            repr(self.entry.spec), {**self.ingredients, "name": self.entry.name, "mark": self.mark}
        ).address

    def model(self, node: str) -> Model:
        """Describe the model on the worker's machine `node`, by its own files and libraries."""
        model = described(self.backend, self.entry)
        if self.cards and (others := frozenset(cards_of(model.device))) != self.cards:
            expected, got = ("; ".join(sorted(map(str, cards))) for cards in (self.cards, others))
            raise ModelError(
                f"model {model.name!r}: expected {expected} on the node {node} as here, got {got or 'no GPU'}"
            )
        here, there = (Fingerprint.of("model", each) for each in (self.ingredients, model.ingredients))
        if changed := difference(there, here):
            raise ModelError(
                f"model {model.name!r} differs on the node {node} ({'; '.join(changed[:3])}): expected "
                "the same files under the same path, and the same libraries, on all nodes"
            )
        return model


@dataclass(frozen=True)
class Task:
    """A measurement's work for workers, each of which prepares for it once."""

    models: tuple[Recipe, ...]  # its models; runners come in this order
    prepare: Callable[[Sequence[Runner]], Batching]  # has the runners look at the measurement before the first batch
    # from the runners and some items to the result of each item
    run: Callable[[Sequence[Runner], Sequence[Any]], Sequence[Any]]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)  # id of the measurement


def scoring(model: Recipe, requests: Requests) -> Task:
    """Return the task of the NLLs of the targets of requests."""
    return Task(
        (model,),
        lambda runners: prepared_to_score(runners[0], requests, model.entry.name),
        lambda runners, items: runners[0].score(items),
    )


def writing(model: Recipe, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Task:
    return Task(
        (model,),
        lambda runners: runners[0].prepare_writing(prompts, settings),
        lambda runners, items: runners[0].generate(items, settings),
    )


def comparing(reference: Recipe, candidate: Recipe, requests: Requests) -> Task:
    names = reference.entry.name, candidate.entry.name

    def prepare(runners: Sequence[Runner]) -> Batching:
        pairs = zip(runners, names, strict=True)
        return strictest([prepared_to_score(runner, requests, name, compare=True) for runner, name in pairs])

    def run(runners: Sequence[Runner], items: Sequence[Request]) -> Sequence[Floats]:
        found = []
        for runner, name in zip(runners, names, strict=True):
            with explained(name, lambda: f"{len(items)} windows", halves=True):
                found.append(runner.distributions(items))
        return compared(found[0], found[1], items, names)

    return Task((reference, candidate), prepare, run)


def outline(requests: Requests) -> Requests:
    """Return requests for preparation, without the text: all lengths, but only the first two requests and the last.

    They are in the order of `Requests.order`, each of a set of equal ones once.
    """
    order = requests.order
    shown = {at: requests.make(int(order[at])) for at in {0, min(1, len(order) - 1), len(order) - 1}}
    return Requests(
        lengths=requests.lengths[order],
        counts=requests.counts[order],
        highest=requests.highest,
        make=shown.__getitem__,
        key=lambda request: (request, None),
        describe=lambda some: f"{len(some)} requests",
        where=lambda request, target: f"target {target} of request {request}",
        may_pad=requests.may_pad,
        greedy=requests.greedy,
        has_all=False,
    )


# `Worker`: a process of the cluster that holds models and reads with them.


class Worker:
    """Holds models as a session does: one at a time, unless the next fits too."""

    def __init__(self) -> None:
        self._pool, self._node = ModelPool(), platform.node()
        self._models: dict[str, Model] = {}  # as described here, by the key of their recipes
        self._task: Task | None = None
        self._batching, self._warnings = Batching(), list[Sequence[str]]()

    def ready(self, version: str) -> None:
        """Answer once the worker has started."""
        if version != __version__:
            raise EngineError(
                f"the worker on {self._node} has pytest-lmgate {__version__}, here it is {version}: expected one "
                "version on all nodes"
            )

    def tokenizer(self, recipe: Recipe) -> TokenizerFacts:
        return self._runner(recipe).tokenizer

    def prepare(self, task: list[Any]) -> tuple[Batching, list[Sequence[str]]]:
        """Load the models of a task and have them prepare for it, once; `task` has a reference to it.

        Return how they want their batches, and what libraries warned of while each was loaded.
        """
        import ray

        found: Task = ray.get(task[0])
        if self._task is None or self._task.id != found.id:
            self._task = None
            runners = self._runners(found)
            with _measuring(runners):
                self._batching = found.prepare(runners)
            self._warnings = [runner.load_warnings for runner in runners]
            self._task = found
        return self._batching, self._warnings

    def run(self, identity: str, task: list[Any], items: Sequence[Any]) -> Sequence[Any]:
        if self._task is None or self._task.id != identity:
            self.prepare(task)
        assert self._task is not None
        runners = self._runners(self._task)
        with _measuring(runners):
            return self._task.run(runners, items)

    def _runners(self, task: Task) -> list[Runner]:
        first, *others = task.models
        runners = [self._runner(first)]
        for recipe in others:
            if not self._pool.fits_beside([first.key], recipe.key, self._model(recipe)):
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
