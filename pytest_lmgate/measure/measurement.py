"""What is measured: `Measurement`, one kind of statistics of models on data, and what its kinds share.

The first kind is here too: likelihoods of a text's windows, of which perplexity is made.
"""

from __future__ import annotations

import abc
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.cache.store import Fingerprint, StoredResult
from pytest_lmgate.data.corpus import Corpus, TextSizes, looks_like_documents
from pytest_lmgate.engines.base import Kind, Model, Offer, Runner
from pytest_lmgate.engines.devices import device_class
from pytest_lmgate.errors import ConfigError, DataError, ModelError
from pytest_lmgate.measure.loop import Job, score_requests
from pytest_lmgate.metrics.likelihoods import LikelihoodStatistics, TargetLayout
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.entries import DatasetSpec
from pytest_lmgate.settings.gate_options import DEFAULT_PROTOCOL, Signature, SignatureField, Windowing, WindowProtocol
from pytest_lmgate.settings.metrics import METRICS, Statistics
from pytest_lmgate.version import __version__
from pytest_lmgate.windows.protocols import WindowPlan, plan_windows, tokenize
from pytest_lmgate.windows.requests import lost_characters, row_targets, scored_sizes, window_requests
from pytest_lmgate.windows.tokens import NO_CHATS, PIN, Chats, Streams, TokenizerFacts

T = TypeVar("T")
S = TypeVar("S", bound=TargetLayout)
# Raise the number whenever the code that measures may give another result.
_KIND = "token-nll/8"
_FACTS = ("running_text", "targets")  # of the statistics of targets: the fields that are no arrays
# Only a text of rows has the first, and only some tokenizers give the others.
_OPTIONAL = ("row_targets", "scored", "lost")
# What to measure instead, if the metric is for another kind of model.
_OF_TEXT: Mapping[Kind, Statistics] = {"causal": "likelihoods", "masked": "pseudo-likelihoods"}
_LACKING: Mapping[Offer, str] = {
    "score": "gives no log-likelihoods of tokens",
    "generate": "does not generate texts",
    "greedy": "does not say whether a token is the most likely one",
    "compare": (
        "does not give whole distributions over the vocabulary; kl with estimator='sampled' needs none, see "
        "docs/divergence.md"
    ),
    "sample": "does not give the tokens that it draws with their log-probabilities",
}


@dataclass(frozen=True)
class MeasurementContext:
    """What a measurement is made with."""

    folder: Path  # the cache's
    runner: Callable[[Model], Runner]
    fit_together: Callable[[Model, Model], bool]  # whether another model fits in memory with one that is loaded
    job: Callable[[str, str, int | str], Job]  # from the names of model and dataset, and the batch size
    measured: Callable[[Measurement[Any]], Any]  # what another measurement gives, which this one rests on


