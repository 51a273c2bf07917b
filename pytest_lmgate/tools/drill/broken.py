"""An evaluator in which one model has a fault.

A broken model is described like any other, with the fault in its address, so that gates judge it with their own code
and share its measurements. It is a copy of the loaded model. The blocks in front of the first broken one give the same
hidden states at every strength, so they run once for each batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_lmgate.engines.base import Batching, Drawn, Model
from pytest_lmgate.engines.transformers.blocks import BlockMemory, Replay, can_reuse, with_blocks
from pytest_lmgate.engines.transformers.runner import TransformersRunner
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
from pytest_lmgate.tools.drill.planting import Broken, Fault
from pytest_lmgate.version import __version__
from pytest_lmgate.windows.tokens import PromptIds


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

    def _layers(self, bound: BoundGate) -> str:
        return ""
