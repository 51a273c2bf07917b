"""Metrics of generated texts: one generation per model, prompts and settings, shared by every metric."""

from __future__ import annotations

__all__ = [
    "GeneratedTexts",
    "TextFunction",
    "identity_of_texts",
    "is_function",
    "score_function",
    "score_texts",
    "text_metric",
]

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

from pytest_lmgate import __version__
from pytest_lmgate.backends.base import Setting
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.data.corpora.prompts import Prompt
from pytest_lmgate.data.tokenization.tokens import TokenizerFacts
from pytest_lmgate.engine.generation import generate
from pytest_lmgate.errors import ConfigError, EngineError
from pytest_lmgate.evaluate.measurements.measurement import Bench, Measurement, addressed, digest_of, require
from pytest_lmgate.evaluate.sources.rows import DatasetRows
from pytest_lmgate.metrics import texts as metrics
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.table import METRICS
from pytest_lmgate.metrics.texts.inputs import checked_texts, cluster_numbers
from pytest_lmgate.metrics.texts.scripts import tokenizer_hint
from pytest_lmgate.spec.requests import TextRequest

# Raise the number whenever the code that generates may give another text.
_KIND = "texts/2"


@dataclass(frozen=True)
class TextFunction:
    """A system that is only a function from prompts to texts; its texts are not kept, since it has no content to hash.

    Attributes:
        name: For messages.
        function: Returns a text for each of all prompts. A prompt is a text, or for a chat a list of messages.
        asked: Texts that it has written, by the digest of the prompts; evaluations may share them.
    """

    name: str
    function: Callable[[list[Any]], Sequence[str]]
    asked: dict[str, list[str]] = field(default_factory=dict)


def is_function(system: object) -> bool:
    """Return whether a system is only a function from prompts to texts, and no model."""
    return callable(system) and not hasattr(system, "forward") and not hasattr(system, "tokenizer")


def text_metric(request: TextRequest, users: Mapping[str, metrics.TextMetric]) -> metrics.TextMetric:
    """Make the metric that a request names.

    Raises:
        ConfigError: There is none, or an option of it cannot be.
    """
    if request.metric in METRICS:
        return METRICS[request.metric].text_metric(dict(request.options))
    return metrics.found_metric(users, request.metric)


@dataclass(frozen=True)
class GeneratedTexts(Measurement[list[str]]):
    """The texts that a model writes: one generation for a model, prompts and settings, shared by every metric."""

    data: DatasetRows
    asked: TextRequest
    scorer: metrics.TextMetric

    def __post_init__(self) -> None:
        require(self.model, "generating texts", "generate", "causal", "encoder-decoder")
        plain, honours = GenerationSettings(), self.model.honours
        for key in get_args(Setting):
            if key not in honours and getattr(self.asked.generation, key) != getattr(plain, key):
                raise ConfigError.of(
                    key,
                    f"the engine of the model {self.model.name!r} does not honour it (it honours "
                    f"{', '.join(sorted(honours)) or 'none: it writes greedily'}); leave it out",
                )

    @property
    def fingerprint(self) -> Fingerprint:
        """Address of the texts, which do not depend on the metric."""
        prompts, generation = digest_of(self.data.task.prompts), self.asked.generation.signature
        writing = self.model.writing()
        return addressed(_KIND, self.model, **writing, prompts=prompts, generation=generation)

    @cached_property
    def identity(self) -> dict[str, str]:
        """The data, and a user's own metric."""
        return identity_of_texts(self.data, self.asked, self.scorer)

    def measure(self, bench: Bench) -> list[str]:
        """Generate a text for each prompt."""
        model = self.model
        return generate(
            bench.runner(model),
            self.data.task.prompts,
            self.asked.generation,
            bench.job(model.name, self.data.name, model.batch_size),
            context=model.context,
            has_encoder=model.kind == "encoder-decoder",
        )

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        """Count the tokens that all texts may have."""
        return len(self.data.task.prompts) * self.asked.generation.max_new_tokens

    def encode(self, statistics: list[str]) -> Entry:
        """Return what to store of the texts."""
        return Entry({}, {"texts": statistics})

    def decode(self, entry: Entry) -> list[str]:
        """Return the texts that were stored."""
        return [str(text) for text in entry.facts["texts"]]

    def score(self, statistics: list[str]) -> Score:
        """Score the texts by the metric asked for."""
        task, clusters = self.data.task, self.data.clusters
        found = score_texts(
            self.scorer, list(statistics), task.references, rows=task.rows, clusters=clusters, prompts=task.prompts
        )
        found.signature = found.signature.plus(*self.asked.generation.signature.fields, ("lmgate", __version__))
        return found


def score_function(
    function: TextFunction, rows: DatasetRows, request: TextRequest, metric: metrics.TextMetric
) -> Score:
    """Score the texts that a function writes.

    Raises:
        ConfigError: It is told how to generate.
        LmgateError: It gives something else than texts, or these cannot be scored.
    """
    if request.generation != GenerationSettings():
        raise ConfigError(
            f"{request.generation.signature}: only a model takes generation settings, not the {function.name}"
        )
    task, clusters = rows.task, rows.clusters
    texts = _called(function, task.prompts)
    score = score_texts(metric, texts, task.references, rows=task.rows, clusters=clusters, prompts=task.prompts)
    score.signature = score.signature.plus(("function", None), ("lmgate", __version__))
    return score.identified(**identity_of_texts(rows, request, metric))


def score_texts(
    metric: metrics.TextMetric,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]] | None,
    *,
    rows: Sequence[Mapping[str, Any]] | None = None,
    clusters: Sequence[Any] | None = None,
    prompts: Sequence[Prompt] = (),
) -> Score:
    """Score texts; the five worst rows are in ``details["worst"]``, and for BLEU what to know of its tokenizer.

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
    if prompts:
        worst = [replace(each, prompt=_shown(prompts[each.row])) for each in worst]
    score.details = {**score.details, "worst": tuple(worst)}
    if metric.name == "bleu" and "tok:13a" in metric.signature.split("|"):
        hint = tokenizer_hint(reference for of_row in texts.references for reference in of_row)
        score.details |= {"hint": f"BLEU's tokenizer 13a splits at spaces, and {hint}"} if hint else {}
    return score


def _shown(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(f"{role}: {content}" for role, content in prompt)


def _called(source: TextFunction, prompts: Sequence[Prompt]) -> list[str]:
    if (digest := digest_of(prompts)) in source.asked:
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


def identity_of_texts(rows: DatasetRows, request: TextRequest, metric: metrics.TextMetric) -> dict[str, str]:
    """Return what a comparison must share: the data, and a user's own metric, which may look at any column."""
    task, clusters = rows.task, rows.clusters
    parts: list[Any] = [task.prompts, task.references]
    if request.metric not in METRICS:
        columns = [dict(row) for row in task.rows]
        parts.append(json.dumps(columns, ensure_ascii=False, default=lambda cell: type(cell).__name__))
    if clusters is not None:
        parts.append(cluster_numbers(clusters, len(task.prompts)).tolist())
    # A version in a user's signature is the metric's own, which changes the number.
    own = {} if request.metric in METRICS else {"metric": metric.signature}
    return {"data": digest_of(parts), **own}
