"""How ROUGE is computed: a validated choice of variant, tokenizer, stemmer and convention, and its signature."""

from __future__ import annotations

__all__ = ["CONVENTIONS", "RougeSettings"]

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from pytest_lmgate import __version__
from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.metrics.rouge.convention import Convention
from pytest_lmgate.metrics.rouge.lin2004 import Lin2004
from pytest_lmgate.metrics.rouge.reading import Reader, Stems
from pytest_lmgate.metrics.rouge.rouge155 import Rouge155
from pytest_lmgate.metrics.rouge.tokenizers import TOKENIZERS, Tokenizer
from pytest_lmgate.metrics.rouge.variants import Variant

MultiReference = Literal["best", "average"]
T = TypeVar("T")

CONVENTIONS: dict[str, Convention] = {convention.name: convention for convention in (Lin2004(), Rouge155())}


@dataclass(frozen=True)
class RougeSettings:
    """What `rouge_rows` was asked for, checked and with defaults filled in.

    Attributes:
        variant: What is counted.
        convention: How.
        multi_reference: ``best`` or ``average``.
        tokenize: From a text to tokens, unstemmed.
        tokenizer_name: As in the signature.
        stem: From a token to its stem, or None.
        stemmer_name: As in the signature.
    """

    variant: Variant
    convention: Convention
    multi_reference: MultiReference
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
        """Check the arguments of `rouge_rows` without computing anything.

        Raises:
            ConfigError: A name that does not exist.
        """
        rules = _named("convention", convention, CONVENTIONS)
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
        parsed = Variant.parse(variant)
        return cls(
            parsed,
            rules,
            "best" if multi_reference == "best" else "average",
            tokenize,
            tokenizer_name,
            stem,
            stemmer_name,
        )

    @property
    def signature(self) -> str:
        """Everything needed to reproduce a number, in one line."""
        return (
            f"{self.variant.name}|references:{self.multi_reference}|tokenizer:{self.tokenizer_name}"
            f"|stemmer:{self.stemmer_name}|convention:{self.convention.name}|version:{__version__}"
        )

    def reader(self) -> Reader:
        """Return what reads texts so."""
        if self.stem is None:
            stems = None
        else:
            stems = self.convention.stems if self.stem is self.convention.stem else Stems(self.stem)
        by_sentence = self.convention.reads_sentences(self.variant)
        return Reader(self.tokenize, stems, by_sentence=by_sentence)


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
