"""`Fault`: a known way to break a model at rising strength, planted in a copy of it; and broken models for gates.

The copy shares the model's tensors, so the model itself keeps every bit. Strength n is the n-th of the fault's levels,
from the weakest to the strongest. A broken model is described like any other, with the fault in its address, so that
gates judge it with their own code and share its measurements. The blocks in front of the first broken one give the
same hidden states at every strength, so they run once for each batch.
"""

from __future__ import annotations

import abc
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from pytest_lmgate.engines.base import Batching, Drawn, Model
from pytest_lmgate.engines.transformers.blocks import (
    BlockMemory,
    BlockModel,
    Replay,
    can_reuse,
    copied,
    linear_layers,
    put_parameter,
    with_blocks,
)
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.errors import LmgateError
from pytest_lmgate.judge.judge import Judge
from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.judge.verdict import Samples, compared_verdict
from pytest_lmgate.measure.binding import BoundGate, ModelRef
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.likelihoods import CausalLikelihoods
from pytest_lmgate.measure.lookup import Measurements
from pytest_lmgate.measure.rows import DatasetRows
from pytest_lmgate.measure.sources import Resolver
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.settings.gates import NoRegression
from pytest_lmgate.stats.comparison import Comparison
from pytest_lmgate.version import __version__
from pytest_lmgate.windows.tokens import PromptIds, TokenizerFacts

Kind = Literal["weights", "structure", "arithmetic", "texts", "data"]


class NotPlanted(LmgateError):
    """A fault that cannot be planted in a model; the message is the reason."""


@dataclass
class Broken:
    """A copy of a loaded model that a fault may change.

    Attributes:
        loaded: The copy, which shares the tensors of the model.
        blocks: Its blocks.
        tokenizer: What the runner reads texts with.
        settings: Replaces the settings by which the runner generates texts.
        prompt: Replaces a prompt that the runner goes on from.
        first: The number of the first block that differs from the model's; the hidden states in front of it are equal.
    """

    loaded: LoadedModel
    blocks: Sequence[Any]
    tokenizer: TokenizerFacts
    settings: Callable[[GenerationSettings], GenerationSettings] = lambda settings: settings
    prompt: Callable[[PromptIds], PromptIds] = lambda prompt: prompt
    first: int = 0

    @property
    def model(self) -> Any:
        return self.loaded.model

    def put(self, old: Tensor, new: Tensor) -> None:
        put_parameter(self.model, old, new)

    def last(self, share: float) -> Sequence[Any]:
        """Return the last blocks, a share of all and at least one; the blocks in front of them are not changed."""
        self.first = len(self.blocks) - math.ceil(share * len(self.blocks))
        return self.blocks[self.first :]

    def middle(self) -> Any:
        """Return the block in the middle; the blocks in front of it are not changed."""
        self.first = len(self.blocks) // 2
        return self.blocks[self.first]

    def holders(self, *names: str) -> Iterator[tuple[Any, str, float]]:
        """Yield the configurations and modules that have a number under one of these names, with name and number."""
        configs = [module.config for module in self.model.modules() if hasattr(module, "config")]
        configs += [part for config in configs for part in vars(config).values() if hasattr(part, "to_dict")]
        for held in {id(each): each for each in (*configs, *self.model.modules())}.values():
            for name in names:
                value = vars(held).get(name)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield held, name, value


@dataclass(frozen=True)
class Fault(abc.ABC):
    """A way to break a model.

    Attributes:
        name: By which a user calls it.
        sentence: What is broken, as people say it.
        levels: The size of the fault at strength 1, 2 and so on, from the weakest to the strongest.
        words: A level as people read it, as in ``{:g} bits``.
        kind: Which part of a system the fault is in.
    """

    name: str
    sentence: str
    levels: tuple[float, ...]
    words: str
    kind: ClassVar[Kind] = "weights"

    @abc.abstractmethod
    def plant(self, broken: Broken, level: float) -> None:
        """Break the copy of a model; NotPlanted if it lacks what is to be broken."""

    def rows(self, rows: DatasetRows, level: float) -> DatasetRows:
        """Return the dataset as the broken system reads it."""
        del level
        return rows

    def shown(self, strength: int) -> str:
        """Return a strength from 1 on in words."""
        return self.words.format(self.levels[strength - 1])

    def planted(self, model: BlockModel, tokenizer: TokenizerFacts, strength: int) -> Broken:
        """Return a broken copy of a model; with strength 0, a copy that gives the same bits."""
        loaded = copied(model.loaded)
        broken = Broken(loaded, BlockModel(loaded, model.path).blocks, tokenizer)
        if strength:
            with torch.no_grad():
                self.plant(broken, self.levels[strength - 1])
        return broken


def matrices(module: Any) -> list[tuple[str, Any]]:
    """Return the linear layers of a module, by their paths in it; NotPlanted if their weights are not plain floats."""
    layers = linear_layers(module)
    if not layers:
        raise NotPlanted("its blocks have no linear layers")
    if any(type(each.weight) is not nn.Parameter or not each.weight.is_floating_point() for _, each in layers):
        raise NotPlanted("its weights are stored in a quantized form")
    return layers


