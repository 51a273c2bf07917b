"""`Evaluator`: from a gate that is bound to its score: open the measurement, get or measure it, score it."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import yaml

from pytest_lmgate.cache.store import open_store
from pytest_lmgate.data.corpus import looks_like_documents
from pytest_lmgate.data.prompts import Chat
from pytest_lmgate.engines.base import Backend, Model, Runner
from pytest_lmgate.errors import ConfigError, ModelError
from pytest_lmgate.measure.binding import Bound, BoundGate, DataRef, ModelRef, bind, bind_gate
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.likelihoods import CausalLikelihoods, ConditionalLikelihoods
from pytest_lmgate.measure.lookup import Measurements
from pytest_lmgate.measure.loop import Log
from pytest_lmgate.measure.measurement import Measurement, identity_of, same_numbers, weights_of
from pytest_lmgate.measure.results import ResultScores
from pytest_lmgate.measure.sources import Resolver
from pytest_lmgate.measure.texts import TextFunction, identity_of_texts, score_function
from pytest_lmgate.metrics.divergence import Divergence, divergence
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.texts import TextMetric, text_score
from pytest_lmgate.settings.file import Project
from pytest_lmgate.settings.gate_options import TextRequest, WindowProtocol
from pytest_lmgate.settings.gates import EvaluationSpec, Gate
from pytest_lmgate.settings.session import Options
from pytest_lmgate.windows.tokens import PIN, Chats

Expect = Callable[[Mapping[str, str], str], None]
"""Is called with a sample's identity and the device before a model runs; raises where a comparison needs another."""


def _represented(dumper: yaml.representer.SafeRepresenter, score: Score) -> yaml.Node:
    return dumper.represent_float(float(score))


yaml.representer.SafeRepresenter.add_representer(Score, _represented)  # for yaml.safe_dump


