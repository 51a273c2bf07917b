"""Binding: everything that a gate names is resolved once, at collection, before a model or a dataset is opened.

`bind_gate` makes a `BoundGate` of a gate, or says what is wrong: a name, a key, an argument, a metric, an extraction,
an engine. ``lmgate check`` binds all gates and opens what they are bound to, so it refuses what a session would refuse.
What a fixture returns is known when the test runs; then its gate is bound again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_lmgate.engines.base import Backend
from pytest_lmgate.engines.registry import backend_name
from pytest_lmgate.errors import ConfigError, naming_argument, nearest
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.likelihoods import (
    ChoiceLikelihoods,
    ChoicesByTask,
    MaskedLikelihoods,
    TargetLikelihoods,
)
from pytest_lmgate.measure.measurement import CausalLikelihoods, Measurement
from pytest_lmgate.measure.results import ResultScores, ResultsRequest
from pytest_lmgate.measure.rows import require_questions, require_references
from pytest_lmgate.measure.sampled import SampledDivergences, SelfDivergences
from pytest_lmgate.measure.texts import GeneratedTexts, require_extraction, text_metric
from pytest_lmgate.metrics.texts import TextMetric
from pytest_lmgate.settings.entries import DATA_SUFFIXES, DatasetSpec, ModelSpec, Project, is_task_metric
from pytest_lmgate.settings.gate_options import (
    ChoiceRequest,
    DivergenceRequest,
    MaskedRequest,
    SelfDivergenceRequest,
    TextRequest,
)
from pytest_lmgate.settings.gates import EvaluationSpec, FixtureReference, Gate, How, RevisedModel
from pytest_lmgate.settings.metrics import METRICS

Metrics = Mapping[str, TextMetric]  # those that users registered, by name
_EXPECTED_MODEL = (
    "model: expected a name of lmgate.yaml, a path, a hub id, a (model, tokenizer) pair or a pipeline, got {}"
)


@dataclass(frozen=True)
class ModelRef:
    """A model as a gate names it; `Resolver.model` describes it, and a measurement opens it."""

    name: str  # for messages
    spec: ModelSpec | None = None  # its entry, or that of a bare path or hub id; None for what is in memory
    backend: str = ""  # the name of its engine
    pair: tuple[Any, Any] | None = None  # model and tokenizer in memory
    function: Callable[[list[Any]], Any] | None = None  # a system that is only a function from prompts to texts
    revision: str | None = None  # the user's word that nothing else has changed

    @property
    def is_results(self) -> bool:
        return self.spec is not None and self.spec.results is not None


@dataclass(frozen=True)
class DataRef:
    """A dataset as a gate names it; `Resolver` reads it."""

    name: str  # for messages
    spec: DatasetSpec  # its entry, or that of a bare path or hub id, or the columns of rows in memory
    is_entry: bool = True
    rows: Any = None  # what is in memory, where it is not an entry


@dataclass(frozen=True)
class Bound:
    """What to measure, with every name resolved.

    Attributes:
        what: As the user wrote it.
        model: None for given texts, and before its fixture has run. So are data, also for results, and reference.
        reference: The other model of a divergence.
        scorer: Of texts, the metric, with its options or the task's own code.
        measurement: The kind of measurement; None where no model runs, and before the dataset is known. For an
            encoder-decoder model, known only when it is described, `Evaluator.open` takes its own kind.
        asked: How it is measured: as the user wrote it, or for choices that a task scores, as choices are.
        by_rows: Whether the measurement reads the dataset row by row, with all columns.
    """

    what: EvaluationSpec
    model: ModelRef | None = None
    data: DataRef | None = None
    reference: ModelRef | None = None
    scorer: TextMetric | None = None
    measurement: type[Measurement[Any]] | None = None
    asked: Any = None
    by_rows: bool = False


@dataclass(frozen=True)
class BoundGate:
    """A gate with what it measures; `reference` is what it compares with, if that is measured too."""

    gate: Gate
    bound: Bound
    reference: Bound | None = None

    @property
    def sides(self) -> list[Bound]:
        """What is measured: the gate's own model, and what it compares with, if that is measured too."""
        return [self.bound, *([] if self.reference is None else [self.reference])]

    @property
    def has_fixtures(self) -> bool:
        """Whether a fixture gives a model or the dataset."""
        return any(isinstance(each, FixtureReference) for each in self.gate.given)


