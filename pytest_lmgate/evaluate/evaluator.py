"""`Evaluator`: what a gate names, to a score with the name and address of what it came from."""

from __future__ import annotations

__all__ = ["Evaluator"]

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pytest_lmgate.cache.store import Store
from pytest_lmgate.config.file import Project
from pytest_lmgate.config.options import Options
from pytest_lmgate.config.revision import RevisedModel
from pytest_lmgate.data.choices import Question, make_questions
from pytest_lmgate.data.prompts import TextTask, make_task
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.evaluate.choices import evaluate_choices
from pytest_lmgate.evaluate.conditional import evaluate_conditional_perplexity
from pytest_lmgate.evaluate.divergence import DivergenceFound, evaluate_divergence
from pytest_lmgate.evaluate.likelihood import evaluate_perplexity
from pytest_lmgate.evaluate.masked import evaluate_pseudo_perplexity
from pytest_lmgate.evaluate.measurements import FilesChanged, Lookup, Measurements
from pytest_lmgate.evaluate.model_source import ModelSource
from pytest_lmgate.evaluate.rows import DatasetRows
from pytest_lmgate.evaluate.sources import Resolver
from pytest_lmgate.evaluate.texts import TextFunction, evaluate_texts, score_texts, text_metric
from pytest_lmgate.metrics.divergence import Divergence, divergence
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.metrics.texts import TextMetric
from pytest_lmgate.spec.gates import EvaluationSpec
from pytest_lmgate.spec.protocol import Protocol
from pytest_lmgate.spec.requests import DivergenceRequest, MaskedRequest, TextRequest

if TYPE_CHECKING:
    from pytest_lmgate.engine.generation import GenerationProgress
    from pytest_lmgate.engine.likelihood import Progress


P = ParamSpec("P")
T = TypeVar("T")
_ATTEMPTS = 3


