"""Likelihoods of masked tokens, of targets given their sources, of choices; `measurement` has those of windows."""

from __future__ import annotations

import abc
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Ints
from pytest_lmgate.cache.store import Fingerprint, StoredResult
from pytest_lmgate.data.corpus import Corpus, TextSizes
from pytest_lmgate.errors import ConfigError, DataError, ProtocolError
from pytest_lmgate.measure.loop import score_requests
from pytest_lmgate.measure.measurement import (
    Measurement,
    MeasurementContext,
    TargetMeasurement,
    addressed,
    arrays_of_sizes,
    digest_of_targets,
    digest_of_text,
    require,
    template_address,
)
from pytest_lmgate.measure.rows import DatasetRows
from pytest_lmgate.metrics.likelihoods import (
    ChoiceStatistics,
    ContinuationStatistics,
    LikelihoodStatistics,
    TargetLayout,
    lost_words,
    words_of_share,
)
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.texts import TextMetric, text_score
from pytest_lmgate.settings.entries import DatasetSpec
from pytest_lmgate.settings.gate_options import (
    ChoiceRequest,
    MaskedRequest,
    Signature,
    SignatureField,
    WindowProtocol,
    tokens_at_once,
)
from pytest_lmgate.version import __version__
from pytest_lmgate.windows.choices import plan_choices
from pytest_lmgate.windows.protocols import WindowPlan, beginning
from pytest_lmgate.windows.requests import (
    Pair,
    Piece,
    cut_pieces,
    encode_pairs,
    lost_characters,
    masked_requests,
    pair_requests,
    window_requests,
)
from pytest_lmgate.windows.tokens import Chats, Streams, TokenizerFacts

# Raise a number whenever the code that measures may give another result.
_MASKED, _CONDITIONAL = "pseudo-nll/6", "conditional-nll/5"
_CHOICES, _TARGETS = "choices/6", "targets/3"


