"""Metrics of generated texts: one generation per model, prompts and settings, shared by every metric."""

from __future__ import annotations

__all__ = ["TextFunction", "evaluate_texts", "score_texts", "text_metric", "unsaved_ingredients"]

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_lmgate import __version__
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.config.generation import GenerationSettings
from pytest_lmgate.data.prompts import Prompt, TextTask
from pytest_lmgate.errors import ConfigError, EngineError
from pytest_lmgate.evaluate.measurements import Measurements, Recipe
from pytest_lmgate.evaluate.model_source import ModelSource
from pytest_lmgate.metrics import texts as metrics
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.metrics.texts.inputs import checked_texts, cluster_numbers
from pytest_lmgate.spec.requests import TextRequest

if TYPE_CHECKING:
    from pytest_lmgate.engine.generation import GenerationProgress

# Raise the number whenever the code that generates may give another text.
_KIND = "texts/1"


@dataclass(frozen=True)
class TextFunction:
    """A system that is only a function from prompts to texts; its texts are not kept, since it has no content to hash.

    Attributes:
        name: For messages.
        function: Given all prompts, returns a text for each. A prompt is a text, or for a chat a list of messages.
        asked: What it answered already, by the digest of the prompts, where evaluations are to share that.
    """

    name: str
    function: Callable[[list[Any]], Sequence[str]]
    asked: dict[str, list[str]] = field(default_factory=dict)


def text_metric(request: TextRequest, users: Mapping[str, metrics.TextMetric]) -> metrics.TextMetric:
    """Make the metric that a request names.

    Raises:
        ConfigError: There is none, or an option of it cannot be.
    """
    if request.metric in METRICS:
        return METRICS[request.metric].text_metric(dict(request.options))
    metric = metrics.found_metric(users, request.metric)
    if request.options:
        raise ConfigError(f"the metric {metric.name!r} takes no options, got {dict(request.options)!r}")
    return metric


def evaluate_texts(
    measurements: Measurements,
    source: ModelSource | TextFunction,
    task: TextTask,
    request: TextRequest,
    metric: metrics.TextMetric,
    *,
    clusters: Sequence[Any] | None = None,
    report: Callable[[GenerationProgress], None] = lambda _: None,
) -> tuple[Score, str, bool]:
    """Generate, or look the texts up, and score them.

    Args:
        measurements: Of the session.
        source: What writes.
        task: Prompts and references.
        request: How to generate.
        metric: What to score by.
        clusters: Label of each row's cluster.
        report: Told how far the generation is.

    Returns:
        The score, the measurement's address (empty for a function), and whether the texts were there.

    Raises:
        ConfigError: A function is told how to generate.
        LmgateError: They cannot be generated or scored.
    """
    settings, identity = request.generation, _identity(task, request, clusters, metric)
    measurements.expect(identity)
    if isinstance(source, TextFunction):
        if settings != GenerationSettings():
            raise ConfigError(
                f"{settings.signature}: {source.name} writes as it likes; settings of generation are for models"
            )
        score = score_texts(metric, _called(source, task.prompts), task.references, rows=task.rows, clusters=clusters)
        score.signature = score.signature.plus(("function", None), ("lmgate", __version__))
        return score.identified(**identity), "", False
    ingredients = {**source.ingredients, **unsaved_ingredients(source)}
    fingerprint = Fingerprint.of(
        _KIND, {**ingredients, "prompts": _digest(task.prompts), "generation": settings.signature}
    )

    def measure(partial: Entry | None, keep: Callable[[Entry], None]) -> list[str]:
        return _generate(measurements, source, task, settings, partial, keep, report)

    recipe = Recipe(f"{source.name} on {task.name}", (source,), measure, _encode, _decode)
    predictions, cached = measurements.once(fingerprint, recipe)
    score = score_texts(metric, predictions, task.references, rows=task.rows, clusters=clusters)
    score.signature = score.signature.plus(*settings.signature.fields, ("lmgate", __version__))
    return score.identified(**identity), fingerprint.address, cached


