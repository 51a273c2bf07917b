"""How to measure what is not a perplexity of a text: generated texts, multiple choice, masked models, two models."""

from __future__ import annotations

__all__ = ["ChoiceRequest", "DivergenceRequest", "MaskedRequest", "TextRequest"]

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_lmgate.config.generation import GenerationSettings
from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.metrics.accuracy import CHOICE_VARIANTS
from pytest_lmgate.metrics.divergence import KL_STATISTICS
from pytest_lmgate.spec.protocol import Protocol


@dataclass(frozen=True)
class TextRequest:
    """A metric of texts, which a model generates or which are given.

    Attributes:
        metric: ``bleu``, ``chrf``, ``ter``, ``rouge``, ``exact``, or the name of a user's.
        options: The metric's own, those that were said.
        generation: How to generate.
        predictions: Texts that are there already, one per row.
        references: References of each of them.
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
        variant: ``acc``, ``acc_norm`` (per character) or ``acc_bytes`` (per byte): what decides.
        max_length: Tokens read at most; None is the model's context.

    Raises:
        ConfigError: An unknown variant, or a length out of range.
    """

    variant: str = "acc"
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.variant not in CHOICE_VARIANTS:
            raise ConfigError.of(
                "variant",
                f"expected one of {', '.join(CHOICE_VARIANTS)}; got {self.variant!r}"
                f"{nearest(str(self.variant), CHOICE_VARIANTS)}",
            )
        _check_length(self.max_length)


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
        _check_length(self.max_length)


@dataclass(frozen=True)
class DivergenceRequest:
    """A model beside its reference, on the same tokens.

    Attributes:
        reference: Name, path, hub id, fixture reference, or a pair in memory.
        protocol: How the text is read.
        statistic: Of the KL divergence per token: one of `KL_STATISTICS`.

    Raises:
        ConfigError: No reference, or an unknown statistic.
    """

    reference: Any
    protocol: Protocol = field(default_factory=Protocol)
    statistic: str = "mean"

    def __post_init__(self) -> None:
        given = self.reference
        if given is None or isinstance(given, int | float) or (isinstance(given, str) and not given):
            raise ConfigError.of(
                "reference",
                "expected a name of lmgate.yaml, a path, a hub id or lmgate.fixture(...) of the model to "
                f"compare with, got {given!r}",
            )
        if self.statistic not in KL_STATISTICS:
            raise ConfigError.of(
                "statistic",
                f"expected one of {', '.join(KL_STATISTICS)}; got {self.statistic!r}"
                f"{nearest(str(self.statistic), KL_STATISTICS)}",
            )


def _check_length(length: object) -> None:
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 2):
        raise ConfigError.of("max_length", f"expected a whole number of tokens, 2 or more; got {length!r}")
