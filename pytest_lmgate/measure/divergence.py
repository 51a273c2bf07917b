"""Divergence of a causal model from its reference: one measurement, from which every statistic is made.

Where both fit in memory, each batch is read by the one and then by the other. Where they do not, the reference reads
first and its hidden states wait in a `Spool`, so that only its head stays loaded; a long text takes several rounds of
that. Either way no logits are stored, and the numbers are the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.cache.store import Fingerprint, StoredResult
from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.engines.base import COLUMNS, Batching, BatchPolicy, Distributions, Model, Runner
from pytest_lmgate.errors import ModelError, NonFiniteError
from pytest_lmgate.measure.loop import Job, Log, TargetSink, eager, prepared, require_finite, run_batches
from pytest_lmgate.measure.measurement import (
    MeasurementContext,
    WindowMeasurement,
    identity_of,
    same_numbers,
    weights_of,
)
from pytest_lmgate.measure.trials import explained, prepared_to_score, require_ids
from pytest_lmgate.metrics.divergence import DivergenceStatistics
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gate_options import DivergenceRequest, Signature, WindowProtocol
from pytest_lmgate.settings.metrics import METRICS
from pytest_lmgate.version import __version__
from pytest_lmgate.windows.protocols import tokenize
from pytest_lmgate.windows.requests import Request, Requests, by_request, window_requests
from pytest_lmgate.windows.tokens import TokenizerFacts

if TYPE_CHECKING:
    from pytest_lmgate.engines.logits import Spool

# Raise the number whenever the code that measures may give another result.
_KIND = "divergence/7"


@dataclass(frozen=True)
class Divergences(WindowMeasurement[DivergenceStatistics]):
    """KL(reference || model), probabilities and top predictions of two causal models at every target."""

    data: Corpus
    asked: DivergenceRequest
    reference: Model
    kept = DivergenceStatistics
    offers = ("compare",)

    @property
    def protocol(self) -> WindowProtocol:
        return self.asked.protocol

    @property
    def models(self) -> tuple[Model, ...]:
        return self.model, self.reference

    @cached_property
    def fingerprint(self) -> Fingerprint:
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
        return {"data": self.data.digest, "reference": identity_of(self.reference)}

    @property
    def signature(self) -> Signature:
        return self.windowing.signature.plus(("KL(reference, model)", None), ("version", __version__))

    @property
    def shared(self) -> dict[str, str]:
        return self.identity

    def measure(self, context: MeasurementContext) -> DivergenceStatistics:
        model, reference, data = self.model, self.reference, self.data
        tokenizer = context.runner(reference).tokenizer
        streams, plan = self.planned(tokenizer)

        def candidate() -> Runner:
            runner = context.runner(model)

            def same() -> bool:
                own = tokenize(data, self.windowing, runner.tokenizer, model=model.name)
                alike = own.prefix == streams.prefix and len(own.ids) == len(streams.ids)
                return alike and all(map(np.array_equal, own.ids, streams.ids))

            require_same_tokens(self.models, (runner.tokenizer, tokenizer), data.name, same)
            return runner

        pair = ModelPair(
            (reference.name, model.name),
            lambda: context.runner(reference),
            candidate,
            side_by_side=context.fit_together(reference, model),
            folder=context.folder if context.folder.is_dir() and os.access(context.folder, os.W_OK) else None,
        )
        sizes = [each.batch_size for each in self.models if isinstance(each.batch_size, int)]
        job = context.job(f"{model.name} against {reference.name}", data.name, min(sizes, default="auto"))
        found = compare(pair, window_requests(streams, plan, data.name), job)
        return DivergenceStatistics(
            **dict(zip(COLUMNS, np.ascontiguousarray(found.T), strict=True)),
            **self.layout(streams, plan),
        )

    def doubts(self, statistics: DivergenceStatistics) -> list[str]:
        names = f"{self.model.name!r}", f"its reference {self.reference.name!r}"
        if self.model.name == self.reference.name or weights_of(self.model) == weights_of(self.reference) != "":
            return [
                f"{names[0]} and {names[1]} have the same weights and run in the same way: a gate on their divergence "
                "can never fail; check the path of both"
            ]
        same = np.array_equal(statistics.nll_p, statistics.nll_q)
        return [same_numbers(self.model.name, names[1])] if same else []

    def score(self, statistics: DivergenceStatistics) -> Score:
        own = {option: getattr(self.asked, option) for option in METRICS[self.metric].options}
        iid = self.windowing.rules.iid
        found = self.metric_score(statistics, iid=iid, **own)
        found.details = {"reference": self.reference.name, **found.details}
        return found


def require_same_tokens(
    models: tuple[Model, ...], tokenizers: tuple[TokenizerFacts, TokenizerFacts], dataset: str, same: Callable[[], bool]
) -> None:
    """Refuse a model and its reference whose vocabularies differ, or whose tokens of the data are not the `same`."""
    what = _vocabularies_differ(*tokenizers)
    if not what and not same():
        what = f"they tokenize the text of {dataset!r} differently"
    if what:
        raise ModelError(
            f"model {models[0].name!r} and its reference {models[1].name!r} have tokenizers that differ ({what}): "
            "a divergence is defined token by token over one vocabulary; compare their bits per byte (bpb_max, "
            "bpb_of), which do not depend on the tokenizer"
        )


def _vocabularies_differ(tokenizer: TokenizerFacts, other: TokenizerFacts) -> str:
    """Say how the vocabularies differ; empty if they do not, or if a tokenizer does not list its tokens."""
    if tokenizer.vocabulary is None or other.vocabulary is None:
        return ""
    own, theirs = tokenizer.vocabulary(), other.vocabulary()
    if own == theirs:
        return ""
    if len(own) != len(theirs):
        return f"{len(own):,} tokens against {len(theirs):,}"
    by_id = {number: token for token, number in theirs.items()}
    number, token = min((number, token) for token, number in own.items() if by_id.get(number) != token)
    return f"token {number} is {token!r} in one and {by_id.get(number)!r} in the other"


# Returns the distributions that predict the targets of some requests.
Read = Callable[[Sequence[int]], Distributions]


@dataclass(frozen=True)
class ModelPair:
    """Two models that are compared, the reference first."""

    names: tuple[str, str]
    reference: Callable[[], Runner]  # returns p, loading it if need be
    # returns q, loading it if need be, and refuses it if its tokens are not the reference's
    candidate: Callable[[], Runner]
    side_by_side: bool = True  # whether both are in memory at once
    folder: Path | None = None  # for hidden states otherwise; None for the system's temporary folder


class RemoteRunner(Runner):
    """A runner whose model is in another process, where it is tried out and compared with another model there."""

    is_tried = True
    rereads = False

    def compare_with(
        self, candidate: Runner, requests: Requests
    ) -> tuple[Callable[[], Batching], Callable[[Sequence[Request]], Sequence[Floats]]]:
        """Return what prepares a comparison, and what makes it of some requests, as `compared` does."""
        raise NotImplementedError


def compare(pair: ModelPair, requests: Requests, job: Job) -> Floats:
    """Compare two models at every target: the `COLUMNS`, shape ``[targets, 5]``. Equal requests are run once."""
    sink = TargetSink(
        requests,
        job,
        lambda index, values: _check(values, requests, index, pair.names),
        columns=len(COLUMNS),
        passes=2,
        show=lambda mean: f"KL {mean:.4g}",
    )
    if pair.side_by_side:
        reference = pair.reference()
        if isinstance(reference, RemoteRunner):
            prepare, run = reference.compare_with(pair.candidate(), requests)
            batching = prepared(job.model, requests, prepare, job)
            made = eager(lambda some: run([requests.make(item) for item in some]))
            run_batches(requests, made, sink, batching, job)
            return sink.values
        with reference.measuring():
            batching = _prepared(reference, requests, pair.names[0], job)
            _compare(pair, requests, sink, job, lambda some: _read(reference, requests, some, pair.names[0]), batching)
        return sink.values
    from pytest_lmgate.engines.logits import Spool  # imports torch

    while True:
        with Spool(pair.folder) as spool:
            states = _States(requests, spool, sink)
            read = _spool(pair, requests, states, job)
            sink.only = states.rows
            _compare(pair, requests, sink, job, read)
        if sink.done == sink.of:
            return sink.values
        sink.only = None


def compared(
    reference: Distributions, candidate: Distributions, requests: Sequence[Request], names: tuple[str, str]
) -> list[Floats]:
    """Compare two models that have read the same requests: for each request the `COLUMNS`, shape ``[targets, 5]``."""
    sizes = reference.vocabulary_size, candidate.vocabulary_size
    if sizes[0] != sizes[1]:
        raise ModelError(
            f"model {names[1]!r} has {sizes[1]:,} entries in its vocabulary, its reference {names[0]!r} {sizes[0]:,}: "
            "a divergence is defined over one vocabulary only; compare their bits per byte (bpb_max)"
        )
    targets = np.concatenate([each.targets for each in requests])
    return by_request(reference.against(candidate, targets), requests)


def strictest(batchings: Sequence[Batching]) -> Batching:
    """Combine the batch policies of models that read the same batches."""
    return Batching(min(each.tokens for each in batchings), BatchPolicy.strictest(each.policy for each in batchings))


def _spool(pair: ModelPair, requests: Requests, states: _States, job: Job) -> Read:
    """Write the reference's states for as many requests as fit; return a function that reads them."""
    from pytest_lmgate.engines.logits import spool_room as room

    reference, name, allowed = pair.reference(), pair.names[0], room(pair.folder)
    with reference.measuring():
        batching = _prepared(reference, requests, name, job)

        def run(some: Sequence[int]) -> list[Any]:
            found = _read(reference, requests, some, name)
            stored = found.stored()
            states.head = found.restored([stored[:0]])
            return list(stored.split(requests.counts[list(some)].tolist()))

        quietly = replace(job, model=name, partial=None, keep=None, log=Log(), stop_when=lambda held: held >= allowed)
        run_batches(requests, eager(run), states, batching, quietly)
    return states.distributions


