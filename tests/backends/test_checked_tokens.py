"""A GGUF's given tokenizer is checked on every text that it cuts, the pieces of a long one too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_lmgate.backends.llamacpp.tokens import checked_facts
from pytest_lmgate.data.corpora import corpus as corpora
from pytest_lmgate.data.corpora.corpus import Corpus
from pytest_lmgate.data.protocols import base
from pytest_lmgate.data.tokenization.tokens import Placed, TokenizerFacts
from pytest_lmgate.errors import ModelError


def letters() -> TokenizerFacts:
    """Return a tokenizer with a token for each letter; the GGUF has no such letter as z."""

    def check(ids: Sequence[int], text: str, special: bool) -> None:
        assert list(ids) == list(map(ord, text))
        if "z" in text:
            raise ModelError("they cut a text into different tokens")

    given = TokenizerFacts(
        lambda text, _: list(map(ord, text)), placed=lambda text, _: Placed(list(map(ord, text)), range(len(text)))
    )
    return checked_facts(given, check)


@pytest.mark.parametrize("length", [100, 10_000])
def test_a_text_that_the_model_cuts_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(corpora, "PIECE_CHARS", 1000)
    monkeypatch.setattr(base, "PIECE_CHARS", 1000)
    text = "abcdefghij" * (length // 10)
    same = Corpus("t", (text,), is_one_text=True)
    assert base.joined(same, letters(), join="", special=False).ids[0].tolist() == list(map(ord, text))
    other = Corpus("t", (f"{text}z",), is_one_text=True)
    with pytest.raises(ModelError, match="different tokens"):
        base.joined(other, letters(), join="", special=False)