@dataclass(frozen=True)
class Measurement(abc.ABC, Generic[T]):
    """One kind of statistics of one or two models on data as the user `asked`, and its scores."""

    metric: str
    model: Model
    data: Any
    asked: Any
    generates: ClassVar[bool] = False  # whether it measures generated texts
    # What the engine of each model has to offer, and the kinds of model for which the metric is defined.
    offers: ClassVar[tuple[Offer, ...]] = ("score",)
    kinds: ClassVar[tuple[Kind, ...]] = ("causal",)

    def __post_init__(self) -> None:
        for model in self.models:
            for offer in self.offers:
                require(model, self.metric, offer, *self.kinds)

    @classmethod
    def require_arguments(cls, metric: str, dataset: str, spec: DatasetSpec, asked: Any) -> None:
        """Refuse what cannot be measured so on this dataset, whatever the model; at collection, see `binding`."""
        del metric, dataset, spec, asked

    @property
    def models(self) -> tuple[Model, ...]:
        return (self.model,)

    @property
    def words(self) -> str:
        return f"{' against '.join(model.name for model in self.models)} on {self.data.name}"

    @cached_property
    @abc.abstractmethod
    def fingerprint(self) -> Fingerprint:
        """The address: everything that can change the statistics."""

    @property
    def identity(self) -> dict[str, str]:
        """Digests of the sample, known before a model runs; scores of one identity can be compared."""
        return {"data": self.data.digest}

    @property
    def chats(self) -> Chats:
        """The chats among the data's prompts as the model reads them."""
        return NO_CHATS

    @property
    def signature(self) -> Signature | None:
        """How it is measured; None if only the score knows."""
        return None

    @property
    def named_settings(self) -> list[SignatureField]:
        """What the signature names of the models' engines; sides of a comparison may differ in it."""
        found: dict[str, list[str]] = {}
        for model in self.models:
            for key, value in model.named(self.generates).items():
                found.setdefault(key, []).append(value)
        return [(key, "/".join(dict.fromkeys(values))) for key, values in found.items()]

    @property
    def shared(self) -> dict[str, str]:
        """What a comparison must share, as far as known before a model runs."""
        identity, signature = self.identity, self.signature
        return identity if signature is None else {**identity, "protocol": signature.compared}

    @abc.abstractmethod
    def measure(self, context: MeasurementContext) -> T:
        """Run the models. If it raises, only partial results are kept."""

    @abc.abstractmethod
    def tokens(self, tokenizer: TokenizerFacts) -> int:
        """Count the tokens that the models read, or may generate, without a model."""

    def clusters(self, tokenizer: TokenizerFacts) -> tuple[int, str]:
        """Return the number of clusters between which noise is judged, and what they are, without a model."""
        labels = self.data.clusters
        return len(self.data.rows) if labels is None else len(set(map(repr, labels))), "rows"

    @abc.abstractmethod
    def encode(self, statistics: T) -> StoredResult:
        """Return what to store of the statistics."""

    @abc.abstractmethod
    def decode(self, entry: StoredResult) -> T:
        """Decode stored statistics; KeyError, TypeError, ValueError or LmgateError if they are of another kind."""

    @property
    def remarks(self) -> list[str]:
        """What the summary should say of the models and the data."""
        found = []
        if hidden := self.data.hidden:
            found.append(
                f"{self.data.name}: its texts have {hidden}, which the model reads; if they are of Windows alone, "
                "remove them with dos2unix"
            )
        if self.chats.dated is not None:
            found.append(
                f"model {self.chats.model!r}: its chat template writes the date (strftime_now) into {self.data.name}, "
                f"which is measured again when that changes; to pin it, {PIN}"
            )
        return found

    def doubts(self, statistics: T) -> list[str]:
        """Say what is odd about the statistics, in sentences for the summary."""
        return []

    @abc.abstractmethod
    def score(self, statistics: T) -> Score:
        """Return the score that the statistics make; `Evaluator` calls `scored`."""

    def scored(self, statistics: T) -> Score:
        """Return the score with all that its measurement knows of it, but for the names."""
        named, identity = self.named_settings, self.identity
        content, weights = identity_of(self.model), weights_of(self.model)
        score = self.score(statistics)
        score.device, score.content, score.weights = device_class(self.model.device), content, weights
        score = score.identified(**identity)
        score.signature = score.signature.plus(*named)
        return score

    def metric_score(self, statistics: object, **how: Any) -> Score:
        """Return what the metric makes of statistics; `how` are the arguments of the function that its row names."""
        score: Score = METRICS[self.metric].scorer()(statistics, signature=self.signature, **how)
        return score


def require(model: Model, metric: str, offer: Offer, *kinds: Kind) -> None:
    """Refuse a model for which a metric is undefined, or whose engine does not support it."""
    if model.kind not in kinds:
        if model.kind == "causal" and model.architecture == "unknown":
            raise ModelError(
                f"{metric} is undefined for {model.name!r}, assumed to be causal because its config has no "
                f"architectures: expected a {' or '.join(kinds)} model; if it is, add its class to config.json, "
                'as in "architectures": ["BertForMaskedLM"]'
            )
        named = f" (architecture {model.architecture})" if model.architecture else ""
        raise ModelError(
            f"{metric} is undefined for the {model.kind} model {model.name!r}{named}: "
            f"expected a {' or '.join(kinds)} model{_instead(metric, model.kind)}"
        )
    if offer not in model.offers:
        raise ModelError(f"{metric} is not possible with the model {model.name!r}: its engine {_LACKING[offer]}")


def addressed(kind: str, model: Model, **others: str) -> Fingerprint:
    """Return the address of a measurement of one model: the model's ingredients and others."""
    return Fingerprint.of(kind, {**model.ingredients, **others})


def template_variables(model: Model, spec: DatasetSpec) -> dict[str, Any]:
    """Return the variables of the chat template: the dataset's, before which go the model's; none without a chat."""
    return {**spec.chat_template_kwargs, **model.chat_template_kwargs} if spec.is_chat else {}


def template_address(model: Model, spec: DatasetSpec, chats: Chats) -> dict[str, str]:
    """Return what chats add to a measurement's address: what the model reads, and what a server's template gets."""
    if not spec.is_chat:
        return {}
    variables = json.dumps(template_variables(model, spec), sort_keys=True, default=str)
    return {"chats": digest_of([*chats.texts.values()]), "chat_template_kwargs": variables}


