"""From prompts to the token ids that a model reads: special tokens, chat templates, and what does not fit."""

from __future__ import annotations

__all__ = ["PromptEncoder", "PromptIds", "rendered_chat"]

import functools
from dataclasses import dataclass

from pytest_lmgate.data.corpora.prompts import Chat, Prompt
from pytest_lmgate.data.tokenization.framing import Framing
from pytest_lmgate.data.tokenization.tokens import TokenizerFacts
from pytest_lmgate.errors import DataError, ModelError


@dataclass(frozen=True)
class PromptIds:
    """A prompt that a model is to go on from.

    Attributes:
        row: Its number, which a sample depends on.
        prompt: As text or chat.
        ids: Its token ids.
    """

    row: int
    prompt: Prompt
    ids: tuple[int, ...]


@dataclass(frozen=True)
class PromptEncoder:
    """Encodes the prompts of one dataset for one model.

    A causal model goes on where the prompt ends, so that what a tokenizer puts behind every text (an EOS, a ``[SEP]``)
    is left out: behind it the model would begin another text. An encoder reads it, as it did in training.

    Attributes:
        tokenizer: Of the model.
        model: Name of the model, for messages.
        dataset: Name of the dataset, for messages.
        room: Tokens that a prompt may have; None for no limit.
        limit: Why no more, for messages.
        remedy: What to do about it, for messages.
        cut: Leave out the beginning of a prompt that does not fit; special tokens before it are kept.
        encodes_whole: Whether an encoder reads the prompt.
    """

    tokenizer: TokenizerFacts
    model: str
    dataset: str
    room: int | None = None
    limit: str = ""
    remedy: str = ""
    cut: bool = False
    encodes_whole: bool = False

    def encode(self, prompt: Prompt, row: int) -> list[int]:
        """Return the token ids of one prompt.

        Raises:
            DataError: It has no token, or more than there is room for.
            ModelError: It is a chat, and the tokenizer has no template for it.
        """
        framing, own = self._plain(prompt) if isinstance(prompt, str) else (Framing(), self._chat(prompt))
        ids = framing.around(own)
        where = f"dataset {self.dataset!r}: row {row}"
        if not ids:
            raise DataError(f"{where}: expected a prompt, got one without a token: {prompt!r:.60}")
        if self.room is None or len(ids) <= self.room:
            return ids
        kept = self.room - (len(ids) - len(own))
        if not self.cut or kept < 1:
            raise DataError(
                f"{where}: the prompt has {len(ids):,} tokens, but the model {self.model!r} has room for "
                f"{max(0, self.room):,} ({self.limit}){self.remedy}"
            )
        return framing.around(own[-kept:])

    def _plain(self, text: str) -> tuple[Framing, list[int]]:
        own = self._framing.own(self.tokenizer.encode(text, True))
        return (self._framing if self.encodes_whole else Framing(self._framing.prefix)), own

    @functools.cached_property
    def _framing(self) -> Framing:
        return Framing.of(self.tokenizer.encode)

    def _chat(self, turns: Chat) -> list[int]:
        # The template writes the special tokens itself.
        return list(self.tokenizer.encode(rendered_chat(turns, self.tokenizer, model=self.model), False))


def rendered_chat(turns: Chat, tokenizer: TokenizerFacts, *, model: str) -> str:
    """Return a chat as the model's template writes it, up to where the assistant answers.

    Raises:
        ModelError: The tokenizer of the model of this name has no template, or one that refuses the chat.
    """
    if tokenizer.chat is None:
        raise ModelError(
            f"model {model!r}: chat: true, but its tokenizer has no chat template; add chat_template.jinja to "
            "its folder, or leave out chat:"
        )
    try:
        return tokenizer.chat([{"role": role, "content": content} for role, content in turns])
    except Exception as error:  # whatever a template raises, as where it knows no system message
        roles = ", ".join(role for role, _ in turns)
        raise ModelError(
            f"model {model!r}: its chat template refuses a chat of {roles}: {type(error).__name__}: {error}"
        ) from error
