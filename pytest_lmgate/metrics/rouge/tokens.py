r"""From a text to the tokens that ROUGE compares: sentences, tokenizers, stems.

A tokenizer is any function from a string to a list of strings:

- ``unicode``: letters and digits of any script, lower case. Words are runs of letters, digits and their combining
  marks, so that Devanagari keeps its vowel signs and a Korean eojeol stays one token; scripts written without spaces
  between words (Han, Kana, Bopomofo, and those whose lines break by dictionary: Thai, Lao, Khmer, Burmese, ...) give
  one token for each letter with its marks. Canonically equivalent texts give equal tokens; invisible characters (soft
  hyphen, joiners, variation selectors) are dropped. On ASCII it equals ``rouge-score``.
- ``rouge-score``: what Google's rouge-score 0.1.2 does: ``[a-z0-9]+`` of the lower-cased text.
- ``rouge-1.5.5``: what the Perl program does to bytes: as above, with ASCII's lower case alone.
"""

from __future__ import annotations

__all__ = ["TOKENIZERS", "Sentences", "Stems", "Tokenizer", "read"]

import re
import unicodedata
from collections.abc import Callable, Sequence

import regex

from pytest_lmgate.errors import MetricInputError

Sentences = Sequence[Sequence[str]]
Tokenizer = Callable[[str], Sequence[str]]

_STEMMED_BEYOND = 3  # characters; ROUGE-1.5.5 and rouge-score leave shorter words alone
_MOST_KEPT = 1 << 17
_ASCII_LOWER = re.compile(r"[a-z0-9]+")
_ASCII_TABLE = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))
_ASCII = re.compile(r"[A-Za-z0-9]+")
# A zero width space separates words where others are invisible: it is not in this set.
_INVISIBLE = regex.compile(r"(?V1)[\p{Default_Ignorable_Code_Point}--\u200B]+")
_UNSPACED = r"[[\p{L}\p{N}]&&[\p{Han}\p{scx=Hiragana}\p{scx=Katakana}\p{Bopomofo}\p{Line_Break=Complex_Context}]]"
_SPACED = rf"[[\p{{L}}\p{{N}}]--{_UNSPACED}]"
_WORD = regex.compile(rf"(?V1){_UNSPACED}\p{{M}}*|{_SPACED}[{_SPACED}\p{{M}}]*")


def _rouge_score(text: str) -> list[str]:
    if text.isascii():  # the same, twice as fast
        return text.translate(_ASCII_TABLE).split()
    return _ASCII_LOWER.findall(text.lower())


def _rouge_155(text: str) -> list[str]:
    return [token.lower() for token in _ASCII.findall(text)]


def _unicode(text: str) -> list[str]:
    if text.isascii():
        return _rouge_score(text)
    words: list[str] = _WORD.findall(unicodedata.normalize("NFC", _INVISIBLE.sub("", text.lower())))
    return words


TOKENIZERS: dict[str, Tokenizer] = {"unicode": _unicode, "rouge-score": _rouge_score, "rouge-1.5.5": _rouge_155}


class Stems(dict[str, str]):
    """From each token to its stem, or to itself where it is short. Filled as tokens are met: texts repeat words."""

    def __init__(self, stem: Callable[[str], str]) -> None:
        super().__init__()
        self._stem = stem

    def __missing__(self, token: str) -> str:
        if len(self) >= _MOST_KEPT:
            self.clear()
        self[token] = found = self._stem(token) if len(token) > _STEMMED_BEYOND else token
        return found


def read(text: str, tokenize: Tokenizer, stems: Stems | None, *, by_sentence: bool) -> Sentences:
    r"""Return the tokens of each sentence; a text is one sentence unless it is split at ``\n``.

    Raises:
        MetricInputError: The tokenizer returned a string.
    """
    sentences = []
    for line in text.split("\n") if by_sentence else [text]:
        tokens = tokenize(line)
        if isinstance(tokens, str):
            raise MetricInputError(f"tokenizer {tokenize!r}: expected a list of strings, got {tokens!r}")
        sentences.append(list(tokens if stems is None else map(stems.__getitem__, tokens)))
    return sentences