def score_texts(
    metric: metrics.TextMetric,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]] | None,
    *,
    rows: Sequence[Mapping[str, Any]] | None = None,
    clusters: Sequence[Any] | None = None,
) -> Score:
    """Score texts; the five worst rows are in ``details["worst"]``.

    Raises:
        MetricInputError: They cannot be scored.
    """
    # Read once: what is given may be an iterator.
    texts = checked_texts(predictions, references, rows, needs_references=metric.needs_references)
    statistics = metrics.row_statistics(metric, *texts)
    score = metrics.text_score(
        metric, texts.predictions, texts.references, rows=texts.rows, clusters=clusters, statistics=statistics
    )
    worst = metrics.worst_rows(metric, texts.predictions, texts.references, rows=texts.rows, statistics=statistics)
    score.details = {**score.details, "worst": tuple(worst)}
    return score


def unsaved_ingredients(source: ModelSource) -> dict[str, str]:
    """Return what else changes a text: a checkpoint has it in files, hashed already, a model in memory has it on it."""
    if not source.in_memory:
        return {}
    from pytest_lmgate.engine.decoding import decoding_ids

    loaded = source.load()
    template = getattr(loaded.tokenizer, "chat_template", None)
    ids = json.dumps(decoding_ids(loaded), sort_keys=True, default=str)
    return {"decoding_ids": ids, "chat_template": json.dumps(template, sort_keys=True)}


def _generate(
    measurements: Measurements,
    source: ModelSource,
    task: TextTask,
    settings: GenerationSettings,
    partial: Entry | None,
    keep: Callable[[Entry], None],
    report: Callable[[GenerationProgress], None],
) -> list[str]:
    from pytest_lmgate.engine.generation import generate_texts

    known = {} if partial is None else {int(row): text for row, text in partial.facts["texts"].items()}
    return generate_texts(
        measurements.model(source),
        task.prompts,
        settings,
        dataset=task.name,
        context=source.architecture.context,
        batch_size=source.batch_size,
        known=known,
        save=lambda texts: keep(Entry({}, {"texts": {str(row): text for row, text in texts.items()}})),
        report=report,
    )


def _called(source: TextFunction, prompts: Sequence[Prompt]) -> list[str]:
    if (digest := _digest(prompts)) in source.asked:
        return source.asked[digest]
    plain = [
        prompt if isinstance(prompt, str) else [{"role": role, "content": content} for role, content in prompt]
        for prompt in prompts
    ]
    texts = source.function(plain)
    # A mapping would be read as its keys, a set in any order.
    if isinstance(texts, str | Mapping | Set) or not isinstance(texts, Iterable):
        raise EngineError(f"{source.name}: expected a list of texts, one per prompt, got {type(texts).__name__}")
    listed = list(texts)
    for row, text in enumerate(listed):
        if not isinstance(text, str):
            raise EngineError(f"{source.name}: row {row}: expected a text, got {type(text).__name__} {text!r:.60}")
    if len(listed) != len(prompts):
        raise EngineError(f"{source.name}: expected a text for each of {len(prompts)} prompts, got {len(listed)}")
    source.asked[digest] = listed
    return listed


def _data(task: TextTask, request: TextRequest, clusters: Sequence[Any] | None) -> str:
    """Digest of all that a comparison must share: a user's metric may look at any column."""
    parts: list[Any] = [task.prompts, task.references]
    if request.metric not in METRICS:
        columns = [dict(row) for row in task.rows]
        parts.append(json.dumps(columns, ensure_ascii=False, default=lambda cell: type(cell).__name__))
    if clusters is not None:
        parts.append(cluster_numbers(clusters, len(task.prompts)).tolist())
    return _digest(parts)


def _identity(
    task: TextTask, request: TextRequest, clusters: Sequence[Any] | None, metric: metrics.TextMetric
) -> dict[str, str]:
    """What a comparison must share. A version in a user's signature is the metric's own, which changes the number."""
    own = {} if request.metric in METRICS else {"metric": metric.signature}
    return {"data": _data(task, request, clusters), **own}


def _digest(texts: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()


def _encode(texts: list[str]) -> Entry:
    return Entry({}, {"texts": texts})


def _decode(entry: Entry) -> list[str]:
    return [str(text) for text in entry.facts["texts"]]