def identity_of(model: Model) -> str:
    """Return a model's digest, the same wherever it runs; if its content is unknown, one for this session."""
    return Fingerprint.of("model", model.runtime if model.content is None else model.content).address


# Files that come with weights, and change without them when a checkpoint is saved again.
_BESIDE_WEIGHTS = re.compile(r"(model|onnx|tokenizer)/.*\.(json|txt|jinja|model|tiktoken)|tokenizer|memory\.tokenizer")


def weights_of(model: Model) -> str:
    """Return the digest of a model's weights, and of how and where they run; empty if its content is unknown."""
    if model.content is None:
        return ""
    runtime = {name: value for name, value in model.runtime.items() if name != "session"}
    weights = {name: value for name, value in model.content.items() if not _BESIDE_WEIGHTS.fullmatch(name)}
    return Fingerprint.of("weights", {**weights, **runtime}).address


def same_numbers(model: str, other: str) -> str:
    """Return what to say of two models with other weights that give every token the same likelihood."""
    return (
        f"{model!r} and {other} gave every token exactly the same likelihood: either the adapter or quantization of "
        "one does nothing, or both names lead to one model; check both"
    )


def digest_of(content: Any) -> str:
    return digest_of_text(json.dumps(content, ensure_ascii=False))


def digest_of_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _instead(metric: str, kind: Kind) -> str:
    """Name the metric to use for this kind of model, if the text that was given has one."""
    row = METRICS.get(metric)
    if row is None or row.measures not in _OF_TEXT.values():
        return ""
    other = next((each for each in METRICS.values() if each.measures == _OF_TEXT.get(kind)), None)
    return f"; use {other.markers[0]}, the {other.title}" if other else ""


class TargetMeasurement(Measurement[S]):
    """A measurement of targets, stored field by field: arrays as arrays, the rest as facts."""

    kept: ClassVar[type[Any]] = LikelihoodStatistics

    def encode(self, statistics: S) -> StoredResult:
        held = {each.name: getattr(statistics, each.name) for each in fields(statistics)}
        arrays = {name: value for name, value in held.items() if isinstance(value, np.ndarray)}
        return StoredResult(arrays, {name: held[name] for name in _FACTS})

    def decode(self, entry: StoredResult) -> S:
        names = [each.name for each in fields(self.kept) if each.name not in _FACTS]
        arrays = {name: entry.arrays[name] for name in names if name in entry.arrays or name not in _OPTIONAL}
        facts = {"running_text": bool(entry.facts["running_text"]), "targets": str(entry.facts["targets"])}
        statistics: S = self.kept(**arrays, **facts)
        return statistics


def arrays_of_sizes(sizes: Sequence[TextSizes]) -> dict[str, Any]:
    """Return the words, code points and bytes of each text."""
    names = [each.name for each in fields(TextSizes)]
    return {name: np.array([getattr(size, name) for size in sizes], dtype=np.int64) for name in names}


def digest_of_targets(texts: Iterable[Sequence[int] | Ints]) -> str:
    """Return the SHA-256 of token ids, text by text, which identifies the targets."""
    digest = hashlib.sha256()
    for ids in texts:
        digest.update(b"%d\n" % len(ids))
        digest.update(np.asarray(ids, dtype="<i8").tobytes())
    return digest.hexdigest()


def planned_windows(
    corpus: Corpus, windowing: Windowing, tokenizer: TokenizerFacts, model: str
) -> tuple[Streams, WindowPlan]:
    """Tokenize a corpus and plan its windows; DataError if no target would be scored, or white space only."""
    streams = tokenize(corpus, windowing, tokenizer, model=model)
    plan = plan_windows(windowing, streams.lengths, adds_bos=tokenizer.adds_bos)
    windows = zip(plan.document, plan.first, plan.end, strict=True)
    scored = (np.unique(streams.ids[document][first:end]) for document, first, end in windows)
    try:
        is_blank = not any(tokenizer.decode(token).strip() for ids in scored for token in ids.tolist())
    except ModelError:  # a tokenizer of the user's that does not decode; texts without a letter were refused before
        is_blank = False
    if is_blank:
        raise DataError(
            f"dataset {corpus.name!r}: no target to score under {windowing.signature} that is not white space: "
            "expected at least one row of two tokens or more"
        )
    return streams, plan