def rounded(values: Tensor, bits: float, axis: int) -> Tensor:
    """Round to the nearest of ``2**bits - 1`` levels around 0, with one scale along an axis: the largest value's."""
    most = 2 ** (int(bits) - 1) - 1
    scale = values.float().abs().amax(axis, keepdim=True) / most
    return torch.where(scale > 0, (values.float() / scale).round() * scale, 0.0).to(values.dtype)


class BrokenRunner(TransformersRunner):
    """Runs a broken copy of a model, which reads and writes texts as the fault says."""

    def __init__(self, broken: Broken, context: int | None) -> None:
        super().__init__(broken.loaded, context)
        self.tokenizer, self._broken = broken.tokenizer, broken
        self.is_tried = True  # the model was

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        return super().prepare_writing(self._cut(prompts), self._broken.settings(settings))

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[tuple[str, int, bool]]:
        return super().generate(self._cut(prompts), settings)

    def sample(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[Drawn]:
        return super().sample(self._cut(prompts), settings)

    def _cut(self, prompts: Sequence[PromptIds]) -> list[PromptIds]:
        return [self._broken.prompt(prompt) for prompt in prompts]


@dataclass
class Planted:
    """A fault in a model, with the one broken copy that is in memory."""

    ref: ModelRef
    fault: Fault
    strength: int
    reuses: bool  # whether a batch reads all of its tokens, so that the same tokens give the same hidden states
    runner: BrokenRunner | None = None


class _Resolver(Resolver):
    """Describes models, one of them with a fault."""

    planted: Planted | None = None
    measurements: Measurements
    reusable: dict[str, bool]  # whether hidden states of a model can be reused, by its name
    memory: tuple[str, Fault, BlockMemory] | None = None  # of a model, for the fault that is tried

    def model(self, given: Any) -> Model:
        ref = given if isinstance(given, ModelRef) else self.names.model(given)
        model, planted = super().model(ref), self.planted
        if planted is None or ref != planted.ref:
            return model
        fault = {"fault": f"{planted.fault!r} {planted.strength} lmgate {__version__}"}
        name = f"{model.name} with {planted.fault.name}, {planted.fault.shown(planted.strength)}"
        return replace(
            model,
            name=name,
            open=lambda: self._opened(model, planted),
            content=None if model.content is None else {**model.content, **fault},
            runtime={**model.runtime, **fault},
            in_memory=True,
            tokenizer=lambda: self._opened(model, planted).tokenizer,
        )

    def rows(self, given: Any) -> DatasetRows:
        rows, planted = super().rows(given), self.planted
        if planted is None:
            return rows
        return planted.fault.rows(rows, planted.fault.levels[planted.strength - 1])

    def _opened(self, model: Model, planted: Planted) -> BrokenRunner:
        if planted.runner is None:
            runner = self.measurements.runner(model)
            healthy = with_blocks(model, runner)
            broken = planted.fault.planted(healthy, runner.tokenizer, planted.strength)
            if model.name not in self.reusable:
                with runner.measuring():
                    self.reusable[model.name] = can_reuse(healthy)
            if self.memory is None or self.memory[:2] != (model.name, planted.fault):
                self.memory = model.name, planted.fault, BlockMemory()
            if self.reusable[model.name] and broken.first and planted.reuses:
                blocks, memory = broken.model.get_submodule(healthy.path), self.memory[2]
                for index, block in enumerate(list(blocks)[: broken.first]):
                    blocks[index] = Replay(block, memory, index, broken.first)
                broken.model.register_forward_pre_hook(memory.begin, with_kwargs=True)
            planted.runner = BrokenRunner(broken, model.context)
        return planted.runner


class FaultyEvaluator(Evaluator):
    """Evaluates gates while a fault is planted in a model; all other models are as they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        digests, log = self.measurements.store.digests, self.log
        self.resolver = self._faulty = _Resolver(
            self.project, self.options, digests, self.users_backends, None, log.note
        )
        self._faulty.measurements, self._faulty.reusable = self.measurements, {}

    @contextlib.contextmanager
    def planted(self, gate: BoundGate, fault: Fault, strength: int) -> Iterator[None]:
        """Plant a fault in the model of a gate, which keeps every bit."""
        bound = gate.bound
        assert bound.model is not None
        self._faulty.planted = Planted(
            bound.model, fault, strength, bound.measurement in (CausalLikelihoods, Divergences)
        )
        try:
            yield
        finally:
            self._faulty.planted = None


class DrillJudge(Judge):
    """Judges as a session does, without looking for the place of a loss."""

    def _judged(
        self, blank: Verdict, gate: NoRegression, score: Score, samples: Samples, found: Comparison, bound: BoundGate
    ) -> Verdict:
        return compared_verdict(blank, score, samples, found, strict=self._options.strict)