@dataclass(frozen=True)
class MaskedLikelihoods(TargetMeasurement[LikelihoodStatistics]):
    """NLLs of each token given all others of its row, under a masked model."""

    data: Corpus
    asked: MaskedRequest
    kinds = ("masked",)

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return addressed(_MASKED, self.model, data=self.data.digest, protocol=f"max_length:{self.max_length}")

    def measure(self, context: MeasurementContext) -> LikelihoodStatistics:
        runner, name = context.runner(self.model), self.model.name
        texts, pieces = self.pieces(runner.tokenizer)
        job = context.job(name, self.data.name, self.model.batch_size)
        found = score_requests(runner, masked_requests(pieces, runner.tokenizer, self.data.name), job)
        own = [np.array(runner.tokenizer.encode(text, False), dtype=np.int64) for text in texts]
        lost = lost_characters(Streams(own, texts=[[text] for text in texts]), runner.tokenizer, alike=str.casefold)
        sizes = arrays_of_sizes(list(map(TextSizes.of, texts)))
        return LikelihoodStatistics(nll=found.nll, lost=lost, **{**sizes, **self._layout(pieces)})

    def _layout(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        targets = np.array([len(piece.targets) for piece in pieces])
        documents = np.array([piece.document for piece in pieces])
        return {
            "window_targets": targets,
            "window_document": documents,
            "running_text": self.data.is_one_text,
            "row_targets": None if self.data.is_one_text else np.bincount(documents, weights=targets).astype(np.int64),
            "targets": digest_of_targets([piece.ids for piece in pieces]),
        }

    def clusters(self, tokenizer: TokenizerFacts) -> tuple[int, str]:
        return TargetLayout(**self._layout(self.pieces(tokenizer)[1])).clusters

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        return masked_requests(self.pieces(tokenizer)[1], tokenizer, self.data.name).tokens

    def score(self, statistics: LikelihoodStatistics) -> Score:
        return self.metric_score(statistics, metric=self.metric, model=self.model.name)

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens of a chunk, with special ones; None for no limit."""
        return tokens_at_once(self.asked, self.model.context, self.model.name)

    @property
    def signature(self) -> Signature:
        return Signature(
            [("masked", None), ("max_length", str(self.max_length)), ("unit", "token"), ("version", __version__)]
        )

    def pieces(self, tokenizer: TokenizerFacts) -> tuple[list[str], list[Piece]]:
        """Return the rows that are not blank, and what the model reads of them."""
        texts = [row for row in beginning(self.data, tokenizer).rows if row.strip()]
        return texts, cut_pieces(texts, tokenizer, self.max_length, model=self.model.name, dataset=self.data.name)


@dataclass(frozen=True)
class ConditionalLikelihoods(TargetMeasurement[LikelihoodStatistics]):
    """NLLs of the tokens of each target, its EOS included, given its source, under an encoder-decoder model.

    The words, bytes and characters that a unit counts are those of the targets.
    """

    data: DatasetRows
    asked: WindowProtocol
    kinds = ("encoder-decoder",)

    def __post_init__(self) -> None:
        super().__post_init__()
        plain, words = WindowProtocol(unit=self.asked.unit), {"name": "protocol"}
        given = [key for key in WindowProtocol.__struct_fields__ if getattr(self.asked, key) != getattr(plain, key)]
        if given:
            raise ProtocolError(
                f"{', '.join(words.get(key, key) for key in given)}: the encoder-decoder model {self.model.name!r} "
                "reads each source and target whole; its conditional perplexity takes unit= only"
            )

    @cached_property
    def fingerprint(self) -> Fingerprint:
        how = {**self.model.writing(), **template_address(self.model, self.data.spec, self.chats), **self._truncated}
        return addressed(_CONDITIONAL, self.model, **how, pairs=self.identity["data"])

    @cached_property
    def chats(self) -> Chats:
        return self.data.chats(self.model, self.data.task.prompts)

    @cached_property
    def identity(self) -> dict[str, str]:
        return {"data": self.data.pairs_digest}

    @property
    def signature(self) -> Signature:
        return Signature(
            [
                ("conditional", None),
                ("target", "first reference"),
                *self._truncated.items(),
                ("unit", self.asked.unit),
                ("version", __version__),
            ]
        )

    @property
    def _truncated(self) -> dict[str, str]:
        """The dataset's key, where it cuts sources that do not fit."""
        return {"truncate": self.data.spec.truncate} if self.data.spec.truncate else {}

    def measure(self, context: MeasurementContext) -> LikelihoodStatistics:
        runner, model, name = context.runner(self.model), self.model, self.data.name
        pairs = self._pairs(runner.tokenizer)
        found = score_requests(runner, pair_requests(pairs, name), context.job(model.name, name, model.batch_size))
        lengths, texts = np.array([len(pair.target) for pair in pairs]), self.data.targets
        sizes = arrays_of_sizes(list(map(TextSizes.of, texts)))
        streams = Streams([pair.target for pair in pairs], texts=[[text] for text in texts])
        return LikelihoodStatistics(
            nll=found.nll,
            window_targets=lengths,
            window_document=np.arange(len(pairs)),
            **sizes,
            scored=np.stack(list(sizes.values()), axis=1).astype(np.float64),
            lost=lost_characters(streams, runner.tokenizer),
            running_text=False,
            row_targets=lengths,
            targets=digest_of_targets([pair.target for pair in pairs]),
        )

    def score(self, statistics: LikelihoodStatistics) -> Score:
        return self.metric_score(statistics, unit=self.asked.unit, metric=self.metric, model=self.model.name)

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        return pair_requests(self._pairs(tokenizer), self.data.name).tokens

    def _pairs(self, tokenizer: TokenizerFacts) -> list[Pair]:
        if not any(text.strip() for text in self.data.targets):
            raise DataError(f"dataset {self.data.name!r}: expected references with text, got none: all are blank")
        return encode_pairs(
            tokenizer,
            list(map(self.chats.read, self.data.task.prompts)),
            self.data.targets,
            model=self.model.name,
            dataset=self.data.name,
            context=self.model.context,
            cut=bool(self._truncated),
        )


@dataclass(frozen=True)
class _AfterQuestions(Measurement[ContinuationStatistics]):
    """Log-likelihoods after a question under a causal model, row after row."""

    data: DatasetRows
    asked: ChoiceRequest

    def _address(self, kind: str) -> Fingerprint:
        how = {"delimiter": self.data.spec.between, "max_length": str(self._max_length), **self._truncated}
        how |= template_address(self.model, self.data.spec, self.chats)
        return addressed(kind, self.model, questions=digest_of_text(self.data.questions_text), **how)

    @cached_property
    def chats(self) -> Chats:
        return self.data.chats(self.model, self.data.question_prompts)

    @cached_property
    def identity(self) -> dict[str, str]:
        answers = [each.right if len(each.right) > 1 else each.right[0] for each in self.data.questions]
        return {"data": digest_of_text(json.dumps([self.data.questions_text, answers, *self.data.parts]))}

    @property
    def signature(self) -> Signature:
        spec, shown = self.data.spec, len(self.data.examples)
        return Signature(
            [
                self._scored,
                ("max_length", str(self._max_length)),
                *self._truncated.items(),
                *([("examples", str(shown))] if shown else []),
                *([("average_by", spec.average_by)] if spec.average_by else []),
                *([("chat", None)] if spec.is_chat else []),
                ("delimiter", repr(spec.between)),
                ("version", __version__),
            ]
        )

    @property
    @abc.abstractmethod
    def _scored(self) -> SignatureField:
        """What is made of the likelihoods."""

    @property
    def _greedy(self) -> bool:
        """Whether to tell of each continuation if it is the greedy text."""
        return False

    def measure(self, context: MeasurementContext) -> ContinuationStatistics:
        runner, name = context.runner(self.model), self.data.name
        streams, plan = self._plan(runner.tokenizer)
        lost = self._lost(streams.ids, runner.tokenizer)
        job = context.job(self.model.name, name, self.model.batch_size)
        found = score_requests(runner, window_requests(streams, plan, name, greedy=self._greedy), job)
        nll = found.nll if found.is_double else found.nll.astype(np.float32)
        begins = np.concatenate([[0], np.cumsum(plan.targets)[:-1]])
        is_greedy = None if found.greedy is None else np.logical_and.reduceat(found.greedy, begins)
        log_likelihood = -np.add.reduceat(nll.astype(np.float64), begins)
        return ContinuationStatistics(log_likelihood, is_greedy, lost)

    def _lost(self, ids: Sequence[Ints], tokenizer: TokenizerFacts) -> str:
        """Return the share of the characters that the tokens do not give back, with a digest of the tokens."""
        pairs = [pair for each in self.data.questions for pair in each.pairs]
        texts = [f"{self.chats.read(prompt)}{self.data.spec.between}{text}" for prompt, text in pairs]
        own = [each[int(each[0] == tokenizer.bos) :] for each in ids]  # without the token before every text
        lost = lost_characters(Streams(own, texts=[[text] for text in texts]), tokenizer)
        share = "" if lost is None else words_of_share(float(lost.sum() / sum(map(len, texts))))
        return share and f"{share} (tokens {digest_of_targets(ids)[:16]})"

    def encode(self, statistics: ContinuationStatistics) -> StoredResult:
        arrays: dict[str, NDArray[Any]] = {"log_likelihood": statistics.log_likelihood}
        if statistics.greedy is not None:
            arrays["greedy"] = statistics.greedy.astype(np.float32)
        return StoredResult(arrays, {"lost": statistics.lost})

    def decode(self, entry: StoredResult) -> ContinuationStatistics:
        expected = sum(len(each.pairs) for each in self.data.questions)
        for array in entry.arrays.values():
            if array.shape != (expected,):
                raise ValueError(f"expected {expected:,} numbers, got an array of shape {list(array.shape)}")
        greedy = entry.arrays["greedy"] == 1 if self._greedy else None
        return ContinuationStatistics(entry.arrays["log_likelihood"], greedy, str(entry.facts["lost"]))

    def doubts(self, statistics: ContinuationStatistics) -> list[str]:
        if not statistics.lost:
            return []
        return [f"{self.data.name}: {lost_words(self.model.name, statistics.lost.partition(' ')[0])}"]

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        return window_requests(*self._plan(tokenizer), self.data.name).tokens

    def _plan(self, tokenizer: TokenizerFacts) -> tuple[Streams, WindowPlan]:
        return plan_choices(
            self.data.questions,
            tokenizer,
            self.chats,
            delimiter=self.data.spec.between,
            max_length=self._max_length,
            name=self.data.name,
            model=self.model.name,
            cut=bool(self._truncated),
        )

    @property
    def _truncated(self) -> dict[str, str]:
        """The gate's or the dataset's key, where it cuts questions that do not fit."""
        given = self.asked.truncate or self.data.spec.truncate
        return {"truncate": given} if given else {}

    @property
    def _max_length(self) -> int | None:
        return tokens_at_once(self.asked, self.model.context, self.model.name)


@dataclass(frozen=True)
class ChoiceLikelihoods(_AfterQuestions):
    """Log-likelihood of each choice."""

    @classmethod
    def require_arguments(cls, metric: str, dataset: str, spec: DatasetSpec, asked: ChoiceRequest) -> None:
        if metric != "accuracy":
            raise ConfigError(
                f"{metric} needs a dataset with question: and target:, without answer:, but {dataset!r} has choices; "
                "use accuracy"
            )

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return self._address(_CHOICES)

    @property
    def _scored(self) -> SignatureField:
        return "variant", self.asked.variant

    def score(self, statistics: ContinuationStatistics) -> Score:
        choices = [choice for each in self.data.questions for choice in each.choices]
        found = ChoiceStatistics(
            statistics.log_likelihood,
            np.array([len(choice) for choice in choices]),
            np.array([len(choice.encode()) for choice in choices]),
            np.array([len(each.choices) for each in self.data.questions]),
            np.array([at in each.right for each in self.data.questions for at in range(len(each.choices))]),
        )
        return self.metric_score(
            found,
            variant=self.asked.variant,
            clusters=self.data.clusters,
            groups=self.data.groups,
        )


@dataclass(frozen=True)
class ChoicesByTask(ChoiceLikelihoods):
    """Log-likelihoods of choices; code of the dataset's task turns those of a row into a number."""

    scorer: TextMetric

    @classmethod
    def require_arguments(cls, metric: str, dataset: str, spec: DatasetSpec, asked: Any) -> None:
        """Take any metric of the task."""

    @cached_property
    def identity(self) -> dict[str, str]:
        documents = json.dumps([row.get("doc") for row in self.data.rows])
        return {"data": digest_of_text(super().identity["data"] + documents), "metric": self.scorer.signature}

    @property
    def _scored(self) -> SignatureField:
        return "scored_by", self.scorer.signature

    def score(self, statistics: ContinuationStatistics) -> Score:
        ends = np.cumsum([len(each.choices) for each in self.data.questions])[:-1]
        return text_score(
            self.scorer,
            [json.dumps(of_row.tolist()) for of_row in np.split(statistics.log_likelihood, ends)],
            None,
            rows=self.data.rows,
            clusters=self.data.clusters,
            groups=self.data.groups,
        )


@dataclass(frozen=True)
class TargetLikelihoods(_AfterQuestions):
    """Log-likelihood of each row's target, and whether greedy decoding would write it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric == "accuracy":
            require(self.model, self.metric, "greedy", "causal")

    @classmethod
    def require_arguments(cls, metric: str, dataset: str, spec: DatasetSpec, asked: ChoiceRequest) -> None:
        if metric != "accuracy" and spec.average_by is not None:
            raise ConfigError(
                f"dataset {dataset!r}: average_by: {metric} is not a mean over rows, so it cannot be averaged by "
                "group; add a second dataset entry without average_by:"
            )
        if asked.variant != "acc":
            raise ConfigError.of(
                "variant",
                f"{asked.variant!r} chooses between choices, but the dataset {dataset!r} has one target a row",
            )

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return self._address(_TARGETS)

    @property
    def _scored(self) -> SignatureField:
        return ("target", "greedy match" if self.metric == "accuracy" else "perplexity per row")

    @property
    def _greedy(self) -> bool:
        return "greedy" in self.model.offers

    def score(self, statistics: ContinuationStatistics) -> Score:
        groups = {"groups": self.data.groups} if self.metric == "accuracy" else {}
        return self.metric_score(statistics, clusters=self.data.clusters, **groups)
