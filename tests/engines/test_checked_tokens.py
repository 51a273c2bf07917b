"""A GGUF's given tokenizer is checked on every text that it cuts."""

from collections.abc import Sequence

import pytest

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.engines.llamacpp.gguf import checked_facts
from pytest_lmgate.errors import ModelError
from pytest_lmgate.windows import protocols as base
from pytest_lmgate.windows.tokens import Placed, TokenizerFacts


def letters() -> TokenizerFacts:
    """Return a tokenizer with a token for each letter; the GGUF has no such letter as z."""

    def check(ids: Sequence[int], text: str, special: bool) -> None:
        assert list(ids) == list(map(ord, text))
        if "z" in text:
            raise ModelError("they tokenize a text differently")

    given = TokenizerFacts(
        lambda text, _: list(map(ord, text)),
        placed=lambda text, _: Placed(list(map(ord, text)), range(len(text)), range(1, len(text) + 1)),
    )
    return checked_facts(given, check)


def test_a_text_that_the_model_cuts_otherwise_is_refused() -> None:
    same = Corpus("t", ("abcdefghij",), is_one_text=True)
    assert base.joined(same, letters(), join="", special=False).ids[0].tolist() == list(map(ord, "abcdefghij"))
    other = Corpus("t", ("abcdefghijz",), is_one_text=True)
    with pytest.raises(ModelError, match="tokenize a text differently"):
        base.joined(other, letters(), join="", special=False)
