"""The tokens of a served model: those of a tokenizer's folder, against which the server's own are held."""

from __future__ import annotations

__all__ = ["BROKEN", "ServedTokens", "tokens_of_folder"]

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_lmgate.data.tokenization.tokens import TokenizerFacts
from pytest_lmgate.errors import ModelError

BROKEN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class ServedTokens:
    """The tokens of a model.

    Attributes:
        model: The model's name, for messages.
        facts: What the planning needs to know.
        text: Token ids and whether to leave out special tokens, to their text.
    """

    model: str
    facts: TokenizerFacts
    text: Callable[[Sequence[int], bool], str]

    def prompt_text(self, ids: Sequence[int]) -> str:
        """Return the text which a server that reads no token ids cuts into these.

        Raises:
            ModelError: There is none: the tokens begin or end within a character, or without the special tokens that
                stand before every text.
        """
        begin = 1 if self.facts.adds_bos and ids[0] == self.facts.bos else 0
        text = self.text(ids[begin:], False)
        if list(self.facts.encode(text, True)) != list(ids):
            raise ModelError(
                f"model {self.model!r}: its server takes text, not token ids, and no text is cut into the "
                f"{len(ids):,} tokens that begin with {self.text(ids[:8], False)!r}; most windows within a text "
                "are like this: serve the model with a server that takes token ids, such as vLLM, or give windows that "
                "begin with the text: a document per row, and a max_length that holds it"
            )
        return text

    def as_decoded(self, text: str) -> str:
        """Return a server's text as the tokenizer writes it, which may leave out the space before the first word."""
        return text.removeprefix(" ") if self._drops_space else text

    def is_named(self, token: int, name: object) -> bool:
        """Return whether a server's name of a token is that of an id: its text, or ``token_id:17``.

        Names are texts of their own, so that parts of a character and the space before a word may be lost.
        """
        if not isinstance(name, str):
            return False
        if name.startswith("token_id:"):
            return name == f"token_id:{token}"
        if token in self.facts.special and not name:
            return True
        own = self._name(token)
        return name.replace(BROKEN, "") in (own, f" {own}") or name.replace(BROKEN, "") == own.removeprefix(" ")

    @functools.cached_property
    def _drops_space(self) -> bool:
        one, two = (list(self.facts.encode(text, False)) for text in ("a", "a the"))
        return not self.text(two[len(one) :], True).startswith(" ")

    @functools.cached_property
    def _name(self) -> Callable[[int], str]:
        return functools.cache(lambda token: self.text([token], False).replace(BROKEN, ""))


def tokens_of_folder(folder: Path, model: str) -> ServedTokens:
    """Load a tokenizer.

    Raises:
        ModelError: It cannot be loaded.
    """
    from pytest_lmgate.backends.hf.models.loading import decoded, load_tokenizer, tokenizer_facts

    tokenizer = load_tokenizer(model, folder)

    def text(ids: Sequence[int], skip_special: bool) -> str:
        return decoded(tokenizer, ids, skip_special=skip_special, clean_up_tokenization_spaces=False)

    return ServedTokens(model, tokenizer_facts(tokenizer), text)
