"""Broken models for gates: described like any other, with the fault in their address.

So gates judge them with their own code and share their measurements. The blocks in front of the first broken one give
the same hidden states with every fault, so they run once for each batch.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.errors import LmgateError
from pytest_lmgate.judge.judge import Judge
from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.judge.verdict import Samples, compared_verdict
from pytest_lmgate.measure.binding import BoundGate, ModelRef
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.evaluator import Evaluator, Resolver
from pytest_lmgate.measure.likelihoods import ChoiceLikelihoods, TargetLikelihoods
from pytest_lmgate.measure.lookup import Measurements
from pytest_lmgate.measure.measurement import CausalLikelihoods
from pytest_lmgate.measure.rows import DatasetRows
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gates import NoRegression
from pytest_lmgate.stats.comparison import Comparison
from pytest_lmgate.tools.drill.in_transformers import InTransformers
from pytest_lmgate.tools.drill.planting import Broken, Fault, NotPlanted
from pytest_lmgate.tools.parts.blocks import BlockMemory, can_reuse, with_blocks
from pytest_lmgate.version import __version__

_FRONTS = 3  # places in a model whose hidden states are kept for all faults that begin behind them
_READING = CausalLikelihoods, Divergences, ChoiceLikelihoods, TargetLikelihoods  # measurements that write no text


def breakable(model: Model, runner: Runner) -> Broken:
    """Return a copy of a model that a fault may break; an LmgateError if it cannot be copied."""
    kind = type(runner).__name__
    if isinstance(runner, TransformersRunner):
        return InTransformers(with_blocks(model, runner), runner.tokenizer, model.context)
    if kind == "LlamaCppRunner":
        from pytest_lmgate.tools.drill.in_gguf import InGguf

        return InGguf(model.name, runner)  # type: ignore[arg-type]
    if kind == "ServerRunner":
        from pytest_lmgate.tools.drill.in_server import InServer

        return InServer(runner)  # type: ignore[arg-type]
    raise NotPlanted("its engine is not transformers, llama.cpp or server")


@dataclass
class Planted:
    """A fault in a model, with the one broken copy that is in memory."""

    ref: ModelRef
    fault: Fault
    strength: int
    reuses: bool  # whether a batch reads all of its tokens, so that the same tokens give the same hidden states
    runner: Runner | None = field(default=None, compare=False)


class _Resolver(Resolver):
    """Describes models, one of them with a fault."""

    planted: Planted | None = None
    measurements: Measurements
    reusable: dict[str, bool]  # whether hidden states of a model can be reused, by its name
    fronts: dict[str, BlockMemory]  # what a model's blocks give without a fault, by its name
    reference: tuple[Runner, Runner] | None = None  # with its copy that remembers what its blocks gave

    def model(self, given: Any) -> Model:
        ref = given if isinstance(given, ModelRef) else self.names.model(given)
        model, planted = super().model(ref), self.planted
        if planted is None or planted.fault.plant is None:  # of data: what is measured without answers stays
            return model
        if ref != planted.ref:
            if not planted.reuses or "backend" in model.runtime:  # of another engine
                return model
            return replace(model, open=lambda: self._remembering(model), in_memory=True)
        level = planted.fault.levels[planted.strength - 1]
        fault = {"fault": f"{planted.fault.name} {level:g} lmgate {__version__}"}
        name = f"{model.name} with {planted.fault.name}, {planted.fault.shown(planted.strength)}"
        return replace(
            model,
            name=name,
            open=lambda: self._opened(model, planted),
            content=None if model.content is None else {**model.content, **fault},
            runtime={**model.runtime, **fault},
            in_memory=True,
            process="",
            tokenizer=lambda: self._opened(model, planted).tokenizer,
        )

    def rows(self, given: Any) -> DatasetRows:
        rows, planted = super().rows(given), self.planted
        if planted is None or planted.fault.rows is None:
            return rows
        return planted.fault.rows(rows, planted.fault.levels[planted.strength - 1])

    def _opened(self, model: Model, planted: Planted) -> Runner:
        if planted.runner is None:
            runner = self._loaded(model)
            broken = planted.fault.planted(breakable(model, runner), planted.strength)
            if planted.reuses:
                front = self.fronts.setdefault(model.name, BlockMemory(_FRONTS))
                self._remember(broken, model, runner, front, broken.first)
                self._remember(broken, model, runner, BlockMemory(1))  # for other gates
            planted.runner = broken.open()
            planted.runner.proofs = runner.proofs  # rows have their numbers in any batch, whatever the weights are
        return planted.runner

    def _remembering(self, model: Model) -> Runner:
        """Return a model without a fault whose blocks run once for each batch, if they can be remembered."""
        runner = self._loaded(model)
        if self.reference is None or self.reference[0] is not runner:
            self.reference = runner, runner
            with contextlib.suppress(LmgateError):  # of a model that cannot be copied
                copy = breakable(model, runner)
                self._remember(copy, model, runner, BlockMemory(1))
                self.reference = runner, copy.open()
        return self.reference[1]

    def _loaded(self, model: Model) -> Runner:
        """Return a model without a fault, which reads each text once for all copies that have its tokenizer."""
        runner = self.measurements.runner(model)
        if not hasattr(encode := runner.tokenizer.encode, "cache_info"):
            runner.tokenizer = replace(runner.tokenizer, encode=functools.cache(encode))
        return runner

    def _remember(
        self, copy: Broken, model: Model, runner: Runner, memory: BlockMemory, level: int | None = None
    ) -> None:
        """Have the blocks in front of a level, or all, run once for each batch, if their states tell all."""
        if not isinstance(copy, InTransformers):
            return
        if model.name not in self.reusable:
            with runner.measuring():
                self.reusable[model.name] = can_reuse(copy.healthy)
        if self.reusable[model.name]:
            copy.replay(memory, copy.size if level is None else level)


class FaultyEvaluator(Evaluator):
    """Evaluates gates while a fault is planted in a model; all other models are as they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        digests, log = self.measurements.store.digests, self.log
        self._faulty = _Resolver(self.project, self.options, digests, self.users_backends, None, log.note)
        self.resolver, self._faulty.measurements = self._faulty, self.measurements
        self._faulty.reusable, self._faulty.fronts = {}, {}
        self._last: Planted | None = None
        self.forget(share=True)  # a server without a revision is asked once, not for each gate

    @contextlib.contextmanager
    def planted(self, gate: BoundGate, fault: Fault, strength: int) -> Iterator[None]:
        """Plant a fault in the model and data of a gate, which stay as they are; NotPlanted if the data lacks it."""
        bound = gate.bound
        assert bound.model is not None
        if fault.rows is not None:
            if not bound.by_rows:
                raise NotPlanted("it reads texts without answers, subjects and examples")
            fault.rows(self._faulty.rows(bound.data), fault.levels[strength - 1])
        planted = Planted(bound.model, fault, strength, self.sharing_key(gate)[1])
        if self._last != planted:
            self.close_broken()
            self._last = planted
        self._faulty.planted = self._last
        try:
            yield
        finally:
            self._faulty.planted = None

    def can_see(self, gate: BoundGate, fault: Fault) -> bool:
        """Return whether a gate can see a fault of its model at all: only a server reads and writes in the same way."""
        bound = gate.bound
        assert bound.data is not None
        if fault.seen_by == "chats":
            return bound.data.spec.is_chat
        reads = bound.measurement is not None and issubclass(bound.measurement, _READING)
        return fault.seen_by == "all" or not reads or self.resolver.model(bound.model).device == "server"

    @staticmethod
    def sharing_key(gate: BoundGate) -> tuple[str, bool]:
        """Return what gates have in common that share a broken copy: the model, and whether its states are reused."""
        bound = gate.bound
        return bound.what.model_name, bound.measurement in (CausalLikelihoods, Divergences)

    def close_broken(self) -> None:
        """End the broken model that is in memory."""
        last, self._last = self._last, None  # first, or an interruption while it closes would close it again
        if last is not None and last.runner is not None:
            last.runner.close()

    def close(self) -> None:
        self.close_broken()
        super().close()


class DrillJudge(Judge):
    """Judges as a session does, without looking for the place of a loss."""

    def _judged(
        self, blank: Verdict, gate: NoRegression, score: Score, samples: Samples, found: Comparison, bound: BoundGate
    ) -> Verdict:
        return compared_verdict(blank, score, samples, found, strict=self._options.strict)