class Names:
    """The names that a project's gates may use: entries of lmgate.yaml before paths before hub ids.

    ``org/name`` is a path if there is such a file or folder, or where its first part is a folder of the project: then
    the second is misspelt or not there yet, and what lies on the hub under that name would be a stranger's.
    """

    def __init__(self, project: Project, users_backends: Mapping[str, Backend]) -> None:
        self.project, self._users_backends = project, users_backends

    def model(self, given: Any) -> ModelRef:
        """Resolve a model: a name, a path, a hub id, a ``(model, tokenizer)`` pair, a pipeline or a function."""
        revision = None
        if isinstance(given, RevisedModel):
            given, revision = given.model, given.revision
        if isinstance(given, str | Path):
            name, spec = self._model_entry(given)
            backend = "" if spec.results else backend_name(name, spec, self._users_backends)
            return ModelRef(name, spec, backend, revision=revision)
        is_function = callable(given) and not hasattr(given, "forward") and not hasattr(given, "tokenizer")
        if is_function and revision is None:
            return ModelRef(f"function {getattr(given, '__name__', type(given).__name__)}", function=given)
        if hasattr(given, "model") and hasattr(given, "tokenizer") and not isinstance(given, tuple):
            given = given.model, given.tokenizer
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise ConfigError(_EXPECTED_MODEL.format(type(given).__name__))
        return ModelRef(f"in-memory {type(given).__name__}", pair=(given[0], given[1]), revision=revision)

    def dataset(self, given: Any) -> DataRef:
        """Resolve a dataset: a name, a path, a hub id, or rows in memory; a text with a data file's suffix is a path.

        Rows in memory have the columns ``source`` and ``references``, or ``question``, ``choices`` and ``answer``.
        """
        if isinstance(given, str | Path):
            return DataRef(*self._dataset_entry(given))
        name = f"in-memory {type(given).__name__}"
        spec = DatasetSpec(
            path=name,
            source="source",
            references=["references"],
            question="question",
            choices="choices",
            answer="answer",
        )
        return DataRef(name, spec, False, given)

    def _model_entry(self, model: str | Path) -> tuple[str, ModelSpec]:
        entries = self.project.spec.models
        if isinstance(model, str) and model in entries:
            return model, entries[model]
        if isinstance(model, Path) or self._is_path(model, "model"):
            return str(model), ModelSpec(path=str(model))
        if model.startswith("hub:") or model.count("/") == 1:
            self._require_no_folder("model", model)
            repo, revision = _hub_id(model)
            return model, ModelSpec(hub=repo, revision=revision)
        raise ConfigError(self._unknown("model", model))

    def _dataset_entry(self, dataset: str | Path) -> tuple[str, DatasetSpec]:
        entries = self.project.spec.datasets
        if isinstance(dataset, str) and dataset in entries:
            return dataset, entries[dataset]
        if isinstance(dataset, Path) or self._is_path(dataset, "dataset"):
            return str(dataset), DatasetSpec(path=str(dataset))
        if dataset.startswith("hub:") or dataset.count("/") == 1:
            self._require_no_folder("dataset", dataset)
            return dataset, DatasetSpec(hub=dataset.removeprefix("hub:"))
        raise ConfigError(self._unknown("dataset", dataset))

    def hub_id(self, tokenizer: str) -> tuple[str, str | None] | None:
        """Return the repository and revision of a tokenizer on the hub; None for a path."""
        if self._is_path(tokenizer):
            return None
        self._require_no_folder("tokenizer", tokenizer)
        return _hub_id(tokenizer)

    def _is_path(self, given: str, what: str = "") -> bool:
        """Whether it has the form of a path, or exists."""
        if what:
            self._refuse_text(what, given)
        if given.startswith("hub:"):
            return False
        if given.startswith((".", "/", "~")) or given.count("/") > 1:
            return True
        suffix = Path(given).suffix if what == "dataset" else ""
        return suffix.lower() in DATA_SUFFIXES or (("/" in given or bool(suffix)) and self._exists(given))

    def _require_no_folder(self, what: str, given: str) -> None:
        """Refuse a hub id whose first part is a folder of the project."""
        top, _, inner = given.partition("/")
        if given.startswith("hub:") or not inner or not self.project.path(top).is_dir():
            return
        there: list[str] = []
        with contextlib.suppress(OSError):
            there = [path.name for path in self.project.path(top).iterdir()]
        raise ConfigError(
            f"{what} {given!r}: there is no {inner} in {self.project.path(top)}{nearest(inner, there)}; "
            f"check the path, or name it in lmgate.yaml; a hub id of that name is written hub:{given}"
        )

    def _exists(self, given: str) -> bool:
        try:
            return self.project.path(given).exists()
        except PermissionError:
            return True  # reading it says why it cannot be

    def _refuse_text(self, what: str, given: str) -> None:
        """Refuse a text too long for a path or with several lines: a name was expected."""
        with contextlib.suppress(ConfigError):
            self.project.path(given)
            if "\n" not in given:
                return
        raise ConfigError.of(
            what,
            f"expected a name of lmgate.yaml, a path or a hub id, got {len(given):,} characters that begin "
            f"{given[:40]!r}" + ("; put texts in a list: [text]" if what == "dataset" else ""),
        )

    def _unknown(self, what: str, given: str) -> str:
        tables: dict[str, Mapping[str, object]] = {
            "model": self.project.spec.models,
            "dataset": self.project.spec.datasets,
        }
        known, other = tables.pop(what), *tables
        origin, names = self.project.file, ", ".join(known) or "none"
        where = f"; {origin} has under {what}s: {names}" if origin else f", as {self.project.origin}"
        if given in tables[other]:
            return f"{what} {given!r} is a {other}; expected a {what}{where}"
        one = "one of these, a path" if origin else "a path"
        text = "; put a text in a list: [text]" if what == "dataset" and " " in given else ""
        return (
            f"{what} {given!r} is not known{nearest(given, known)}{where}; give {one} "
            f"(./{'folder' if what == 'model' else 'file'}) or a hub id (hub:org/name){text}"
        )


