"""From prompts to the token ids that a model reads: special tokens, chat templates, and what does not fit."""

from __future__ import annotations

__all__ = ["PromptEncoder"]

import functools
from dataclasses import dataclass
from typing import Any

from pytest_lmgate.data.framing import Framing
from pytest_lmgate.data.prompts import Prompt
from pytest_lmgate.engine.loading import LoadedModel
from pytest_lmgate.errors import DataError, ModelError


@dataclass(frozen=True)
class PromptEncoder:
    """Encodes the prompts of one dataset for one model.

    A causal model goes on where the prompt ends, so that what a tokenizer puts behind every text (an EOS, a ``[SEP]``)
    is left out: behind it the model would begin another text. An encoder reads it, as it did in training.

    Attributes:
        loaded: The model.
        dataset: Name of the dataset, for messages.
        room: Tokens that a prompt may have; None for no limit.
        limit: Why no more, for messages.
        remedy: What to do about it, likewise.
        cut: Leave out the beginning of a prompt that does not fit; special tokens before it are kept.
    """

    loaded: LoadedModel
    dataset: str
    room: int | None = None
    limit: str = ""
    remedy: str = ""
    cut: bool = False

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
                f"{where}: the prompt has {len(ids):,} tokens, but the model {self.loaded.name!r} has room for "
                f"{max(0, self.room):,} ({self.limit}){self.remedy}"
            )
        return framing.around(own[-kept:])

    def _plain(self, text: str) -> tuple[Framing, list[int]]:
        own = self._framing.own(self.loaded.tokenizer(text)["input_ids"])
        if self.loaded.is_encoder_decoder:
            return self._framing, own
        return Framing(self._framing.prefix), own

    @functools.cached_property
    def _framing(self) -> Framing:
        tokenizer = self.loaded.tokenizer
        return Framing.of(lambda text, special: tokenizer(text, add_special_tokens=special)["input_ids"])

    def _chat(self, turns: tuple[tuple[str, str], ...]) -> list[int]:
        tokenizer: Any = self.loaded.tokenizer
        name = self.loaded.name
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError(
                f"model {name!r}: chat: true, but its tokenizer has no chat template; add chat_template.jinja to its "
                "folder, or leave out chat:"
            )
        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # whatever a template raises, as where it knows no system message
            roles = ", ".join(role for role, _ in turns)
            raise ModelError(
                f"model {name!r}: its chat template refuses a chat of {roles}: {type(error).__name__}: {error}"
            ) from error
        # The template writes the special tokens itself.
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
