"""How ROUGE is computed: a validated choice of variant, tokenizer, stemmer and convention, its signature, its rows."""

from __future__ import annotations

__all__ = ["RougeSettings", "RowScore"]

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import NamedTuple, TypeVar

from pytest_lmgate import __version__
from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.metrics.rouge.conventions import Convention, Lin2004, Overlap, Rouge155, Scores
from pytest_lmgate.metrics.rouge.tokens import TOKENIZERS, Sentences, Stems, Tokenizer, read
from pytest_lmgate.metrics.rouge.variants import Variant

T = TypeVar("T")

_CONVENTIONS: dict[str, Convention] = {convention.name: convention for convention in (Lin2004(), Rouge155())}


class RowScore(NamedTuple):
    """Scores of a row, the counts that they came from, and the reference they are with: the best one, or -1 for all."""

    scores: Scores
    overlap: Overlap
    chosen: int


@dataclass(frozen=True)
class RougeSettings:
    """What `rouge` was asked for, checked and with defaults filled in; names are as in the signature.

    `tokenize` leaves tokens unstemmed.
    """

    variant: Variant
    convention: Convention
    multi_reference: str
    tokenize: Tokenizer
    tokenizer_name: str
    stem: Callable[[str], str] | None
    stemmer_name: str

    @classmethod
    def of(
        cls,
        variant: str = "rougeL",
        *,
        stemmer: bool | Callable[[str], str] = False,
        multi_reference: str = "best",
        tokenizer: str | Tokenizer | None = None,
        convention: str = "lin2004",
    ) -> RougeSettings:
        """Check the arguments of `rouge` without computing anything.

        Raises:
            ConfigError: A name that does not exist.
        """
        rules = _named("convention", convention, _CONVENTIONS)
        if multi_reference not in ("best", "average"):
            raise ConfigError(f"unknown multi_reference {multi_reference!r}: expected 'best' or 'average'")
        if callable(tokenizer):
            tokenize, tokenizer_name = tokenizer, _custom(tokenizer)
        else:
            tokenizer_name = rules.tokenizer if tokenizer is None else tokenizer
            tokenize = _named("tokenizer", tokenizer_name, TOKENIZERS)
        if not (callable(stemmer) or isinstance(stemmer, bool)):
            raise ConfigError(f"stemmer: expected True, False or a function from word to stem, got {stemmer!r}")
        stem, stemmer_name = (stemmer, _custom(stemmer)) if callable(stemmer) else (None, "no")
        if stemmer is True:
            stem, stemmer_name = rules.stem, rules.stemmer_name
        return cls(Variant.parse(variant), rules, multi_reference, tokenize, tokenizer_name, stem, stemmer_name)

    @property
    def signature(self) -> str:
        """Everything needed to reproduce a number, in one line."""
        return (
            f"{self.variant.name}|references:{self.multi_reference}|tokenizer:{self.tokenizer_name}"
            f"|stemmer:{self.stemmer_name}|convention:{self.convention.name}|version:{__version__}"
        )

    def rows(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[RowScore]:
        """Score each prediction against its references, at least one a row; an empty prediction scores 0.

        Raises:
            MetricInputError: The tokenizer returned a string.
        """
        stems = None
        if self.stem is not None:
            stems = self.convention.stems if self.stem is self.convention.stem else Stems(self.stem)
        by_sentence = self.variant.family in self.convention.by_sentence
        reading = partial(read, tokenize=self.tokenize, stems=stems, by_sentence=by_sentence)
        return [
            self._row(reading(prediction), list(map(reading, of_row)))
            for prediction, of_row in zip(predictions, references, strict=True)
        ]

    def _row(self, candidate: Sentences, references: Sequence[Sentences]) -> RowScore:
        rules, variant = self.convention, self.variant
        overlaps = [rules.overlap(variant, candidate, reference) for reference in references]
        if self.multi_reference == "average":
            overlap, chosen = reduce(Overlap.plus, overlaps), -1
        else:
            pairs = zip(overlaps, references, strict=True)
            ranks = [rules.rank(variant, *pair) for pair in pairs] if len(overlaps) > 1 else [0.0]
            chosen = ranks.index(max(ranks))
            overlap = overlaps[chosen]
        return RowScore(rules.scores(variant, overlap), overlap, chosen)


def _named(what: str, name: object, known: dict[str, T]) -> T:
    if isinstance(name, str) and name in known:
        return known[name]
    raise ConfigError(
        f"unknown {what} {name!r}{nearest(str(name), known)}: expected one of {', '.join(map(repr, known))}"
    )


def _custom(function: Callable[..., object]) -> str:
    """Name a user's function in a signature, with a digest of its source: all lambdas of a module have one name."""
    named = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(named, "__module__", None)  # methods of built-in types have none
    name = f"{module}.{named.__qualname__}" if module else named.__qualname__
    try:
        source = inspect.getsource(named).strip()
    except (OSError, TypeError):  # built in, or typed at a prompt
        return name
    return f"{name}@{hashlib.sha256(source.encode()).hexdigest()[:8]}"
