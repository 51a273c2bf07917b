"""Finite distributions with whole-number weights, and phrases: texts with such distributions inside.

A phrase is a literal text, a sequence of phrases, or a chance of phrases: a probabilistic grammar without recursion.
Every draw reports its surprisal, and every phrase its expectations, so sampling and entropy read the same tables.
"""

from __future__ import annotations

__all__ = ["Amount", "Chance", "Phrase", "expected", "write"]

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Generic, TypeAlias, TypeVar

from .tokens import split

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Chance(Generic[T_co]):
    """A distribution over finitely many outcomes.

    Attributes:
        outcomes: Pairs of outcome and weight; the weights are positive whole numbers.
    """

    outcomes: tuple[tuple[T_co, int], ...]

    @classmethod
    def of(cls, weights: Mapping[T_co, int]) -> Chance[T_co]:
        """Make a chance of weights; outcomes of weight 0 cannot happen and are dropped.

        Raises:
            ValueError: A weight is negative, or none is positive.
        """
        if any(weight < 0 for weight in weights.values()) or not any(weights.values()):
            raise ValueError(f"expected weights from 0, at least one above 0; got {dict(weights)}")
        return cls(tuple((outcome, weight) for outcome, weight in weights.items() if weight))

    @property
    def total(self) -> int:
        """The sum of the weights."""
        return sum(weight for _, weight in self.outcomes)

    def __iter__(self) -> Iterator[tuple[T_co, float]]:
        """Yield each outcome with its probability."""
        total = self.total
        return ((outcome, weight / total) for outcome, weight in self.outcomes)

    def surprisal(self, outcome: object) -> float:
        """Return -log p(outcome) in nats; infinite for what cannot happen."""
        p = next((p for known, p in self if known == outcome), 0.0)
        return -math.log(p) if p else math.inf

    def draw(self, random: Random) -> T_co:
        """Draw an outcome.

        Only ``random()`` is used, the one method whose sequence Python promises to keep for a seed.
        """
        left = int(random.random() * self.total)
        for outcome, weight in self.outcomes:
            left -= weight
            if left < 0:
                return outcome
        raise AssertionError("unreachable: random() is below 1")


Phrase: TypeAlias = "str | tuple[Phrase, ...] | Chance[Phrase]"


@dataclass(frozen=True)
class Amount:
    """Additive quantities of a text, or their expectations.

    Attributes:
        nats: Surprisal; its expectation is the entropy.
        tokens: Tokens of `weather.tokens`.
        utf8_bytes: Bytes.
    """

    nats: float = 0.0
    tokens: float = 0.0
    utf8_bytes: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.nats + other.nats, self.tokens + other.tokens, self.utf8_bytes + other.utf8_bytes)

    def __rmul__(self, p: float) -> Amount:
        return Amount(p * self.nats, p * self.tokens, p * self.utf8_bytes)


@cache
def expected(phrase: Phrase) -> Amount:
    """Return the entropy, expected tokens and expected bytes of a phrase.

    By the chain rule (Cover and Thomas, Elements of Information Theory, 2nd ed., theorem 2.5.1), the entropy of a
    derivation is the sum over its choices, each weighted with the probability that it comes up. It is the entropy of
    the text too if no text has two derivations.
    """
    if isinstance(phrase, str):
        return Amount(0.0, len(split(phrase)), len(phrase.encode()))
    if isinstance(phrase, Chance):
        return sum((p * (Amount(-math.log(p)) + expected(part)) for part, p in phrase), Amount())
    return sum(map(expected, phrase), Amount())


def write(phrase: Phrase, random: Random) -> tuple[str, float]:
    """Draw a text of a phrase; return it with the surprisal of the choices made, in nats."""
    if isinstance(phrase, str):
        return phrase, 0.0
    if isinstance(phrase, Chance):
        part = phrase.draw(random)
        text, nats = write(part, random)
        return text, nats + phrase.surprisal(part)
    drawn = [write(part, random) for part in phrase]
    return "".join(text for text, _ in drawn), sum(nats for _, nats in drawn)
