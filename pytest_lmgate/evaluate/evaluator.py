"""`Evaluator`: from the names in a gate to a score, with the name and address of its measurement."""

from __future__ import annotations

__all__ = ["Evaluator"]

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pytest_lmgate.backends.base import Backend, Model, Runner
from pytest_lmgate.cache.store import open_store
from pytest_lmgate.config.arguments.revision import RevisedModel
from pytest_lmgate.config.file import Project
from pytest_lmgate.config.options import Options
from pytest_lmgate.data.corpora.corpus import Corpus, looks_like_documents
from pytest_lmgate.engine.cluster.cluster import Cluster
from pytest_lmgate.engine.loop import Progress
from pytest_lmgate.engine.pool import steadily
from pytest_lmgate.errors import ConfigError, ModelError, about
from pytest_lmgate.evaluate.lookup import Lookup, Measurements
from pytest_lmgate.evaluate.measurements.choices import ChoiceLikelihoods
from pytest_lmgate.evaluate.measurements.divergence import Divergences
from pytest_lmgate.evaluate.measurements.measurement import AtLeast, Measurement, identity_of
from pytest_lmgate.evaluate.measurements.perplexity import CausalLikelihoods, ConditionalLikelihoods, MaskedLikelihoods
from pytest_lmgate.evaluate.measurements.texts import (
    GeneratedTexts,
    TextFunction,
    identity_of_texts,
    is_function,
    score_function,
    score_texts,
    text_metric,
)
from pytest_lmgate.evaluate.sources.resolver import Resolver
from pytest_lmgate.metrics.divergence import Divergence, divergence
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.texts import TextMetric
from pytest_lmgate.spec.gates import EvaluationSpec, Gate, NoRegression
from pytest_lmgate.spec.protocol import Protocol
from pytest_lmgate.spec.requests import ChoiceRequest, DivergenceRequest, MaskedRequest, TextRequest

T = TypeVar("T")