@dataclass
class Evaluator:
    """Evaluates gates and fixtures; each measurement is made once.

    Users registered `users_metrics`, which are metrics of texts, and `users_backends`, which are engines.
    """

    project: Project
    options: Options
    log: Log = field(default_factory=Log)
    users_metrics: Mapping[str, TextMetric] = field(default_factory=dict)
    users_backends: Mapping[str, Backend] = field(default_factory=dict)

    def __post_init__(self) -> None:
        store = open_store(self.options, self.log.warn, self.log.remark)
        self.measurements = Measurements(store, self.options, self.log)
        cluster = None
        if self.options.executor is not None:
            from pytest_lmgate.measure.cluster import Cluster

            cluster = Cluster(self.options.executor, self.log)
        self.resolver = Resolver(self.project, self.options, store.digests, self.users_backends, cluster, self.log.note)
        # The texts of functions by their ids and the digest of the prompts, where gates share them.
        self._written: dict[int, dict[str, list[str]]] | None = None
        # Those into which a template wrote the time in this session, by the model and one of them.
        self._dated: dict[tuple[str, Chat], Chats] = {}

    def for_project(self, project: Project) -> Evaluator:
        """Return the evaluator of another project, which shares cache, models in memory and measurements with this."""
        other = copy.copy(self)
        other.project, other._written, other.resolver = project, None, self.resolver.for_project(project)
        return other

    def close(self) -> None:
        """End what this process started: servers and the cluster."""
        self.measurements.close()
        self.resolver.close()

    @contextlib.contextmanager
    def sharing(self) -> Iterator[None]:
        """Share the texts of functions between the gates of one test.

        A function may answer differently the next time and has no content to hash, so nothing is kept longer.
        """
        self._written = {}
        try:
            yield
        finally:
            self._written = None

    def forget(self, *, share: bool = False) -> None:
        """Forget uncacheable measurements: the user's code may have run since.

        With `share`, the next evaluations share them, until `forget` is called again.
        """
        self.resolver.code.forget(share=share)
        self.measurements.forget()

    def bind(self, what: EvaluationSpec | Bound) -> Bound:
        """Resolve what an evaluation names, unless that was done."""
        return what if isinstance(what, Bound) else bind(what, self.resolver.names, self.users_metrics)

    def bind_gate(self, gate: Gate, resolve: Callable[[Any], Any] = lambda given: given) -> BoundGate:
        """Resolve what a gate names; `resolve` replaces a fixture reference by the fixture's value."""
        return bind_gate(gate, self.resolver.names, self.users_metrics, resolve)

    def evaluate(self, what: EvaluationSpec | Bound, expect: Expect = lambda *_: None) -> Score:
        """Measure for a gate or a fixture; for encoder-decoder models, perplexity is that of the first reference."""
        started, bound = time.monotonic(), self.bind(what)
        if bound.measurement is None:
            return self._of_texts(bound, expect, started)
        made = self.measurements.get_or_measure(lambda: self._ready(bound, expect))
        self._require_same_time()
        measurement, model = made.measurement, made.measurement.model
        score = self._with_hint(measurement.score(made.statistics), measurement.data.name)
        score.device, score.content, score.weights = model.device, identity_of(model), weights_of(model)
        score.hardware = made.hardware
        if isinstance(measurement, Divergences):
            reference = measurement.reference
            if model.name == reference.name or score.weights == weights_of(reference) != "":
                self.log.remark(
                    f"{model.name!r} and its reference {reference.name!r} have the same weights and run in the same "
                    "way: a gate on their divergence can never fail; check the path of both"
                )
            elif np.array_equal(made.statistics.nll_p, made.statistics.nll_q):
                self.log.remark(same_numbers(model.name, f"its reference {reference.name!r}"))
        score = score.identified(**measurement.identity)
        score.signature = score.signature.plus(*measurement.named_settings)
        return score.placed(
            model=model.name,
            dataset=measurement.data.name,
            fingerprint=made.address,
            cached=made.cached,
            seconds=time.monotonic() - started,
        )

    def compare(self, what: EvaluationSpec | Bound) -> Divergence:
        """Measure all figures of a model and its reference."""
        started, bound = time.monotonic(), self.bind(what)
        made = self.measurements.get_or_measure(lambda: self._ready(bound, lambda *_: None))
        measurement = made.measurement
        assert isinstance(measurement, Divergences)
        signature = measurement.signature.plus(*measurement.named_settings)
        return divergence(made.statistics, signature=signature).placed(
            model=measurement.model.name,
            reference=measurement.reference.name,
            dataset=measurement.data.name,
            fingerprint=made.address,
            cached=made.cached,
            seconds=time.monotonic() - started,
        )

    def evaluate_beside(self, what: Bound, other: Bound, score: Score) -> tuple[Score, Score]:
        """Measure what a score of `what` is compared with; two results are then on the same rows, by one scale."""
        reference = self.evaluate(other)
        if what.measurement is not ResultScores:
            return score, reference
        ours, theirs = self.open(what), self.open(other)
        assert isinstance(ours, ResultScores)
        assert isinstance(theirs, ResultScores)
        pair, *scores = ours.paired_with(theirs)
        tools, where = [each.data.tool for each in (ours, theirs)], f"{ours.words} against {theirs.model.name}"
        if pair.unchecked:
            self.log.remark(f"{where}: not checked, as the files do not tell: {', '.join(pair.unchecked)}")
        if tools[0] != tools[1]:
            self.log.remark(f"{where}: measured by {tools[0]} and {tools[1]}")
        first, second = (made.placed_as(each) for made, each in zip(scores, (score, reference), strict=True))
        return first, second

    def cached_statistics(self, what: EvaluationSpec | Bound) -> tuple[Measurement[Any], Any]:
        """Return the measurement of an evaluation, and its statistics if this session has them, else None."""
        measurement = self.open(self.bind(what))
        return measurement, self.measurements.known(measurement)

    def together(self, *models: Model) -> tuple[Runner, ...]:
        """Return models that are in memory at once, or raise ModelError where they do not fit."""
        runners: list[Runner] = []
        for count, model in enumerate(models, 1):
            if runners and not self.measurements.fit_together(*models[:count]):
                raise ModelError(f"{' and '.join(repr(each.name) for each in models)} do not fit in memory together")
            runners.append(self.measurements.runner(model))
        return tuple(runners)

    def open(self, bound: Bound) -> Measurement[Any]:
        """Describe the models and read the data that a gate is bound to; no model runs."""
        what, kind, find = bound.what, bound.measurement, self.resolver
        assert kind is not None
        assert bound.model is not None
        if kind is ResultScores:
            read = find.results(bound.model, what.dataset, what.metric, bound.asked)
            return ResultScores(what.metric, *read, bound.asked)
        assert bound.data is not None
        model = self._model(bound.model, bound.data)
        others = [self._model(bound.reference, bound.data)] if bound.reference else []
        if kind is CausalLikelihoods and model.kind == "encoder-decoder":
            rows = find.rows(bound.data)
            try:
                _ = rows.task
            except ConfigError as error:
                raise ConfigError(
                    f"{what.metric} of the encoder-decoder model {model.name!r} measures a reference given its source: "
                    f"{error}"
                ) from error
            return ConditionalLikelihoods(what.metric, model, rows, bound.asked)
        scorers = [bound.scorer] if bound.scorer else []
        data = find.rows(bound.data) if bound.by_rows else find.corpus(bound.data)
        return kind(what.metric, model, data, bound.asked, *others, *scorers)

    def _model(self, ref: ModelRef, data: DataRef) -> Model:
        """Describe a model; where chats are part of an address, it gives its tokenizer, loading itself if need be."""
        model = self.resolver.model(ref)
        if model.tokenizer is None and data.spec.is_chat:
            return replace(model, tokenizer=lambda: self.measurements.runner(model).tokenizer)
        return model

    def _ready(self, bound: Bound, expect: Expect) -> Measurement[Any]:
        """Return what to measure, unless a comparison needs something else."""
        measurement = self.open(bound)
        expect(measurement.shared, measurement.model.device)
        if isinstance(measurement, ResultScores):
            for remark in measurement.data.remarks:
                self.log.remark(remark)
        self._mention_dates(measurement)
        self._mention_joining(measurement)
        return measurement

    def _of_texts(self, bound: Bound, expect: Expect, started: float) -> Score:
        """Score texts that are given, or that a function writes."""
        how, metric = bound.what.how, bound.scorer
        assert isinstance(how, TextRequest)
        assert metric is not None
        if how.predictions is not None:
            return self._with_hint(text_score(metric, how.predictions, how.references), "the given texts")
        assert bound.model is not None
        assert bound.model.function is not None
        assert bound.data is not None
        source, rows = bound.model.function, self.resolver.rows(bound.data)
        expect(identity_of_texts(rows, how, metric), "")
        written = {} if self._written is None else self._written.setdefault(id(source), {})
        score = score_function(TextFunction(bound.model.name, source, written), rows, how, metric)
        return self._with_hint(score, rows.name).placed(
            model=bound.model.name,
            dataset=rows.name,
            fingerprint="",
            cached=False,
            seconds=time.monotonic() - started,
        )

    def _mention_joining(self, measurement: Measurement[Any]) -> None:
        """Say that rows were joined, if no `join` was set and they look like separate documents."""
        if not isinstance(measurement, CausalLikelihoods | Divergences):
            return
        asked, corpus = measurement.asked, measurement.data
        protocol = asked if isinstance(asked, WindowProtocol) else asked.protocol
        if protocol.name == WindowProtocol().name and protocol.stride is None and looks_like_documents(corpus):
            remark = f'{corpus.name}: {len(corpus.rows):,} rows were read as one text; protocol="document" reads them '
            remark += "one by one"
            if corpus.name in self.project.spec.datasets:
                remark += r'; if they are one text, set join: "\n\n" in the entry of the dataset'
            self.log.remark(remark)

    def _mention_dates(self, measurement: Measurement[Any]) -> None:
        """Say that a chat template writes the time."""
        if (chats := measurement.chats).dated is None:
            return
        self._dated.setdefault((chats.model, chats.dated), chats)
        self._require_same_time()
        self.log.remark(
            f"model {chats.model!r}: its chat template writes the date (strftime_now) into {measurement.data.name}, "
            f"which is measured again when that changes; to pin it, {PIN}"
        )

    def _require_same_time(self) -> None:
        """Refuse what the session measured if a chat template has written two times into it."""
        for chats in self._dated.values():
            chats.require_same_time()

    def _with_hint(self, score: Score, data: str) -> Score:
        if hint := score.details.get("hint"):
            self.log.remark(f"{data}: {hint}")
        return score
