"""Divergence of a causal model from its reference: one measurement, from which every statistic is made."""

from __future__ import annotations

__all__ = ["Divergences"]

import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pytest_lmgate import __version__
from pytest_lmgate.backends.base import COLUMNS, Model, Runner
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.data.corpora.corpus import Corpus
from pytest_lmgate.data.protocols.windowing import Windowing
from pytest_lmgate.data.requests.windows import window_requests
from pytest_lmgate.data.tokenization.tokens import Streams, TokenizerFacts, tokenize
from pytest_lmgate.engine.comparing import ModelPair, compare
from pytest_lmgate.errors import ModelError
from pytest_lmgate.evaluate.measurements.likelihoods import TargetMeasurement, digest_of_targets, targets_of_rows
from pytest_lmgate.evaluate.measurements.measurement import Bench, identity_of, require
from pytest_lmgate.evaluate.measurements.perplexity import planned_windows
from pytest_lmgate.metrics.divergence import DivergenceStatistics
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.spec.requests import DivergenceRequest

# Raise the number whenever the code that measures may give another result.
_KIND = "divergence/7"


@dataclass(frozen=True)
class Divergences(TargetMeasurement[DivergenceStatistics]):
    """KL(reference || model), probabilities and the most likely token at every target, of two causal models."""

    data: Corpus
    asked: DivergenceRequest
    reference: Model
    kept = DivergenceStatistics

    def __post_init__(self) -> None:
        for each in self.models:
            require(each, self.metric, "compare", "causal")

    @cached_property
    def windowing(self) -> Windowing:
        """The windows, which both read, so that neither is asked for more than it can read."""
        shorter = min(self.models, key=lambda each: each.context or float("inf"))
        return self.asked.protocol.windowing(shorter.context, model=shorter.name)

    @property
    def models(self) -> tuple[Model, ...]:
        """Candidate and reference."""
        return self.model, self.reference

    @property
    def fingerprint(self) -> Fingerprint:
        """Address of the measurement, from which every statistic is made."""
        return Fingerprint.of(
            _KIND,
            {
                **{f"candidate/{key}": value for key, value in self.model.ingredients.items()},
                **{f"reference/{key}": value for key, value in self.reference.ingredients.items()},
                "data": self.data.digest,
                "protocol": self.windowing.signature,
            },
        )

    @property
    def identity(self) -> dict[str, str]:
        """The text and the reference."""
        return {"data": self.data.digest, "reference": identity_of(self.reference)}

    @property
    def signature(self) -> Signature:
        """How the text is read."""
        return self.windowing.signature.plus(("KL(reference, model)", None), ("version", __version__))

    @property
    def shared(self) -> dict[str, str]:
        """The text and the reference; a score's signature names a statistic too."""
        return self.identity

    def measure(self, bench: Bench) -> DivergenceStatistics:
        """Compare the models at every target."""
        model, reference, data, windowing = self.model, self.reference, self.data, self.windowing
        tokenizer = bench.runner(reference).tokenizer
        streams, plan = planned_windows(data, windowing, tokenizer, reference.name)

        def candidate() -> Runner:
            runner = bench.runner(model)
            _require_same_tokens(model.name, runner.tokenizer, reference.name, tokenizer)
            own = tokenize(data, windowing, runner.tokenizer, model=model.name)
            _require_same_streams(model.name, own, reference.name, streams, data.name)
            return runner

        pair = ModelPair(
            (reference.name, model.name),
            lambda: bench.runner(reference),
            candidate,
            side_by_side=bench.fit_together(reference, model),
            folder=bench.folder if bench.folder.is_dir() and os.access(bench.folder, os.W_OK) else None,
        )
        sizes = [each.batch_size for each in self.models if isinstance(each.batch_size, int)]
        job = bench.job(f"{model.name} against {reference.name}", data.name, min(sizes, default="auto"))
        found = compare(pair, window_requests(streams, plan, data.name), job)
        return DivergenceStatistics(
            **dict(zip(COLUMNS, np.ascontiguousarray(found.T), strict=True)),
            window_targets=plan.targets,
            window_document=plan.document,
            running_text=not windowing.by_document,
            row_targets=targets_of_rows(plan, streams, data, by_document=windowing.by_document),
            targets=digest_of_targets(streams.ids),
        )

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        """Count the tokens of all windows, which both read."""
        streams, plan = planned_windows(self.data, self.windowing, tokenizer, self.reference.name)
        return 2 * window_requests(streams, plan, self.data.name).tokens

    def score(self, statistics: DivergenceStatistics) -> Score:
        """Make the statistic asked for."""
        row = METRICS[self.metric]
        own = {option: getattr(self.asked, option) for option in row.options}
        iid = self.windowing.convention.iid
        found = row.score(statistics, signature=self.signature, iid=iid, **own)
        found.details = {"reference": self.reference.name, **found.details}
        return found


def _require_same_tokens(model: str, tokenizer: TokenizerFacts, reference: str, its: TokenizerFacts) -> None:
    """Refuse two vocabularies that differ; a tokenizer that does not list its tokens is judged by the text alone."""
    if tokenizer.vocabulary is None or its.vocabulary is None:
        return
    own, theirs = tokenizer.vocabulary(), its.vocabulary()
    if own == theirs:
        return
    if len(own) != len(theirs):
        what = f"{len(own):,} tokens against {len(theirs):,}"
    else:
        by_id = {number: token for token, number in theirs.items()}
        number, token = min((number, token) for token, number in own.items() if by_id.get(number) != token)
        what = f"token {number} is {token!r} in one and {by_id.get(number)!r} in the other"
    raise ModelError(_apart(model, reference, what))


def _require_same_streams(model: str, own: Streams, reference: str, its: Streams, dataset: str) -> None:
    same = own.prefix == its.prefix and len(own.ids) == len(its.ids)
    if not same or not all(np.array_equal(a, b) for a, b in zip(own.ids, its.ids, strict=True)):
        raise ModelError(_apart(model, reference, f"they cut the text of {dataset!r} into other tokens"))


def _apart(model: str, reference: str, what: str) -> str:
    return (
        f"model {model!r} and its reference {reference!r} have tokenizers that differ ({what}): a divergence is "
        "defined token by token over one vocabulary; compare their bits per byte (bpb_max, bpb_of), which no tokenizer "
        "changes"
    )