@dataclass
class Evaluator:
    """Evaluates what gates and fixtures ask for; each measurement is made once.

    Attributes:
        project: The project's file.
        options: The session's options.
        report: Called with the progress of a measurement.
        note: Called with a sentence that is worth saying at once, such as waiting for another process.
        remark: Called with a sentence for the session's summary.
        warn: Called with a sentence that says what is wrong with the cache.
        users_metrics: Metrics of texts that users registered, by name.
        users_backends: Engines that users registered, by name.
    """

    project: Project
    options: Options
    report: Callable[[Progress], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None
    remark: Callable[[str], None] = lambda _: None
    warn: Callable[[str], None] = lambda _: None
    users_metrics: Mapping[str, TextMetric] = field(default_factory=dict)
    users_backends: Mapping[str, Backend] = field(default_factory=dict)

    def __post_init__(self) -> None:
        store = open_store(self.options, self.warn, self.remark)
        self.measurements = Measurements(store, self.options, lambda far: self.report(far), self.note, self.remark)
        executor = self.options.executor
        cluster = None if executor is None else Cluster(executor, lambda said: self.note(said))
        self.resolver = Resolver(self.project, self.options, store.digests, self.users_backends, cluster)
        self._functions: list[TextFunction] | None = None  # those whose texts are shared, where any are

    def beside(self, project: Project) -> Evaluator:
        """Return the evaluator of another project, which shares cache, models in memory and measurements with this."""
        other = copy.copy(self)
        other.project, other._functions, other.resolver = project, None, self.resolver.beside(project)
        return other

    @contextlib.contextmanager
    def sharing(self) -> Iterator[None]:
        """Share the texts of functions between the evaluations within: the gates of one test.

        A function may answer otherwise the next time, and has no content to hash, so that nothing is kept longer.
        """
        self._functions = []
        try:
            yield
        finally:
            self._functions = None

    @contextlib.contextmanager
    def expecting(self, expect: Callable[[Mapping[str, str]], None]) -> Iterator[None]:
        """Have the evaluations within call `expect` with a sample's identity, such as ``data``, before a model runs.

        It raises where that is not the identity that a comparison needs.
        """
        before, self.measurements.expect = self.measurements.expect, expect
        try:
            yield
        finally:
            self.measurements.expect = before

    def forget(self, *, share: bool = False) -> None:
        """Let go of measurements that are not kept: the user's code may have run since they were made.

        With `share`, the evaluations that follow share them, until `forget` is called again.
        """
        self.resolver.code.forget(share=share)
        self.measurements.forget()

    def verify(self) -> dict[str, Any]:
        """Measure some of the cache hits again, as `Options.verify` asks; see `Verification.run`."""
        return self.measurements.verification.run(self.measurements)

    @property
    def not_kept(self) -> Mapping[str, str]:
        """Models of which nothing was kept, by name, with the reason."""
        return self.measurements.not_kept

    @property
    def lookups(self) -> list[Lookup]:
        """What the cache said, in order."""
        return self.measurements.lookups

    @steadily
    def evaluate(self, what: EvaluationSpec, *, stop_above: float | None = None) -> Score:
        """Measure what a gate or a fixture asks for.

        Of an encoder-decoder model a perplexity is the conditional one, of each row's first reference given its prompt.

        Args:
            what: The evaluation.
            stop_above: For a perplexity: stop as soon as the value is certain to be above this; the score is then a
                lower bound, and ``details["at_least"]`` is set.

        Raises:
            LmgateError: It cannot be measured.
        """
        started, how = time.monotonic(), what.how
        if isinstance(how, TextRequest):
            metric = text_metric(how, self.users_metrics)
            if how.predictions is not None:
                return self._with_hint(score_texts(metric, how.predictions, how.references), "the texts given")
            if (function := self._function(what.model)) is not None:
                rows = self.resolver.rows(what.dataset)
                self.measurements.expect(identity_of_texts(rows, how, metric))
                score, seconds = score_function(function, rows, how, metric), time.monotonic() - started
                return self._with_hint(score, rows.name).placed(
                    model=function.name, dataset=rows.name, fingerprint="", cached=False, seconds=seconds
                )
        measurement = self._measurement(what)
        statistics, address, cached = self._made(measurement, stop_above)
        score = measurement.bound(statistics) if isinstance(statistics, AtLeast) else measurement.score(statistics)
        self._with_hint(score, measurement.data.name)
        score.device, score.content = measurement.model.device, identity_of(measurement.model)
        return score.identified(**measurement.identity).placed(
            model=measurement.model.name,
            dataset=measurement.data.name,
            fingerprint=address,
            cached=cached,
            seconds=time.monotonic() - started,
        )

    @steadily
    def compare(self, what: EvaluationSpec) -> Divergence:
        """Measure how far a model is from its reference: every figure that there is.

        Raises:
            LmgateError: It cannot be measured.
        """
        started = time.monotonic()
        measurement = self._measurement(what)
        assert isinstance(measurement, Divergences)
        statistics, address, cached = self._made(measurement)
        return divergence(statistics, signature=measurement.signature).placed(
            model=measurement.model.name,
            reference=measurement.reference.name,
            dataset=measurement.data.name,
            fingerprint=address,
            cached=cached,
            seconds=time.monotonic() - started,
        )

    def known(self, what: EvaluationSpec) -> tuple[Measurement[Any], Any]:
        """Return the measurement of an evaluation, and its statistics if this session has them, else None."""
        measurement = self._measurement(what)
        return measurement, self.measurements.known(measurement)

    def made(self, measurement: Measurement[T], *, anew: bool = False) -> T:
        """Return the statistics of a measurement, from the cache where it has them; those made `anew` are not kept."""
        statistics = self.measurements.again(measurement) if anew else self.measurements.once(measurement)[0]
        assert not isinstance(statistics, AtLeast)
        return statistics

    def together(self, reference: Model, candidate: Model) -> tuple[Runner, Runner]:
        """Return two models that are in memory at once, or raise ModelError where they do not fit."""
        runner = self.measurements.runner(reference)
        if self.measurements.fit_together(reference, candidate):
            return runner, self.measurements.runner(candidate)
        raise ModelError(f"{reference.name!r} and {candidate.name!r} do not fit in memory together")

    def check(self, gate: Gate | NoRegression) -> None:
        """Refuse at collection what needs no file: unknown names, metrics and options.

        Raises:
            ConfigError: A name, metric or option is unknown, or the metric is of the other direction.
        """
        self._check(gate.evaluation, gate.direction)
        if isinstance(gate, NoRegression) and gate.reference is not None:
            with about("against"):
                self._check(gate.reference, gate.direction)

    def _check(self, what: EvaluationSpec, direction: str | None) -> None:
        for argument, model in (("model", what.model), ("reference", what.reference)):
            named = model.model if isinstance(model, RevisedModel) else model
            if isinstance(named, str | Path):
                with about(argument):
                    self.resolver.names.model_spec(named)
        with about("dataset"):
            self._require_rows(what)
        if isinstance(what.how, TextRequest):
            metric = text_metric(what.how, self.users_metrics)
            if direction is not None and metric.direction != direction:
                raise ConfigError(
                    f"{metric.direction} values of {metric.name!r} are better: use metric_"
                    f"{'min' if metric.direction == 'higher' else 'max'}"
                )

    def _require_rows(self, what: EvaluationSpec) -> None:
        """Refuse a dataset that is unknown, or whose rows belong together where the metric judges each by itself."""
        if isinstance(what.dataset, str | Path):
            name, spec = self.resolver.names.dataset_spec(what.dataset)
            if spec.cluster is not None and not isinstance(what.how, TextRequest | ChoiceRequest):
                raise ConfigError(
                    f"dataset {name!r}: cluster: texts and multiple choice use it, but {what.metric} is judged between "
                    "rows; name the dataset a second time without cluster:, where each row is independent of the others"
                )

    def _measurement(self, what: EvaluationSpec) -> Measurement[Any]:
        how, metric, find = what.how, what.metric, self.resolver
        self._require_rows(what)
        model = find.model(what.model)
        if isinstance(how, TextRequest):
            return GeneratedTexts(metric, model, find.rows(what.dataset), how, text_metric(how, self.users_metrics))
        if isinstance(how, ChoiceRequest):
            return ChoiceLikelihoods(metric, model, find.rows(what.dataset), how)
        if isinstance(how, MaskedRequest):
            return MaskedLikelihoods(metric, model, find.corpus(what.dataset), how)
        if isinstance(how, DivergenceRequest):
            return Divergences(metric, model, find.corpus(what.dataset), how, find.model(what.reference))
        if model.kind != "encoder-decoder":
            return CausalLikelihoods(metric, model, find.corpus(what.dataset), how)
        rows = find.rows(what.dataset)
        try:
            task = rows.task
        except ConfigError as error:
            raise ConfigError(
                f"{metric} of the encoder-decoder model {model.name!r} measures a reference given its source: {error}"
            ) from error
        return ConditionalLikelihoods(metric, model, task, how)

    def _mention_joining(self, corpus: Corpus, asked: Protocol | DivergenceRequest) -> None:
        """Say that rows were joined, where nothing was said of how to read them and they seem to be documents."""
        protocol = asked.protocol if isinstance(asked, DivergenceRequest) else asked
        if protocol.name == Protocol.name and protocol.stride is None and looks_like_documents(corpus):
            remark = f'{corpus.name}: {len(corpus.rows):,} rows were read as one text; protocol="document" reads them '
            remark += "one by one"
            if corpus.name in self.project.spec.datasets:
                remark += r'; if they are one text, say so by join: "\n\n" in the entry of the dataset'
            self.remark(remark)

    def _with_hint(self, score: Score, data: str) -> Score:
        if hint := score.details.get("hint"):
            self.remark(f"{data}: {hint}")
        return score

    def _made(self, measurement: Measurement[Any], stop_above: float | None = None) -> tuple[Any, str, bool]:
        self.measurements.expect(measurement.shared)
        if isinstance(measurement, CausalLikelihoods | Divergences):
            self._mention_joining(measurement.data, measurement.asked)
        return self.measurements.once(measurement, stop_above)

    def _function(self, model: Any) -> TextFunction | None:
        """Return a system that is only a function; None where it is a model."""
        if not is_function(model):
            return None
        shared = next((each for each in self._functions or () if each.function is model), None)
        found = shared or TextFunction(f"function {getattr(model, '__name__', type(model).__name__)}", model)
        if self._functions is not None and shared is None:
            self._functions.append(found)
        return found
