"""How to measure what is not a perplexity of a text: generated texts, multiple choice, masked models, two models."""

from __future__ import annotations

__all__ = ["ChoiceRequest", "DivergenceRequest", "MaskedRequest", "TextRequest", "is_no_name"]

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.metrics.accuracy import CHOICE_VARIANTS
from pytest_lmgate.metrics.divergence import KL_STATISTICS
from pytest_lmgate.spec.protocol import Protocol, one_of, whole_number


@dataclass(frozen=True)
class TextRequest:
    """A metric of texts, which a model generates or which are given as predictions with their references, row by row.

    Attributes:
        options: The metric's own, those that were said.
        predictions: Texts to score in place of a model's, one a row.
        references: Of `predictions`, a list of texts for each row.
    """

    metric: str
    options: tuple[tuple[str, Any], ...]
    generation: GenerationSettings
    predictions: Sequence[str] | None = None
    references: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True)
class ChoiceRequest:
    """Multiple choice by likelihood.

    Attributes:
        variant: The choice with the highest log-likelihood is the model's: of the whole (``acc``), per character
            (``acc_norm``) or per byte (``acc_bytes``).
        max_length: Tokens read at most; None is the model's context.

    Raises:
        ConfigError: An unknown variant, or a length out of range.
    """

    variant: str = "acc"
    max_length: int | None = None

    def __post_init__(self) -> None:
        one_of("variant", self.variant, CHOICE_VARIANTS)
        whole_number("max_length", self.max_length, at_least=2)


@dataclass(frozen=True)
class MaskedRequest:
    """Pseudo-perplexity of a masked model, one mask at a time.

    Attributes:
        max_length: Tokens read at most, special tokens included; None is the model's context. Longer texts are read in
            pieces.

    Raises:
        ConfigError: A length out of range.
    """

    max_length: int | None = None

    def __post_init__(self) -> None:
        whole_number("max_length", self.max_length, at_least=2)


@dataclass(frozen=True)
class DivergenceRequest:
    """A model beside its reference, given as models are, on the same tokens.

    Attributes:
        statistic: Of the tokens' divergences: ``mean``, ``median``, ``p90``, ``p95``, ``p99``, ``p99.9`` or ``max``.

    Raises:
        ConfigError: No reference, or an unknown statistic.
    """

    reference: Any
    protocol: Protocol = field(default_factory=Protocol)
    statistic: str = "mean"

    def __post_init__(self) -> None:
        if is_no_name(self.reference):
            raise ConfigError.of(
                "reference",
                "expected a name of lmgate.yaml, a path, a hub id or lmgate.fixture(...) of the model to "
                f"compare with, got {self.reference!r}",
            )
        one_of("statistic", self.statistic, KL_STATISTICS)


def is_no_name(given: object) -> bool:
    """Return whether something given for a model or a dataset can be neither: nothing, a number or an empty text."""
    return given is None or isinstance(given, int | float) or (isinstance(given, str) and not given)