class _States:
    """The reference's states on disk, as a sink of the loop: `rows` has the first row of each request."""

    so_far, entry, tokens = "", StoredResult({}), 0

    def __init__(self, requests: Requests, spool: Spool, sink: TargetSink) -> None:
        self._requests, self._spool, self._sink = requests, spool, sink
        self.rows: dict[int, int] = {}
        self.head: Distributions | None = None
        self.of = sum(not sink.is_done(item) for item in requests.order.tolist())
        self.total, self._held = 0.0, 0

    @property
    def done(self) -> int:
        return len(self.rows)

    def is_done(self, item: int) -> bool:
        return self._sink.is_done(item)

    def put(self, items: Sequence[int], results: Sequence[Any]) -> None:
        for item, states in zip(items, results, strict=True):
            self._spool.write(self._held, states)
            self.rows[item] = self._held
            self._held += len(states)
            self.total += float(states.numel() * states.element_size())

    def distributions(self, some: Sequence[int]) -> Distributions:
        assert self.head is not None
        counts = self._requests.counts
        return self.head.restored([self._spool.read(self.rows[item], int(counts[item])) for item in some])


def _compare(
    pair: ModelPair, requests: Requests, sink: TargetSink, job: Job, reference: Read, shared: Batching | None = None
) -> None:
    """Let the candidate read, and compare it with the reference, which is on disk or has a `shared` way of batching."""
    name = pair.names[1]
    candidate = pair.candidate()
    with candidate.measuring():
        own = _prepared(candidate, requests, name, job)

        def run(some: Sequence[int]) -> list[Floats]:
            p, q = reference(some), _read(candidate, requests, some, name)
            return compared(p, q, [requests.make(item) for item in some], pair.names)

        run_batches(requests, eager(run), sink, own if shared is None else strictest([own, shared]), job)


def _prepared(runner: Runner, requests: Requests, name: str, job: Job) -> Batching:
    return prepared(name, requests, lambda: prepared_to_score(runner, requests, name, compare=True), job)


def _read(runner: Runner, requests: Requests, some: Sequence[int], name: str) -> Distributions:
    with explained(name, lambda: requests.describe(some), halves=True):
        made = [requests.make(item) for item in some]
        require_ids((ids for each in made for ids in (each.ids, each.targets)), name)
        return runner.distributions(made)


def _check(values: Floats, requests: Requests, index: int, names: tuple[str, str]) -> None:
    for name, column in zip(names, ("nll_p", "nll_q"), strict=True):
        require_finite(values[:, COLUMNS.index(column)], requests, index, name)
    bad = np.flatnonzero(~np.isfinite(values).all(1))
    if len(bad):
        raise NonFiniteError(
            f"model {names[1]!r}: infinite divergence from {names[0]!r} at {requests.where(index, int(bad[0]))} "
            f"({len(bad)} of {len(values)} targets there): it rules out a token that the reference does not"
        )
