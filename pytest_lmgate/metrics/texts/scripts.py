"""Texts that BLEU's usual tokenizer takes for one long word: scripts that put no spaces between words.

The tokenizer ``13a`` splits at spaces and Latin punctuation, so a sentence in Chinese, Japanese or Thai is one word or
few, and BLEU is near 0 whatever the system wrote (Post 2018, on tokenization).
"""

from __future__ import annotations

__all__ = ["tokenizer_hint"]

import re
from collections.abc import Iterable
from itertools import islice

_KANA = re.compile("[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")
_THAI = re.compile("[\u0e01-\u0e7f]")
_LETTER = re.compile(r"[^\W\d_]")
_ENOUGH = 1000  # texts tell the language
_MANY, _SOME = 0.5, 0.1  # of the letters


def tokenizer_hint(texts: Iterable[str]) -> str:
    """Name the tokenizers of BLEU for texts of which most letters are Han, Kana or Thai; empty for all others."""
    text = "\n".join(islice(texts, _ENOUGH))
    letters = len(_LETTER.findall(text))
    kana, han, thai = (len(pattern.findall(text)) for pattern in (_KANA, _HAN, _THAI))
    if kana + han > _MANY * letters:
        if kana > _SOME * (kana + han):
            return "Japanese has no spaces between words: say tokenize='ja-mecab', 'flores200' or 'char'"
        return "Chinese has no spaces between words: say tokenize='zh', 'flores200' or 'char'"
    if thai > _MANY * letters:
        return "Thai has no spaces between words: say tokenize='flores200' or 'char'"
    return ""
