"""Conditional perplexity of an encoder-decoder model: of each row's first reference, given its prompt or source."""

from __future__ import annotations

__all__ = ["ConditionalLikelihoods"]

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from pytest_lmgate import __version__
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.data.pairs import encode_pairs, pair_requests
from pytest_lmgate.data.prompts import TextTask
from pytest_lmgate.engine.scoring import score
from pytest_lmgate.errors import ProtocolError
from pytest_lmgate.evaluate.likelihoods import TokenLikelihoods, counted, digest_of_targets
from pytest_lmgate.evaluate.measurement import Bench, addressed, digest_of, require
from pytest_lmgate.metrics.perplexity import LikelihoodStatistics
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.spec.protocol import Protocol

# Raise the number whenever the code that measures may give another result.
_KIND = "conditional-nll/3"


@dataclass(frozen=True)
class ConditionalLikelihoods(TokenLikelihoods):
    """NLLs of the tokens of each target, its EOS included, given its source, under an encoder-decoder model.

    Words, bytes and characters, for the units that count them, are those of the targets.

    Raises:
        ProtocolError: The protocol asks for more than a unit: sources and targets are not cut into windows.
    """

    data: TextTask
    asked: Protocol

    def __post_init__(self) -> None:
        require(self.model, self.metric, "score", "encoder-decoder")
        said = [
            "protocol" if each.name == "name" else each.name
            for each in fields(Protocol)
            if each.name != "unit" and getattr(self.asked, each.name) != each.default
        ]
        if said:
            raise ProtocolError(
                f"{', '.join(said)}: the encoder-decoder model {self.model.name!r} reads each source and target whole; "
                "its conditional perplexity has only a unit"
            )

    @property
    def fingerprint(self) -> Fingerprint:
        """Address of the NLLs, which do not depend on the unit."""
        return addressed(_KIND, self.model, **self.model.writing(), pairs=self.identity["data"])

    @cached_property
    def identity(self) -> dict[str, str]:
        """Sources and targets."""
        return {"data": digest_of([self.data.prompts, self._targets])}

    @property
    def signature(self) -> Signature:
        """What is scored, and what the value is per."""
        return Signature(
            [("conditional", None), ("target", "first reference"), ("unit", self.asked.unit), ("version", __version__)]
        )

    def measure(self, bench: Bench) -> LikelihoodStatistics:
        """Score every target."""
        runner, model, name = bench.runner(self.model), self.model, self.data.name
        pairs = encode_pairs(
            runner.tokenizer, self.data.prompts, self._targets, model=model.name, dataset=name, context=model.context
        )
        found = score(runner, pair_requests(pairs, name), bench.job(model.name, name, model.batch_size))
        lengths = np.array([len(pair.target) for pair in pairs])
        return LikelihoodStatistics(
            nll=found.nll,
            window_targets=lengths,
            window_document=np.arange(len(pairs)),
            **counted(self._targets),
            running_text=False,
            row_targets=lengths,
            targets=digest_of_targets([pair.target for pair in pairs]),
        )

    def score(self, statistics: LikelihoodStatistics) -> Score:
        """Make the perplexity in the unit asked for."""
        return METRICS[self.metric].score(
            statistics, signature=self.signature, unit=self.asked.unit, metric=self.metric
        )

    @property
    def _targets(self) -> list[str]:
        return [references[0] for references in self.data.references]
