"""`Measurement`: one kind of statistics of models on data, and what it gets to be made with."""

from __future__ import annotations

__all__ = ["AtLeast", "Bench", "Measurement", "addressed", "digest_of", "digest_of_text", "identity_of", "require"]

import abc
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pytest_lmgate.backends.base import Kind, Model, Offer, Runner
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.data.tokenization.tokens import TokenizerFacts
from pytest_lmgate.engine.loop import Job
from pytest_lmgate.errors import ModelError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.table import METRICS, Statistics

T = TypeVar("T")
# What is measured of a text instead, where a metric of another kind of model is asked for.
_OF_TEXT: Mapping[Kind, Statistics] = {"causal": "likelihoods", "masked": "pseudo-likelihoods"}
_LACKING: Mapping[Offer, str] = {
    "score": "gives no log-likelihoods of tokens",
    "generate": "does not generate texts",
    "compare": "does not give whole distributions over the vocabulary",
}


class AtLeast(NamedTuple):
    """The result of a measurement that ended early: the score is at least `value`, over `n` tokens or other units."""

    value: float
    n: int


@dataclass(frozen=True)
class Bench:
    """What a measurement is made with.

    Attributes:
        folder: The cache's folder.
        runner: Returns a model in memory.
        fit_together: Returns whether another model fits in memory beside one that is there.
        job: Returns how the measurement runs, given the names of model and dataset and the batch size.
        stop_above: The measurement may end as soon as its value is certain to be above this; None to measure whole.
    """

    folder: Path
    runner: Callable[[Model], Runner]
    fit_together: Callable[[Model, Model], bool]
    job: Callable[[str, str, int | str], Job]
    stop_above: float | None


@dataclass(frozen=True)
class Measurement(abc.ABC, Generic[T]):
    """One kind of statistics of one or two models on data, and how scores are made of them.

    Attributes:
        metric: Name of the score.
        model: The model that is measured.
        data: The data, which has a name for messages.
        asked: How the user wants it measured.
    """

    metric: str
    model: Model
    data: Any
    asked: Any

    @property
    def models(self) -> tuple[Model, ...]:
        """All models that are measured."""
        return (self.model,)

    @property
    def words(self) -> str:
        """Models and data, for messages."""
        return f"{' against '.join(model.name for model in self.models)} on {self.data.name}"

    @property
    @abc.abstractmethod
    def fingerprint(self) -> Fingerprint:
        """The address: everything that can change the statistics."""

    @property
    def identity(self) -> dict[str, str]:
        """Digests of the sample, known before a model runs; scores of one identity can be compared."""
        return {"data": self.data.digest}

    @property
    def signature(self) -> Signature | None:
        """How it is measured; None where only the score knows."""
        return None

    @property
    def shared(self) -> dict[str, str]:
        """What a comparison must share, as far as it is known before a model runs."""
        signature = self.signature
        return self.identity if signature is None else {**self.identity, "protocol": signature.compared}

    @abc.abstractmethod
    def measure(self, bench: Bench) -> T | AtLeast:
        """Run the models. Where it raises, only partial results are kept.

        Raises:
            LmgateError: It cannot be measured.
        """

    @abc.abstractmethod
    def tokens(self, tokenizer: TokenizerFacts) -> int:
        """Return how many tokens the models read, or where they write, may write. No model is needed.

        Raises:
            LmgateError: It cannot be measured.
        """

    @abc.abstractmethod
    def encode(self, statistics: T) -> Entry:
        """Return what to store of the statistics."""

    @abc.abstractmethod
    def decode(self, entry: Entry) -> T:
        """Return the statistics that were stored.

        Raises:
            KeyError: The entry is of another kind; TypeError, ValueError and LmgateError say the same.
        """

    @abc.abstractmethod
    def score(self, statistics: T) -> Score:
        """Return the score that the statistics make."""

    def bound(self, found: AtLeast) -> Score:
        """Return the score of a measurement that ended early."""
        raise NotImplementedError


def require(model: Model, metric: str, offer: Offer, *kinds: Kind) -> None:
    """Refuse a model for which a metric is undefined, or whose engine does not offer what it takes.

    Raises:
        ModelError: It is such a model.
    """
    if model.kind not in kinds:
        if model.kind == "causal" and model.architecture == "unknown":
            raise ModelError(
                f"{metric} is undefined for {model.name!r}, taken for a causal model since its config lacks "
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


def identity_of(model: Model) -> str:
    """Return a model's digest, the same wherever it runs; if its content is unknown, a digest for this session only."""
    return Fingerprint.of("model", model.runtime if model.content is None else model.content).address


def digest_of(content: Any) -> str:
    """Return the SHA-256 of texts and lists of texts."""
    return digest_of_text(json.dumps(content, ensure_ascii=False))


def digest_of_text(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _instead(metric: str, kind: Kind) -> str:
    """Name the metric to use for this kind of model, if the text that was given has one."""
    row = METRICS.get(metric)
    if row is None or row.measures not in _OF_TEXT.values():
        return ""
    other = next((each for each in METRICS.values() if each.measures == _OF_TEXT.get(kind)), None)
    return f"; use {other.markers[0]}, the {other.title}" if other else ""
