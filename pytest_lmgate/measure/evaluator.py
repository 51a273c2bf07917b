"""`Evaluator`: from the names in a gate to a score, with the name and address of its measurement."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_lmgate.cache.store import open_store
from pytest_lmgate.data.corpus import Corpus, looks_like_documents
from pytest_lmgate.data.prompts import Chat
from pytest_lmgate.engines.base import Backend, Model, Runner
from pytest_lmgate.engines.registry import backend_name
from pytest_lmgate.errors import ConfigError, ModelError, naming_argument
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.likelihoods import (
    CausalLikelihoods,
    ChoiceLikelihoods,
    ChoicesByTask,
    ConditionalLikelihoods,
    MaskedLikelihoods,
    TargetLikelihoods,
)
from pytest_lmgate.measure.lookup import Measurements
from pytest_lmgate.measure.loop import Log
from pytest_lmgate.measure.measurement import Measurement, identity_of, weights_of
from pytest_lmgate.measure.sampled import SampledDivergences, SelfDivergences
from pytest_lmgate.measure.sources import DatasetRows, Resolver, require_questions, require_references
from pytest_lmgate.measure.texts import (
    GeneratedTexts,
    TextFunction,
    identity_of_texts,
    is_function,
    require_extraction,
    score_function,
    text_metric,
)
from pytest_lmgate.metrics.divergence import Divergence, divergence
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.texts import TextMetric, text_score
from pytest_lmgate.settings.entries import DatasetSpec, is_task_metric
from pytest_lmgate.settings.file import Project
from pytest_lmgate.settings.gates import EvaluationSpec, Gate, NoRegression, RevisedModel
from pytest_lmgate.settings.requests import (
    ChoiceRequest,
    DivergenceRequest,
    MaskedRequest,
    Protocol,
    SelfDivergenceRequest,
    TextRequest,
)
from pytest_lmgate.settings.session import Options
from pytest_lmgate.windows.tokens import PIN, Chats


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
        self._functions: list[TextFunction] | None = None  # those whose texts are shared, where any are
        # Those into which a template wrote the time in this session, by the model and one of them.
        self._dated: dict[tuple[str, Chat], Chats] = {}

    def for_project(self, project: Project) -> Evaluator:
        """Return the evaluator of another project, which shares cache, models in memory and measurements with this."""
        other = copy.copy(self)
        other.project, other._functions, other.resolver = project, None, self.resolver.for_project(project)
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
        self._functions = []
        try:
            yield
        finally:
            self._functions = None

    @contextlib.contextmanager
    def expecting(self, expect: Callable[[Mapping[str, str]], None]) -> Iterator[None]:
        """Call `expect` with a sample's identity before a model runs; it raises where a comparison needs another."""
        before, self.measurements.expect = self.measurements.expect, expect
        try:
            yield
        finally:
            self.measurements.expect = before

    def forget(self, *, share: bool = False) -> None:
        """Forget uncacheable measurements: the user's code may have run since.

        With `share`, the next evaluations share them, until `forget` is called again.
        """
        self.resolver.code.forget(share=share)
        self.measurements.forget()

    def evaluate(self, what: EvaluationSpec) -> Score:
        """Measure for a gate or a fixture; for encoder-decoder models, perplexity is that of the first reference."""
        started, how = time.monotonic(), what.how
        if isinstance(how, TextRequest):
            metric = self._text_metric(what)
            if how.predictions is not None:
                if metric.extraction:
                    raise ConfigError.of("variant", "only a dataset has extractions (extract:), not given predictions")
                return self._with_hint(text_score(metric, how.predictions, how.references), "the given texts")
            if (function := self._function(what.model)) is not None:
                rows = self.resolver.rows(what.dataset)
                self.measurements.expect(identity_of_texts(rows, how, metric))
                score, seconds = score_function(function, rows, how, metric), time.monotonic() - started
                return self._with_hint(score, rows.name).placed(
                    model=function.name, dataset=rows.name, fingerprint="", cached=False, seconds=seconds
                )
        measurement, statistics, address, cached = self.measurements.once(lambda: self._ready(what))
        self._require_same_time()
        score = measurement.score(statistics)
        self._with_hint(score, measurement.data.name)
        score.device, score.content = measurement.model.device, identity_of(measurement.model)
        score.weights = weights_of(measurement.model)
        score = score.identified(**measurement.identity)
        score.signature = score.signature.plus(*measurement.named_settings)
        return score.placed(
            model=measurement.model.name,
            dataset=measurement.data.name,
            fingerprint=address,
            cached=cached,
            seconds=time.monotonic() - started,
        )

    def compare(self, what: EvaluationSpec) -> Divergence:
        """Measure all figures of a model and its reference."""
        started = time.monotonic()
        measurement, statistics, address, cached = self.measurements.once(lambda: self._ready(what))
        assert isinstance(measurement, Divergences)
        signature = measurement.signature.plus(*measurement.named_settings)
        return divergence(statistics, signature=signature).placed(
            model=measurement.model.name,
            reference=measurement.reference.name,
            dataset=measurement.data.name,
            fingerprint=address,
            cached=cached,
            seconds=time.monotonic() - started,
        )

    def cached_statistics(self, what: EvaluationSpec) -> tuple[Measurement[Any], Any]:
        """Return the measurement of an evaluation, and its statistics if this session has them, else None."""
        measurement = self._measurement(what)
        return measurement, self.measurements.known(measurement)

    def together(self, *models: Model) -> tuple[Runner, ...]:
        """Return models that are in memory at once, or raise ModelError where they do not fit."""
        runners: list[Runner] = []
        for count, model in enumerate(models, 1):
            if runners and not self.measurements.fit_together(*models[:count]):
                raise ModelError(f"{' and '.join(repr(each.name) for each in models)} do not fit in memory together")
            runners.append(self.measurements.runner(model))
        return tuple(runners)

    def check(self, gate: Gate) -> None:
        """Refuse at collection what needs no file: an unknown name, metric or option, or a metric of the other side."""
        self._check(gate.evaluation, gate.direction)
        if isinstance(gate, NoRegression) and gate.reference is not None:
            with naming_argument("against"):
                self._check(gate.reference, gate.direction)

    def _check(self, what: EvaluationSpec, direction: str | None) -> None:
        for argument, model in (("model", what.model), ("reference", what.reference)):
            named = model.model if isinstance(model, RevisedModel) else model
            if isinstance(named, str | Path):
                with naming_argument(argument):
                    backend_name(*self.resolver.names.model_spec(named), self.users_backends)
        metric = self._text_metric(what) if isinstance(what.how, TextRequest) else None
        with naming_argument("dataset"):
            self._require_rows(what)
        if isinstance(what.how, TextRequest) and metric is not None:
            if isinstance(what.dataset, str | Path):
                name, spec = self.resolver.names.dataset_spec(what.dataset)
                require_extraction(metric, name, spec, what.how.generation.settings(spec).repeats)
            else:
                what.how.generation.settings()
            if direction is not None and metric.direction != direction:
                raise ConfigError(
                    f"{metric.direction} values of {metric.name!r} are better: use metric_"
                    f"{'min' if metric.direction == 'higher' else 'max'}"
                )

    def _require_rows(self, what: EvaluationSpec) -> None:
        """Refuse a dataset that is unknown or lacks a key that the metric needs, or one with clusters between rows."""
        if isinstance(what.dataset, str | Path):
            name, spec = self.resolver.names.dataset_spec(what.dataset)
            if isinstance(what.how, ChoiceRequest):
                require_questions(name, spec)
            elif isinstance(what.how, TextRequest) and not self._scores_choices(what.how, spec):
                require_references(name, spec)
            for key in ("cluster", "average_by"):
                if getattr(spec, key) is not None and not isinstance(what.how, TextRequest | ChoiceRequest):
                    raise ConfigError(
                        f"dataset {name!r}: {key}: texts and multiple choice use it, but {what.metric} is judged "
                        f"between rows; name the dataset a second time without {key}:"
                    )

    def _measurement(self, what: EvaluationSpec) -> Measurement[Any]:
        how, metric, find = what.how, what.metric, self.resolver
        self._require_rows(what)
        model = self._model(what.model, what.dataset)
        if isinstance(how, TextRequest):
            rows, scorer = find.rows(what.dataset), self._text_metric(what)
            if self._scores_choices(how, rows.spec):
                if how.generation.said:
                    raise ConfigError.of(
                        next(iter(how.generation.said)),
                        f"the task of {rows.name!r} scores likelihoods of choices, and generates no text; remove it",
                    )
                return ChoicesByTask(metric, model, rows, ChoiceRequest(), scorer)
            return GeneratedTexts(metric, model, rows, how, scorer)
        if isinstance(how, ChoiceRequest):
            rows = find.rows(what.dataset)
            one_target = rows.spec.target is not None and rows.spec.answer is None
            return (TargetLikelihoods if one_target else ChoiceLikelihoods)(metric, model, rows, how)
        if isinstance(how, MaskedRequest):
            return MaskedLikelihoods(metric, model, find.corpus(what.dataset), how)
        if isinstance(how, DivergenceRequest):
            reference = self._model(what.reference, what.dataset)
            if how.estimator == "sampled":
                return SampledDivergences(metric, model, self._begun(what.dataset), how, reference)
            return Divergences(metric, model, find.corpus(what.dataset), how, reference)
        if isinstance(how, SelfDivergenceRequest):
            return SelfDivergences(metric, model, self._begun(what.dataset), how)
        if model.kind != "encoder-decoder":
            return CausalLikelihoods(metric, model, find.corpus(what.dataset), how)
        rows = find.rows(what.dataset)
        try:
            _ = rows.task
        except ConfigError as error:
            raise ConfigError(
                f"{metric} of the encoder-decoder model {model.name!r} measures a reference given its source: {error}"
            ) from error
        return ConditionalLikelihoods(metric, model, rows, how)

    @staticmethod
    def _scores_choices(how: TextRequest, spec: DatasetSpec) -> bool:
        """Whether code of the dataset's task scores likelihoods of choices, and no text is written."""
        return is_task_metric(how.metric) and spec.answer is not None

    def _model(self, model: Any, dataset: Any) -> Model:
        """Find a model; where chats are part of an address, it gives its tokenizer, loading itself if need be."""
        found = self.resolver.model(model)
        is_chat = isinstance(dataset, str | Path) and self.resolver.names.dataset_spec(dataset)[1].is_chat
        if found.tokenizer is None and is_chat:
            return replace(found, tokenizer=lambda: self.measurements.runner(found).tokenizer)
        return found

    def _begun(self, dataset: Any) -> Corpus | DatasetRows:
        """Return the texts that a model is to go on from: a dataset's prompts, or else its texts."""
        if isinstance(dataset, str | Path):
            _, spec = self.resolver.names.dataset_spec(dataset)
            if spec.has_prompts:
                return self.resolver.rows(dataset)
        return self.resolver.corpus(dataset)

    def _text_metric(self, what: EvaluationSpec) -> TextMetric:
        """Make the requested metric of texts, which may be code of the dataset's task."""
        assert isinstance(what.how, TextRequest)
        named = isinstance(what.dataset, str | Path)
        dataset = self.resolver.names.dataset_spec(what.dataset) if named else None
        return text_metric(what.how, self.users_metrics, dataset, self.project.folder)

    def _mention_joining(self, corpus: Corpus, asked: Protocol | DivergenceRequest) -> None:
        """Say that rows were joined, if no `join` was set and they look like separate documents."""
        protocol = asked.protocol if isinstance(asked, DivergenceRequest) else asked
        if protocol.name == Protocol().name and protocol.stride is None and looks_like_documents(corpus):
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

    def _ready(self, what: EvaluationSpec) -> Measurement[Any]:
        """Return what to measure, unless a comparison needs something else."""
        measurement = self._measurement(what)
        self.measurements.expect(measurement.shared)
        self._mention_dates(measurement)
        if isinstance(measurement, CausalLikelihoods | Divergences):
            self._mention_joining(measurement.data, measurement.asked)
        return measurement

    def _function(self, model: Any) -> TextFunction | None:
        """Return a system that is only a function; None for a model."""
        if not is_function(model):
            return None
        shared = next((each for each in self._functions or () if each.function is model), None)
        found = shared or TextFunction(f"function {getattr(model, '__name__', type(model).__name__)}", model)
        if self._functions is not None and shared is None:
            self._functions.append(found)
        return found
