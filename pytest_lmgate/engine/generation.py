"""Generating texts in batches: rows of like length together, as many as a budget of tokens holds, order restored."""

from __future__ import annotations

__all__ = ["GenerationProgress", "generate_texts"]

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain

import torch

from pytest_lmgate.config.generation import GenerationSettings
from pytest_lmgate.data.prompts import Prompt
from pytest_lmgate.engine.decoding import Decoding
from pytest_lmgate.engine.forward import evaluation_mode
from pytest_lmgate.engine.halving import failure, run_halving
from pytest_lmgate.engine.loading import LoadedModel, quiet
from pytest_lmgate.engine.prompting import PromptEncoder
from pytest_lmgate.errors import ConfigError, ModelError

# Tokens of prompts and texts, padding and all beams included, whose keys and values are in memory at a time.
_CPU_TOKENS, _ACCELERATOR_TOKENS = 8192, 65536
_SAVE_SECONDS = 10.0
_PROOF_TOKENS, _PROOF_PADDING = 24, 4


@dataclass(frozen=True)
class GenerationProgress:
    """How far a generation is.

    Attributes:
        model: Name of the model.
        dataset: Name of the dataset.
        rows: Texts done.
        of: Texts there are.
        tokens: Tokens generated in this run.
        seconds: Time since it began.
        resumed: Texts that an earlier, interrupted run had done.
    """

    model: str
    dataset: str
    rows: int
    of: int
    tokens: int
    seconds: float
    resumed: int = 0

    @property
    def line(self) -> str:
        """In words, for people who wait: texts done, speed, time left."""
        speed = self.tokens / self.seconds if self.seconds > 0 else 0.0
        fresh = self.rows - self.resumed
        left = round(self.seconds * (self.of - self.rows) / fresh) if fresh else 0
        return (
            f"{self.model} on {self.dataset}: {self.rows:,} of {self.of:,} texts, {speed:,.0f} tokens/s, "
            f"{timedelta(seconds=left)} left"
        )


def generate_texts(
    loaded: LoadedModel,
    prompts: Sequence[Prompt],
    settings: GenerationSettings,
    *,
    dataset: str,
    context: int | None,
    batch_size: int | str = "auto",
    known: Mapping[int, str] | None = None,
    save: Callable[[dict[int, str]], None] = lambda _: None,
    report: Callable[[GenerationProgress], None] = lambda _: None,
) -> list[str]:
    """Generate a text for each prompt.

    In float32 a text depends on neither the batch size nor the other rows, unless two tokens' logits are equal to
    within rounding (about 1e-6 of their size): then the rounding of a batch decides between them.

    Args:
        loaded: A causal or encoder-decoder model.
        prompts: Texts, or chats as ``(role, content)`` pairs.
        settings: How to decode.
        dataset: Name of the dataset, for messages.
        context: Tokens that prompt and text may have together (encoder-decoder: each of them); None for no limit.
        batch_size: Rows per batch at most, or ``auto`` for a budget of tokens.
        known: Texts by row that an earlier, interrupted run made.
        save: Called now and then with all texts so far, by row.
        report: Called after each batch.

    Returns:
        Texts without prompt and special tokens, in the order of the prompts.

    Raises:
        ConfigError: More tokens are asked for than the model can write.
        DataError: A prompt has no token, or is longer than the context leaves room for.
        ModelError: A chat is asked for and the tokenizer has no chat template, or the model cannot generate.
        EngineError: Out of memory with a single row, or the model itself failed.
        NonFiniteError: The logits are NaN or infinite.
    """
    if not callable(getattr(loaded.model, "generate", None)):
        raise ModelError(f"model {loaded.name!r}: expected one that generates, got {type(loaded.model).__name__}")
    texts = {row: text for row, text in (known or {}).items() if 0 <= row < len(prompts)}
    resumed = len(texts)
    encoder = _encoder(loaded, settings, dataset, context)
    with torch.inference_mode(), evaluation_mode(loaded.model), quiet():
        todo = {row: encoder.encode(prompt, row) for row, prompt in enumerate(prompts) if row not in texts}
        writer = _Writer(loaded, settings, todo, dataset, batch_size)
        started = saved = time.monotonic()
        for batch in writer.batches(context):
            texts |= writer.write(batch)
            now = time.monotonic()
            report(
                GenerationProgress(
                    loaded.name, dataset, len(texts), len(prompts), writer.tokens, now - started, resumed
                )
            )
            if now - saved >= _SAVE_SECONDS and len(texts) < len(prompts):
                save(texts)
                saved = now
    return [texts[row] for row in range(len(prompts))]


