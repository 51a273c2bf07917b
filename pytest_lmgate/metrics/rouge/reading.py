"""From texts to the tokens that are compared: sentences, tokenizer, stems."""

from __future__ import annotations

__all__ = ["Reader", "Sentences", "Stems"]

from collections.abc import Callable, Sequence

from pytest_lmgate.errors import MetricInputError
from pytest_lmgate.metrics.rouge.tokenizers import Tokenizer

Sentences = Sequence[Sequence[str]]

_STEMMED_BEYOND = 3  # characters; shorter words are left alone by ROUGE-1.5.5 and rouge-score
_MOST_KEPT = 1 << 17


class Stems(dict[str, str]):
    """What stands for each token: its stem, or itself where it is short. Filled as tokens are met: texts repeat words.

    Args:
        stem: A pure function from a word to its stem.
    """

    def __init__(self, stem: Callable[[str], str]) -> None:
        super().__init__()
        self._stem = stem

    def __missing__(self, token: str) -> str:
        if len(self) >= _MOST_KEPT:
            self.clear()
        self[token] = found = self._stem(token) if len(token) > _STEMMED_BEYOND else token
        return found


class Reader:
    r"""Reads texts into sentences of tokens.

    Args:
        tokenize: From a text to tokens.
        stems: What stands for each token, or None for itself.
        by_sentence: Whether a text is split at ``\n``; else it is one sentence.
    """

    def __init__(self, tokenize: Tokenizer, stems: Stems | None, *, by_sentence: bool) -> None:
        self._tokenize, self._stems, self._by_sentence = tokenize, stems, by_sentence

    def read(self, text: str) -> Sentences:
        """Return the tokens of each sentence.

        Raises:
            MetricInputError: The tokenizer returned a string.
        """
        if self._by_sentence and "\n" in text:
            return [self._tokens(line) for line in text.split("\n")]
        return [self._tokens(text)]

    def _tokens(self, text: str) -> list[str]:
        tokens = self._tokenize(text)
        if isinstance(tokens, str):
            raise MetricInputError(f"tokenizer {self._tokenize!r}: expected a list of strings, got {tokens!r}")
        return list(tokens if self._stems is None else map(self._stems.__getitem__, tokens))