def _hub_id(written: str) -> tuple[str, str | None]:
    """Parse ``hub:org/name@revision``; ``hub:`` and the revision are optional."""
    repo, _, revision = written.removeprefix("hub:").partition("@")
    return repo, revision or None


def bind_gate(
    gate: Gate, names: Names, metrics: Metrics, resolve: Callable[[Any], Any] = lambda given: given
) -> BoundGate:
    """Resolve everything that a gate names; `resolve` replaces a fixture reference by the fixture's value."""
    bound = bind(gate.evaluation.resolved(resolve), names, metrics)
    _require_direction(bound.scorer, gate.direction)
    if isinstance(bound.asked, ResultsRequest):
        bound = replace(bound, asked=replace(bound.asked, direction=gate.direction))
    if gate.reference is None:
        return BoundGate(gate, bound)
    what = gate.reference.resolved(resolve)
    other = _resolved("against", what.model, names.model)
    if bound.model is not None and other is not None and bound.model.is_results != other.is_results:
        results = bound.model.name if bound.model.is_results else other.name
        raise ConfigError.of("against", f"expected results on both sides or on none; only {results!r} is results")
    files = [_results_path(each, names) for each in (bound.model, other)]
    if files[0] is not None and files[0] == files[1]:
        raise ConfigError.of("against", f"it reads the same results, {files[0]}, so the gate could never fail")
    if other is not None and other.spec is not None and other == bound.model and not getattr(gate, "same", False):
        raise ConfigError.of(
            "against",
            f"{other.name!r} is the gate's own model, so the gate could never fail; if meant, write same: true",
        )
    with naming_argument("against"):
        return BoundGate(gate, bound, bind(what, names, metrics))


def bind(what: EvaluationSpec, names: Names, metrics: Metrics) -> Bound:
    """Resolve everything that an evaluation names."""
    how = what.how
    model, reference = (
        _resolved(argument, given, names.model)
        for argument, given in (("model", what.model), ("reference", what.reference))
    )
    if results := next((each for each in (model, reference) if each is not None and each.is_results), None):
        return _bind_results(what, results)
    data = _resolved("dataset", what.dataset, names.dataset)
    scorer = None
    if isinstance(how, TextRequest):
        entry = (data.name, data.spec) if data is not None and data.is_entry else None
        if how.options and how.metric not in METRICS:
            raise ConfigError.of("variant", f"only results have filters, and the model {what.model_name!r} has none")
        scorer = text_metric(how, metrics, entry, names.project.folder)
    elif model is not None and model.function is not None:
        raise ConfigError(_EXPECTED_MODEL.format(type(model.function).__name__))
    if data is not None and data.is_entry:
        with naming_argument("dataset"):
            _require_columns(what, data)
    if isinstance(how, TextRequest) and scorer is not None:
        _require_texts(how, scorer, model, data)
    if data is None or (model is not None and model.function is not None):
        return Bound(what, model, data, reference, scorer)
    kind, by_rows = _measurement(how, data)
    kind.require_arguments(what.metric, data.name, data.spec, how)
    return Bound(what, model, data, reference, scorer, kind, ChoiceRequest() if kind is ChoicesByTask else how, by_rows)