def _steadily(evaluate: Callable[P, T]) -> Callable[P, T]:
    """Measure again if a model's files change while they are loaded, as when a training run saves a new checkpoint."""

    @functools.wraps(evaluate)
    def steadily(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(FilesChanged):
                return evaluate(*args, **kwargs)
        return evaluate(*args, **kwargs)

    return steadily


@dataclass
class Evaluator:
    """Evaluates what gates and fixtures ask for; each measurement is made once.

    Attributes:
        project: The project's file.
        options: The session's options.
        report: Told how far a measurement is.
        note: Told in one sentence what is worth saying, such as waiting for another process.
        remark: Told in one sentence what the session's summary should say of a measurement that was made.
        warn: Told in one sentence what was wrong with the cache.
        users_metrics: Metrics of texts that users registered, by name.
    """

    project: Project
    options: Options
    report: Callable[[Progress | GenerationProgress], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None
    remark: Callable[[str], None] = lambda _: None
    warn: Callable[[str], None] = lambda _: None
    users_metrics: Mapping[str, TextMetric] = field(default_factory=dict)

    def __post_init__(self) -> None:
        store = Store(self.options.cache, self.warn, self.options.cache_key, self.remark)
        self._measurements = Measurements(store, self.options, self.note, self.remark)
        self.resolver = Resolver(self.project, self.options, store.digests)
        self._functions: list[TextFunction] | None = None  # those whose texts are shared, where any are

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
        """Have the evaluations within tell what they are of, as far as that is known before a model runs.

        Args:
            expect: Given parts of a sample's identity, such as ``data``; raises where they are not what they should be.
        """
        before, self._measurements.expect = self._measurements.expect, expect
        try:
            yield
        finally:
            self._measurements.expect = before

    def forget(self, *, share: bool = False) -> None:
        """Let go of measurements that are not kept: the user's code may have run since they were made.

        Args:
            share: Let the evaluations that follow share them, until `forget` is called again.
        """
        self.resolver.forget(share=share)
        self._measurements.forget()

    def verify(self) -> dict[str, Any]:
        """Measure some of the cache hits again, as `Options.verify` asks; see `Verification.run`."""
        return self._measurements.verification.run(self._measurements)

    @property
    def not_kept(self) -> Mapping[str, str]:
        """Models of which nothing was kept, by name, with the reason."""
        return self._measurements.not_kept

    @property
    def lookups(self) -> list[Lookup]:
        """What the cache said, in order."""
        return self._measurements.lookups

    @_steadily
    def evaluate(self, what: EvaluationSpec, *, stop_above: float | None = None) -> Score:
        """Measure what a gate or a fixture asks for.

        Args:
            what: The evaluation.
            stop_above: For a perplexity: stop as soon as the value is certain to be above this.

        Raises:
            LmgateError: It cannot be measured.
        """
        how = what.how
        if isinstance(how, Protocol):
            return self.perplexity(what.model, what.dataset, how, metric=what.metric, stop_above=stop_above)
        if isinstance(how, DivergenceRequest):
            return self._divergence_score(what, how)
        started = time.monotonic()
        if isinstance(how, TextRequest):
            metric = text_metric(how, self.users_metrics)
            if how.predictions is not None:
                return score_texts(metric, how.predictions, how.references)
            writer, rows = self._writer(what.model), self.resolver.rows(what.dataset)
            found = evaluate_texts(
                self._measurements, writer, _task(rows), how, metric, clusters=rows.clusters, report=self.report
            )
            return _placed(found, writer, rows.name, started)
        source = self.resolver.model(what.model)
        if isinstance(how, MaskedRequest):
            corpus = self.resolver.corpus(what.dataset)
            found = evaluate_pseudo_perplexity(
                self._measurements, source, corpus, how, metric=what.metric, report=self.report
            )
            return _placed(found, source, corpus.name, started)
        rows = self.resolver.rows(what.dataset)
        found = evaluate_choices(
            self._measurements,
            source,
            _questions(rows),
            how,
            metric=what.metric,
            name=rows.name,
            delimiter=rows.spec.delimiter,
            clusters=rows.clusters,
            report=self.report,
        )
        return _placed(found, source, rows.name, started)

    def check(self, what: EvaluationSpec, direction: str | None) -> None:
        """Find at collection what needs no file: unknown names, metrics and options.

        Args:
            what: The evaluation of a gate.
            direction: ``lower`` where the gate wants small values, ``higher`` where large ones; None where the metric
                knows.

        Raises:
            ConfigError: Something of the kind, or a metric of the other direction.
        """
        for model in (what.model, what.reference):
            named = model.model if isinstance(model, RevisedModel) else model
            if isinstance(named, str | Path):
                self.resolver.model_spec(named)
        if isinstance(what.dataset, str | Path):
            self.resolver.dataset_spec(what.dataset)
        if isinstance(what.how, TextRequest):
            metric = text_metric(what.how, self.users_metrics)
            if direction is not None and metric.direction != direction:
                raise ConfigError(
                    f"{metric.direction} values of {metric.name!r} are better: use metric_"
                    f"{'min' if metric.direction == 'higher' else 'max'}"
                )

    def perplexity(
        self, model: Any, dataset: Any, protocol: Protocol, *, metric: str = "ppl", stop_above: float | None = None
    ) -> Score:
        """Measure the perplexity (or bits per byte) of a model on a dataset.

        Of an encoder-decoder model it is the conditional perplexity of each row's first reference given its prompt.

        Args:
            model: Name, path, hub id, ``(model, tokenizer)`` or pipeline.
            dataset: Name, path, hub id or rows.
            protocol: How, and in which unit.
            metric: Name of the score.
            stop_above: Stop as soon as the value is certain to be above this; None to measure whole.

        Returns:
            The score. Where the measurement was stopped, its value is a lower bound and ``details["at_least"]`` is set.

        Raises:
            LmgateError: It cannot be measured.
        """
        started = time.monotonic()
        source = self.resolver.model(model)
        if source.architecture.kind == "encoder-decoder":
            rows = self.resolver.rows(dataset)
            try:
                task = _task(rows)
            except ConfigError as error:
                raise ConfigError(
                    f"{metric} of the encoder-decoder model {source.name!r} is of a reference given its source: {error}"
                ) from error
            found = evaluate_conditional_perplexity(
                self._measurements, source, task, protocol, metric=metric, report=self.report
            )
            return _placed(found, source, rows.name, started)
        corpus = self.resolver.corpus(dataset)
        found = evaluate_perplexity(
            self._measurements, source, corpus, protocol, metric=metric, stop_above=stop_above, report=self.report
        )
        return _placed(found, source, corpus.name, started)

    @_steadily
    def compare(self, what: EvaluationSpec) -> Divergence:
        """Measure how far a model is from its reference: every figure that there is.

        Raises:
            LmgateError: It cannot be measured.
        """
        started = time.monotonic()
        measured, where, _ = self._measured_divergence(what)
        found = divergence(measured.statistics, signature=measured.signature)
        return found.placed(**where, seconds=time.monotonic() - started)

    def _divergence_score(self, what: EvaluationSpec, how: DivergenceRequest) -> Score:
        started = time.monotonic()
        measured, where, identity = self._measured_divergence(what)
        row = METRICS[what.metric]
        own = {option: getattr(how, option) for option in row.options}
        score = row.score(measured.statistics, signature=measured.signature, iid=measured.iid, **own)
        score.details = {"reference": where.pop("reference"), **score.details}
        score.device, score.content = identity.pop("device"), identity.pop("content")
        return score.identified(**identity).placed(**where, seconds=time.monotonic() - started)

    def _measured_divergence(self, what: EvaluationSpec) -> tuple[DivergenceFound, dict[str, Any], dict[str, str]]:
        """The measurement, what it is of by name, and what it is of by digest, with the device."""
        assert isinstance(what.how, DivergenceRequest)
        source, reference = self.resolver.model(what.model), self.resolver.model(what.reference)
        corpus = self.resolver.corpus(what.dataset)
        self._measurements.expect({"data": corpus.digest, "reference": reference.identity})
        measured = evaluate_divergence(
            self._measurements, source, reference, corpus, what.how, metric=what.metric, report=self.report
        )
        names = {"model": source.name, "reference": reference.name, "dataset": corpus.name}
        identity = {"data": corpus.digest, "reference": reference.identity, "device": source.device}
        identity["content"] = source.identity
        return measured, {**names, "fingerprint": measured.address, "cached": measured.cached}, identity

    def _writer(self, model: Any) -> ModelSource | TextFunction:
        """A model that writes, or a function that does."""
        if callable(model) and not hasattr(model, "forward") and not hasattr(model, "tokenizer"):
            name = f"function {getattr(model, '__name__', type(model).__name__)}"
            shared = next((each for each in self._functions or () if each.function is model), None)
            found = shared or TextFunction(name, model)
            if self._functions is not None and shared is None:
                self._functions.append(found)
            return found
        source = self.resolver.model(model)
        source.architecture.require("generating texts", "causal", "encoder-decoder")
        return source


def _placed(found: tuple[Score, str, bool], source: ModelSource | TextFunction, dataset: str, started: float) -> Score:
    score, address, cached = found
    seconds = time.monotonic() - started
    if isinstance(source, ModelSource):
        score.device, score.content = source.device, source.identity
    return score.placed(model=source.name, dataset=dataset, fingerprint=address, cached=cached, seconds=seconds)


def _task(found: DatasetRows) -> TextTask:
    spec = found.spec
    if spec.references is None:
        raise ConfigError(f"dataset {found.name!r}: say references: COLUMN (or a list of them) to compare texts with")
    if spec.prompt is None and spec.source is None:
        raise ConfigError(f"dataset {found.name!r}: say prompt: TEMPLATE with {{column}} fields, or source: COLUMN")
    return make_task(
        found.rows,
        name=found.name,
        template=spec.prompt,
        source=spec.source,
        references=[spec.references] if isinstance(spec.references, str) else spec.references,
        examples=found.examples,
        chat=spec.chat,
        system=spec.system,
    )


def _questions(found: DatasetRows) -> tuple[Question, ...]:
    spec = found.spec
    if spec.question is None or spec.choices is None or spec.answer is None:
        raise ConfigError(
            f"dataset {found.name!r}: accuracy needs question: (a column or template), choices: (a column that holds a "
            "list, or a list of columns) and answer: (the column of the right one)"
        )
    choices = [spec.choices] if isinstance(spec.choices, str) else spec.choices
    return make_questions(found.rows, name=found.name, question=spec.question, choices=choices, answer=spec.answer)
