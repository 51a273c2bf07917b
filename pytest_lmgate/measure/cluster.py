"""`Cluster`: workers of Ray; each request goes to a free one, and a lost worker is replaced.

What travels to a worker comes first: how it makes a model, and what a measurement asks of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, cast

from pytest_lmgate.arrays import Floats
from pytest_lmgate.cache.store import Fingerprint, difference, sha256
from pytest_lmgate.engines.base import Backend, Batching, Model, ModelEntry, Runner, Written, discard_note
from pytest_lmgate.engines.devices import Card, cards_of, device_class
from pytest_lmgate.engines.registry import described
from pytest_lmgate.errors import EngineError, ModelError
from pytest_lmgate.identity import replaced_in_libraries, summarize
from pytest_lmgate.measure.divergence import RemoteRunner, compared, strictest
from pytest_lmgate.measure.lookup import ModelPool
from pytest_lmgate.measure.loop import Log
from pytest_lmgate.measure.trials import explained, prepared_to_score
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.settings.session import Executor
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


# Workers that may be lost over one batch before the batch is taken for the reason.
_TRIES = 3
# Seconds to wait for a first worker, and until a sentence says what is waited for.
_PATIENCE, _QUIET = 600.0, 10.0


class Cluster:
    """The workers of a session, which start when the first model is opened."""

    def __init__(self, executor: Executor, log: Log) -> None:
        self._executor, self._log = executor, log
        self._ray: Any = None
        self._free: deque[Any] = deque()
        self._workers: list[Any] = []
        self._starting: dict[Any, Any] = {}  # workers by the answer that says that they are there
        self._busy, self._is_closed = 0, False
        self._changed = threading.Condition()  # guards the sets of free, busy and starting workers
        self._failed = ""  # why the workers could not be started
        self._last = ""  # why the last worker was lost
        self.size = 0
        """How many workers were started."""

    def moved(self, model: Model, backend: Backend, entry: ModelEntry) -> Model:
        """Return the same model, which opens on the workers.

        Its `open` raises ModelError if the session patched a library, and EngineError without workers.
        """

        def open_() -> RayRunner:
            if patched := replaced_in_libraries():
                raise ModelError(
                    f"model {model.name!r}: this session patched {summarize(patched)}, and the Ray workers would "
                    "measure without the patch: remove --lmgate-executor"
                )
            self._start()
            _pickle_by_value(self._ray, backend)
            recipe = Recipe.of(model, backend, entry)
            tokenizer = model.tokenizer() if model.tokenizer else self.ask("tokenizer", recipe)
            return RayRunner(self, recipe, tokenizer)

        # Its weights take no memory here, and workers see to it that its files are those of its description.
        return replace(model, open=open_, weight_bytes=0, changed=tuple)

    def keep(self, value: Any) -> Any:
        """Share a value with all workers, and return a reference to it."""
        return self._ray.put(value)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Have a free worker do something, and another one if the first is lost; the worker's own error is raised."""
        errors = self._ray.exceptions
        for _ in range(_TRIES):
            worker = self._take()
            is_there = True
            try:
                return self._ray.get(getattr(worker, method).remote(*arguments))
            except errors.RayTaskError as error:
                raise error.cause from None
            except (errors.RayActorError, errors.WorkerCrashedError, errors.OutOfMemoryError) as error:
                is_there, self._last = False, _words(error)
                if not self._is_closed:
                    self._log.note(f"a Ray worker was lost, and another one reads its batch: {self._last}")
            finally:
                self._return(worker, is_there=is_there)
        raise EngineError(
            f"{_TRIES} Ray workers were lost over one batch, which may need more memory than they have: {self._last}"
        )

    def close(self) -> None:
        """End the workers; threads that wait for one end with an error."""
        self._is_closed = True
        for worker in self._workers:
            self._ray.kill(worker)

    def _start(self) -> None:
        if self._ray is not None:
            return
        if self._failed:  # to try again takes as long, for each gate
            raise EngineError(self._failed)
        try:
            self._make()
        except EngineError as error:
            self._failed = str(error)
            raise

    def _make(self) -> None:
        ray, wanted = _connected(self._executor), self._executor
        cpus, room = _room(ray, wanted)
        size = wanted.workers or room
        if not size:
            raise EngineError(
                f"Ray has no node with {wanted.share(cpus)} for a worker: it has {_resources(ray)}; ask for less, or "
                "set workers=N if nodes are added on demand"
            )
        # A lost worker begins again, on another node where its own is lost, as soon as there is room.
        make = ray.remote(Worker).options(
            num_cpus=cpus, num_gpus=wanted.num_gpus, max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        self._ray, self.size = ray, size
        self._workers = [make.remote() for _ in range(size)]
        for worker in self._workers:
            self._await(worker)

    def _await(self, worker: Any) -> None:
        with self._changed:
            self._starting[worker.ready.remote(__version__)] = worker

    def _take(self) -> Any:
        began, is_said = time.monotonic(), False
        while True:
            with self._changed:
                if self._is_closed:
                    raise EngineError("the session has ended its Ray workers")
                self._welcome()
                if self._free:
                    self._busy += 1
                    return self._free.popleft()
                if not (self._busy or self._starting):
                    raise EngineError(f"no Ray worker is left: {self._last}")
                self._changed.wait(0.1)
                if self._busy:  # whoever has it gives it back
                    continue
            waited = time.monotonic() - began
            if waited > _PATIENCE:
                raise EngineError(
                    f"no Ray worker could start within {_PATIENCE:.0f} s: Ray has {_resources(self._ray)}; "
                    "others may use them, or a worker needs more than a node has"
                )
            if waited > _QUIET and not is_said:
                self._log.note("waiting for a Ray worker to start")
                is_said = True

    def _return(self, worker: Any, *, is_there: bool) -> None:
        with self._changed:
            self._busy -= 1
            if is_there:
                self._free.append(worker)
                self._changed.notify()
            else:
                self._await(worker)

    def _welcome(self) -> None:
        """Add workers that have started."""
        with self._changed:
            if not self._starting:
                return
            there, _ = self._ray.wait(list(self._starting), num_returns=len(self._starting), timeout=0)
            for answer in there:
                worker = self._starting.pop(answer)
                try:
                    self._ray.get(answer)
                except self._ray.exceptions.RayTaskError as error:
                    raise error.cause from None
                except self._ray.exceptions.ActorUnavailableError:  # it is still beginning again
                    self._await(worker)
                except self._ray.exceptions.RayError as error:
                    self._last = _words(error)
                else:
                    self._free.append(worker)


def _connected(executor: Executor) -> Any:
    """Connect to Ray, and return it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a test session tells nobody
    import ray

    if not ray.is_initialized():
        try:
            ray.init(executor.address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # anything Ray raises
            where = f"at {executor.address}" if executor.address else "on this machine"
            raise EngineError(f"--lmgate-executor: no Ray cluster answers {where}: {_words(error)}") from error
    return ray


def _room(ray: Any, executor: Executor) -> tuple[float, int]:
    """Return the processors per worker, and how many workers fit."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = executor.num_gpus
    cpus = executor.num_cpus
    if cpus is None:
        cpus = 1 if gpus else min((node["CPU"] for node in nodes if node.get("CPU")), default=1)
    room = 0
    for node in nodes:
        fits = [int(node.get("CPU", 0) / cpus)] if cpus else []
        if gpus:
            has = int(node.get("GPU", 0))
            fits.append(has * int(1 / gpus) if gpus < 1 else int(has / gpus))
        room += min(fits, default=0)
    return cpus, room


def _resources(ray: Any) -> str:
    found = ray.cluster_resources()
    nodes = sum(node["Alive"] for node in ray.nodes())
    return f"{nodes} nodes with {found.get('CPU', 0):g} processors and {found.get('GPU', 0):g} GPUs"


def _pickle_by_value(ray: Any, backend: Backend) -> None:
    """Send an engine of the user's with its module, which workers need not be able to import."""
    module = type(backend).__module__
    if not module.startswith("pytest_lmgate."):
        ray.cloudpickle.register_pickle_by_value(sys.modules[module])


def _words(error: Exception) -> str:
    """The first line of Ray's message, with the reason from the lines below."""
    first, *below = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if first.endswith(":"):
        first = " ".join([first, *(below[-1:] if below[:1] == ["Traceback (most recent call last):"] else below)])
    return first[:300]


class RayRunner(RemoteRunner):
    """Runs batches on the workers of a cluster; each loads the model for its first batch."""

    def __init__(self, cluster: Cluster, recipe: Recipe, tokenizer: TokenizerFacts) -> None:
        self._cluster, self._recipe, self.tokenizer = cluster, recipe, tokenizer
        self._task: tuple[str, list[Any]] = "", []  # id of the task that was given to the workers, and its reference

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        return self._give(scoring(self._recipe, outline(requests)), self)

    def score(self, requests: Sequence[Request]) -> Sequence[Floats]:
        return self._run(requests)

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        return self._give(writing(self._recipe, prompts, settings), self)

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Sequence[Written]:
        return self._run(prompts)

    def sample(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> NoReturn:
        raise ModelError(
            f"model {self._recipe.entry.name!r} is on the Ray workers, which give no log-probabilities of the tokens "
            "that they draw: remove --lmgate-executor"
        )

    def compare_with(
        self, candidate: Runner, requests: Requests
    ) -> tuple[Callable[[], Batching], Callable[[Sequence[Request]], Sequence[Floats]]]:
        if not isinstance(candidate, RayRunner):
            self._refuse()
        task = comparing(self._recipe, candidate._recipe, outline(requests))
        return lambda: self._give(task, self, candidate), self._run

    def distributions(self, requests: Sequence[Request]) -> NoReturn:
        self._refuse()

    def _give(self, task: Task, *runners: Runner) -> Batching:
        """Give the workers a task of the models of some runners."""
        # In a list, so that Ray does not fetch it for each call.
        self._task = task.id, [self._cluster.keep(task)]
        batching: Batching
        batching, warnings = self._cluster.ask("prepare", self._task[1])
        for runner, texts in zip(runners, warnings, strict=True):
            cast("list[str]", runner.load_warnings)[:] = texts  # the list that the session keeps
        return replace(batching, max_concurrency=self._cluster.size)

    def _run(self, items: Sequence[Any]) -> Sequence[Any]:
        found: Sequence[Any] = self._cluster.ask("run", *self._task, list(items))
        return found

    def _refuse(self) -> NoReturn:
        raise ModelError(
            f"model {self._recipe.entry.name!r} is on the Ray workers, and cannot be compared with a model in this "
            "process: name both in lmgate.yaml or give their paths, or remove --lmgate-executor"
        )