def _bind_results(what: EvaluationSpec, model: ModelRef) -> Bound:
    """Resolve an evaluation of results, whose metrics and tasks are those of the files."""
    how = what.how
    if what.metric in METRICS or not isinstance(how, TextRequest):
        raise ConfigError(
            f"{what.metric} runs a model, but {model.name!r} is results, which are only read: use metric_min, "
            f"metric_max or no_regression with a metric of its files; one that they too call {what.metric} is written "
            f"with its filter, as in '{what.metric},none'"
        )
    if said := how.generation.given:
        raise ConfigError.of(next(iter(said)), f"{model.name!r} is results, which are only read; remove it")
    variant = dict(how.options).get("variant", "")
    for argument, value in (("variant", variant), ("dataset", what.dataset)):
        if not isinstance(value, str | FixtureReference):
            raise ConfigError.of(argument, f"of results expected a name of their files, got {type(value).__name__}")
    return Bound(what, model, measurement=ResultScores, asked=ResultsRequest(variant))


def _results_path(model: ModelRef | None, names: Names) -> Path | None:
    spec = None if model is None or model.spec is None else model.spec.results_spec
    return None if spec is None else names.project.path(spec.path).resolve()


def _resolved(argument: str, given: Any, find: Callable[[Any], Any]) -> Any:
    if given is None or isinstance(given, FixtureReference):
        return None
    with naming_argument(argument):
        return find(given)


def _require_columns(what: EvaluationSpec, data: DataRef) -> None:
    """Refuse an entry that lacks a key that the metric needs, or one with clusters where noise is between rows."""
    if isinstance(what.how, ChoiceRequest):
        require_questions(data.name, data.spec)
    elif isinstance(what.how, TextRequest) and not _scores_choices(what.how, data):
        require_references(data.name, data.spec)
    for key in ("cluster", "average_by"):
        if getattr(data.spec, key) is not None and not isinstance(what.how, TextRequest | ChoiceRequest):
            raise ConfigError(
                f"dataset {data.name!r}: {key}: texts and multiple choice use it, but {what.metric} is judged "
                f"between rows; name the dataset a second time without {key}:"
            )


def _require_texts(how: TextRequest, scorer: TextMetric, model: ModelRef | None, data: DataRef | None) -> None:
    """Refuse what a metric of texts cannot use: an extraction that is not there, settings of generation, repeats."""
    said = how.generation.given
    if how.predictions is not None:
        if scorer.extraction:
            raise ConfigError.of("variant", "only a dataset has extractions (extract:), not given predictions")
    elif data is None:
        how.generation.settings()
    elif model is not None and model.function is not None:
        again = f"; name the dataset {data.name!r} a second time, without them"
        for settings, hint in ((said, ""), (data.spec.given, again)):
            if settings:
                words = ", ".join(f"{key}:{value}" for key, value in settings.items())
                raise ConfigError(f"{words}: only a model has generation settings, not the {model.name}{hint}")
        require_extraction(scorer, data.name, data.spec, repeats=1)
    elif _scores_choices(how, data) and said:
        raise ConfigError.of(
            next(iter(said)),
            f"the task of {data.name!r} scores likelihoods of choices, and generates no text; remove it",
        )
    else:
        require_extraction(scorer, data.name, data.spec, how.generation.settings(data.spec).repeats)


def _require_direction(scorer: TextMetric | None, direction: str | None) -> None:
    if scorer is not None and direction is not None and scorer.direction != direction:
        raise ConfigError(
            f"{scorer.direction} values of {scorer.name!r} are better: use metric_"
            f"{'min' if scorer.direction == 'higher' else 'max'}"
        )


def _measurement(how: How, data: DataRef) -> tuple[type[Measurement[Any]], bool]:
    """Return the kind of measurement, and whether it reads rows; the kind of model may still change a perplexity's."""
    match how:
        case TextRequest():
            return (ChoicesByTask if _scores_choices(how, data) else GeneratedTexts), True
        case ChoiceRequest():
            has_one_target = data.spec.target is not None and data.spec.answer is None
            return (TargetLikelihoods if has_one_target else ChoiceLikelihoods), True
        case MaskedRequest():
            return MaskedLikelihoods, False
        case DivergenceRequest(estimator="exact"):
            return Divergences, False
        case DivergenceRequest() | SelfDivergenceRequest():
            kind = SampledDivergences if isinstance(how, DivergenceRequest) else SelfDivergences
            return kind, data.is_entry and data.spec.has_prompts
    return CausalLikelihoods, False


def _scores_choices(how: TextRequest, data: DataRef) -> bool:
    """Whether code of the dataset's task scores likelihoods of choices, and no text is written."""
    return is_task_metric(how.metric) and data.spec.answer is not None
