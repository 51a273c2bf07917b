"""What travels to a worker: how it makes a model, and what a measurement asks of it."""

from __future__ import annotations

__all__ = ["Comparing", "Recipe", "Scoring", "Task", "Writing", "outline"]

import abc
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_lmgate.arrays import Floats
from pytest_lmgate.backends.base import Backend, Batching, Entry, Model, Runner
from pytest_lmgate.backends.table import described
from pytest_lmgate.cache.digest import sha256
from pytest_lmgate.cache.fingerprint import Fingerprint, difference
from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.data.requests.requests import Request, Requests
from pytest_lmgate.data.tokenization.prompting import PromptIds
from pytest_lmgate.engine.batches import explained
from pytest_lmgate.engine.comparing import compared, strictest
from pytest_lmgate.engine.trials import prepared_to_score
from pytest_lmgate.errors import ModelError


@dataclass(frozen=True)
class Recipe:
    """How a worker makes a model.

    Attributes:
        backend: Its engine.
        entry: Its entry; `Entry.digest` is the worker's own.
        ingredients: What the model is where the gates are judged; the worker's must be the same.
        mark: Of a model of which not all is known, never used again, so that workers load it anew whenever a session
            without a cluster does.
    """

    backend: Backend
    entry: Entry
    ingredients: Mapping[str, str]
    mark: str = ""

    @classmethod
    def of(cls, model: Model, backend: Backend, entry: Entry) -> Recipe:
        """Make the recipe of a model that was described here."""
        mark = uuid.uuid4().hex if model.content is None or model.not_kept else ""
        return cls(backend, replace(entry, digest=_nothing), model.ingredients, mark)

    @property
    def key(self) -> str:
        """Names the model among all that a worker holds."""
        return Fingerprint.of(
            repr(self.entry.spec), {**self.ingredients, "name": self.entry.name, "mark": self.mark}
        ).address

    def model(self, node: str) -> Model:
        """Describe the model on a worker, by its own files and libraries.

        Args:
            node: Name of the worker's machine, for messages.

        Raises:
            ModelError: It is another one than where the gates are judged.
        """
        model = described(self.backend, replace(self.entry, digest=sha256))
        here, there = (Fingerprint.of("model", each) for each in (self.ingredients, model.ingredients))
        if changed := difference(there, here):
            raise ModelError(
                f"model {model.name!r} differs on the node {node} ({'; '.join(changed[:3])}): expected "
                "the same files under the same path, and the same libraries, on all nodes"
            )
        return model


@dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """What a measurement asks of workers, each of which prepares for it once.

    Attributes:
        models: The models that it needs, in the order in which `prepare` and `run` take them.
        id: Names the measurement.
    """

    models: tuple[Recipe, ...]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @abc.abstractmethod
    def prepare(self, *runners: Runner) -> Batching:
        """Have the models look at the measurement before the first batch."""

    @abc.abstractmethod
    def run(self, *runners: Runner, items: Sequence[Any]) -> Sequence[Any]:
        """Return the result of each item."""


@dataclass(frozen=True, kw_only=True)
class Scoring(Task):
    """NLLs of the targets of requests."""

    requests: Requests

    def prepare(self, *runners: Runner) -> Batching:
        """See `Runner.prepare`."""
        return prepared_to_score(runners[0], self.requests, self.models[0].entry.name)

    def run(self, *runners: Runner, items: Sequence[Request]) -> Sequence[Floats]:
        """See `Runner.score`."""
        return runners[0].score(items)


@dataclass(frozen=True, kw_only=True)
class Writing(Task):
    """Texts that go on from prompts."""

    prompts: Sequence[PromptIds]
    settings: GenerationSettings

    def prepare(self, *runners: Runner) -> Batching:
        """See `Runner.prepare_writing`."""
        return runners[0].prepare_writing(self.prompts, self.settings)

    def run(self, *runners: Runner, items: Sequence[PromptIds]) -> Sequence[tuple[str, int]]:
        """See `Runner.generate`."""
        return runners[0].generate(items, self.settings)


@dataclass(frozen=True, kw_only=True)
class Comparing(Task):
    """A reference and a candidate, in this order, at the targets of requests."""

    requests: Requests

    def prepare(self, *runners: Runner) -> Batching:
        """See `Runner.prepare`; both must be able to read a batch."""
        names = [recipe.entry.name for recipe in self.models]
        return strictest(
            [
                prepared_to_score(runner, self.requests, name, compare=True)
                for runner, name in zip(runners, names, strict=True)
            ]
        )

    def run(self, *runners: Runner, items: Sequence[Request]) -> Sequence[Floats]:
        """See `engine.comparing.compared`."""
        found, names = [], [recipe.entry.name for recipe in self.models]
        for runner, name in zip(runners, names, strict=True):
            with explained(name, lambda: f"{len(items)} windows", halves=True):
                found.append(runner.distributions(items))
        return compared(found[0], found[1], items, (names[0], names[1]))


def outline(requests: Requests) -> Requests:
    """Return what an engine prepares by, without the text: all lengths, but of the requests the first two and the last.

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
    )


def _nothing(path: Path) -> str:
    raise NotImplementedError(f"only a worker computes the digest of {path}")