def _encoder(loaded: LoadedModel, settings: GenerationSettings, dataset: str, context: int | None) -> PromptEncoder:
    cut, new = settings.truncate == "left", settings.max_new_tokens
    if context is None:
        return PromptEncoder(loaded, dataset, cut=cut)
    # A decoder begins with a token of its own, a causal model with the last of the prompt.
    if new >= context:
        raise ConfigError(
            f"max_new_tokens: the model {loaded.name!r} has a context of {context:,} tokens and can write "
            f"{context - 1:,} at most, got {new:,}"
        )
    if loaded.is_encoder_decoder:
        return PromptEncoder(
            loaded, dataset, context, f"context {context:,}", "; shorten it, or say truncate='left'", cut
        )
    why = f"context {context:,}, max_new_tokens {new:,}"
    remedy = "; shorten it, lower max_new_tokens, or say truncate='left'"
    return PromptEncoder(loaded, dataset, context - new, why, remedy, cut)


class _Writer:
    """One model and the rows it has to write: makes batches, and halves them where memory does not suffice."""

    def __init__(
        self,
        loaded: LoadedModel,
        settings: GenerationSettings,
        prompts: Mapping[int, list[int]],
        dataset: str,
        batch_size: int | str,
    ) -> None:
        self._loaded, self._settings, self._prompts, self._dataset = loaded, settings, prompts, dataset
        self._decoding = Decoding(loaded, settings)
        self._most = batch_size if isinstance(batch_size, int) else None
        self._budget = _CPU_TOKENS if loaded.device.type == "cpu" else _ACCELERATOR_TOKENS
        self.tokens = 0

    def batches(self, context: int | None) -> Iterator[list[int]]:
        """Yield rows, the longest first, so that a batch that does not fit is met early."""
        order = sorted(self._prompts, key=lambda row: (-len(self._prompts[row]), row))
        share = self._company(order, context)
        begin = 0
        while begin < len(order):
            longest = len(self._prompts[order[begin]])
            size = max(1, self._budget // self._tokens(longest))
            batch = order[begin : begin + (size if self._most is None else min(size, self._most))]
            batch = [row for row in batch if row == batch[0] or share(len(self._prompts[row]), longest)]
            yield batch
            begin += len(batch)

    def write(self, batch: Sequence[int]) -> dict[int, str]:
        """Return the texts of some rows."""

        def shrink(count: int) -> None:
            self._budget = min(self._budget, count * self._tokens(max(len(self._prompts[row]) for row in batch)))

        parts = run_halving(
            batch,
            lambda rows: self._decoding.texts([self._prompts[row] for row in rows], rows),
            device=self._loaded.device,
            name=self._loaded.name,
            what=lambda rows: (
                f"row {rows[0]} of {self._dataset!r}, {len(self._prompts[rows[0]]):,} tokens"
                + (f", and {len(rows) - 1} more" if len(rows) > 1 else "")
            ),
            shrink=shrink,
        )
        written = list(chain.from_iterable(parts))
        self.tokens += sum(count for _, count in written)
        return {row: text for row, (text, _) in zip(batch, written, strict=True)}

    def _tokens(self, prompt: int) -> int:
        return (prompt + self._settings.max_new_tokens) * self._settings.num_beams

    def _company(self, order: Sequence[int], context: int | None) -> Callable[[int, int], bool]:
        """Tell by lengths which rows may share a batch, as tried out on the model: all, those of one length, none."""
        room = _PROOF_TOKENS if context is None else min(_PROOF_TOKENS, context - _PROOF_PADDING - 2)
        prompt = self._prompts[order[-1]][: max(0, room)] if order else []
        if len(order) < 2 or self._most == 1 or not prompt:
            return lambda one, other: False
        other = list(reversed(prompt))
        longer = [*other, *prompt * _PROOF_PADDING][: len(prompt) + _PROOF_PADDING]
        try:
            if self._decoding.shares_batch(prompt, longer):
                return lambda one, other: True
            if self._decoding.shares_batch(prompt, other):
                return lambda one, other: one == other
        except Exception as error:
            what = f"two rows of {len(longer)} tokens"
            raise failure(error, device=self._loaded.device, name=self._loaded.name, what=what) from error
        return lambda one, other: False