class WindowMeasurement(TargetMeasurement[S]):
    """A measurement of the targets of a text's windows, which fit all of its models; the last cuts the text."""

    data: Corpus

    @property
    @abc.abstractmethod
    def protocol(self) -> WindowProtocol:
        """The windows that the user asks for."""

    @cached_property
    def windowing(self) -> Windowing:
        """The windows."""
        shorter = min(self.models, key=lambda each: each.context or math.inf)
        return self.protocol.windowing(shorter.context, model=shorter.name)

    @property
    def remarks(self) -> list[str]:
        """Say also that rows were joined, if no `join` was set and they look like separate documents."""
        data, protocol = self.data, self.protocol
        if protocol.name != DEFAULT_PROTOCOL or protocol.stride is not None or not looks_like_documents(data):
            return super().remarks
        remark = (
            f'{data.name}: {len(data.rows):,} rows were read as one text; protocol="document" reads them one by one'
        )
        if data.has_entry:
            remark += r'; if they are one text, set join: "\n\n" in the entry of the dataset'
        return [*super().remarks, remark]

    def planned(self, tokenizer: TokenizerFacts) -> tuple[Streams, WindowPlan]:
        """Return the text's tokens, and its windows."""
        return planned_windows(self.data, self.windowing, tokenizer, self.models[-1].name)

    def layout(self, streams: Streams, plan: WindowPlan) -> dict[str, Any]:
        """Return the fields of a `TargetLayout`; a text without rows has no targets of rows."""
        by_document, rows = self.windowing.rules.by_document, None
        if not self.data.is_one_text and by_document:
            rows = np.bincount(plan.document, weights=plan.targets).astype(np.int64)
        elif not self.data.is_one_text:
            rows = row_targets(plan, streams.rows)
        return {
            "window_targets": plan.targets,
            "window_document": plan.document,
            "running_text": not by_document,
            "row_targets": rows,
            "targets": digest_of_targets(streams.ids),
        }

    def clusters(self, tokenizer: TokenizerFacts) -> tuple[int, str]:
        return TargetLayout(**self.layout(*self.planned(tokenizer))).clusters

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        return len(self.models) * window_requests(*self.planned(tokenizer), self.data.name).tokens


@dataclass(frozen=True)
class CausalLikelihoods(WindowMeasurement[LikelihoodStatistics]):
    """NLLs of a text's tokens under a causal model."""

    data: Corpus
    asked: WindowProtocol

    @classmethod
    def require_arguments(cls, metric: str, dataset: str, spec: DatasetSpec, asked: WindowProtocol) -> None:
        if spec.tokens is not None and asked.unit != "token":
            raise ConfigError(
                f"dataset {dataset!r}: tokens: expected unit='token', got {asked.unit!r}, which compares models with "
                "different tokenizers: these would read different texts; shorten the file"
            )
        if spec.counted and asked.unit != "token" and not asked.rules.by_document:
            raise ConfigError(
                f"dataset {dataset!r}: counted: expected a protocol that reads row by row, document or lm-eval, got "
                f"{asked.name!r}"
            )

    @property
    def protocol(self) -> WindowProtocol:
        return self.asked

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return addressed(_KIND, self.model, data=self.data.digest, protocol=self.windowing.signature)

    def measure(self, context: MeasurementContext) -> LikelihoodStatistics:
        runner = context.runner(self.model)
        job = context.job(self.model.name, self.data.name, self.model.batch_size)
        streams, plan = self.planned(runner.tokenizer)
        scored = scored_sizes(streams, plan)
        self._require_sizes(scored)
        facts: dict[str, Any] = {**arrays_of_sizes(streams.sizes), **self.layout(streams, plan), "scored": scored}
        facts["lost"] = lost_characters(streams, runner.tokenizer)
        found = score_requests(runner, window_requests(streams, plan, self.data.name), job)
        return LikelihoodStatistics(nll=found.nll if found.is_double else found.nll.astype(np.float32), **facts)

    def score(self, statistics: LikelihoodStatistics) -> Score:
        self._require_sizes(statistics.scored)
        return self.metric_score(
            statistics,
            unit=self.asked.unit,
            average=self._average,
            iid=self.windowing.rules.iid,
            metric=self.metric,
            model=self.model.name,
        )

    def _require_sizes(self, scored: Floats | None) -> None:
        if scored is None and self.asked.unit != "token":
            raise ModelError(
                f"model {self.model.name!r}: unit={self.asked.unit!r} counts the text that is scored, but its "
                "tokenizer does not say which characters its tokens stand for; use protocol='lm-eval', which scores "
                "all of a text, or a fast tokenizer (tokenizer.json)"
            )

    @property
    def _average(self) -> str:
        return self.asked.average or self.windowing.average

    @property
    def signature(self) -> Signature:
        text: list[SignatureField] = []
        if self.asked.unit != "token" and not self.windowing.rules.whole_text:
            text = [("text", "scored")]  # the unit once counted the whole text
        own = ("average", self._average), ("unit", self.asked.unit), *text, ("version", __version__)
        return self.windowing.signature.plus(*own)
