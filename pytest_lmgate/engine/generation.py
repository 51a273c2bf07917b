"""Generating texts: prompts encoded and fitted to the context, batches of like length, order restored."""

from __future__ import annotations

__all__ = ["generate"]

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.backends.base import Runner
from pytest_lmgate.backends.writing import cut
from pytest_lmgate.cache.store import Entry
from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.data.corpora.prompts import Prompt
from pytest_lmgate.data.tokenization.prompting import PromptEncoder, PromptIds
from pytest_lmgate.data.tokenization.tokens import TokenizerFacts
from pytest_lmgate.engine.batches import eager
from pytest_lmgate.engine.loop import Job, prepared, run_batches
from pytest_lmgate.engine.trials import require_ids
from pytest_lmgate.errors import ConfigError, EngineError

# A tokenizer cuts a written text into at most 2 tokens more than were written, measured on three of random tokens.
_OTHERWISE_CUT = 8


def generate(
    runner: Runner,
    prompts: Sequence[Prompt],
    settings: GenerationSettings,
    job: Job,
    *,
    context: int | None,
    has_encoder: bool = False,
) -> list[str]:
    """Generate a text for each prompt.

    In float32 a text depends on neither the batch size nor the other rows, unless two tokens' logits are equal to
    within rounding (about 1e-6 of their size): then the rounding of a batch decides between them.

    Args:
        runner: A model that generates.
        prompts: Texts, or chats as ``(role, content)`` pairs.
        settings: How to decode.
        job: The measurement.
        context: Tokens that prompt and text may have together (with an encoder: each of them); None for no limit.
        has_encoder: Whether an encoder reads the prompts.

    Returns:
        Texts without prompt and special tokens, in the order of the prompts.

    Raises:
        ConfigError: More tokens are asked for than the model can write.
        DataError: A prompt has no token, or is longer than the context leaves room for.
        ModelError: A chat is asked for and the tokenizer has no chat template, or the model cannot generate.
        EngineError: Out of memory with a single row, or the model itself failed.
        NonFiniteError: The logits are NaN or infinite.
    """
    encoder = _encoder(runner.tokenizer, settings, job, context, has_encoder)
    encoded = [PromptIds(row, each, tuple(encoder.encode(each, row))) for row, each in enumerate(prompts)]
    require_ids((each.ids for each in encoded), job.model)
    rows = _Rows(encoded, settings, job.dataset)
    board = _TextBoard(len(prompts), job.partial)
    job.say_resumed(board.done, board.of)
    with runner.measuring():
        longest_first = [rows.prompts[row] for row in rows.order]
        batching = prepared(job.model, rows, lambda: runner.prepare_writing(longest_first, settings), job)

        def run(some: Sequence[int]) -> list[tuple[str, int]]:
            asked = [rows.prompts[row] for row in some]
            return _checked(runner.generate(asked, settings), asked, settings, runner.tokenizer, job.model)

        run_batches(rows, eager(run), board, batching, job)
    return [board.texts[row] for row in range(len(prompts))]


def _checked(
    found: Any, asked: Sequence[PromptIds], settings: GenerationSettings, tokenizer: TokenizerFacts, model: str
) -> list[tuple[str, int]]:
    """Return the texts up to the first stop string, with their numbers of tokens.

    Raises:
        EngineError: They are no such texts, or longer than was asked for.
    """
    if not isinstance(found, list | tuple):
        kind = type(found).__name__
        raise EngineError(f"model {model!r}: expected a list of texts with their numbers of tokens, got {kind}")
    texts, most = [], settings.max_new_tokens
    for prompt, each in zip(asked, found, strict=False):  # the loop counts them
        where = f"model {model!r}: row {prompt.row}"
        match each:
            case (str(text), Integral() as count):
                said = int(count)
            case _:
                raise EngineError(f"{where}: expected a text and its number of tokens, got {each!r:.60}")
        # Other tokens may make the same text, of which a broken character has several.
        own = len(tokenizer.encode(text.replace("\N{REPLACEMENT CHARACTER}", ""), False))
        if said > most or own > most + most // 4 + _OTHERWISE_CUT:
            raise EngineError(
                f"{where}: a text of {said if said > most else own:,} tokens, but {most:,} were asked for "
                "(max_new_tokens): its engine has to end a text there"
            )
        texts.append((cut(text, settings.stop), said or own))
    return texts


def _encoder(
    tokenizer: TokenizerFacts, settings: GenerationSettings, job: Job, context: int | None, has_encoder: bool
) -> PromptEncoder:
    new = settings.max_new_tokens
    make = functools.partial(
        PromptEncoder, tokenizer, job.model, job.dataset, cut=settings.truncate == "left", encodes_whole=has_encoder
    )
    if context is None:
        return make()
    # A decoder begins with a token of its own, a causal model with the last of the prompt.
    if new >= context:
        raise ConfigError(
            f"max_new_tokens: the model {job.model!r} has a context of {context:,} tokens and can write "
            f"{context - 1:,} at most, got {new:,}"
        )
    if has_encoder:
        return make(room=context, limit=f"context {context:,}", remedy="; shorten it, or say truncate='left'")
    limit, remedy = f"context {context:,}, max_new_tokens {new:,}", "; shorten it, lower max_new_tokens, or say "
    return make(room=context - new, limit=limit, remedy=remedy + "truncate='left'")


@dataclass(frozen=True)
class _Rows:
    """Prompts as items of the loop; their lengths are of prompt and text, all beams counted."""

    prompts: Sequence[PromptIds]
    settings: GenerationSettings
    dataset: str
    may_pad = True

    @functools.cached_property
    def lengths(self) -> NDArray[np.int64]:
        tokens = np.array([len(prompt.ids) for prompt in self.prompts], dtype=np.int64)
        return (tokens + self.settings.max_new_tokens) * self.settings.num_beams

    @property
    def reads(self) -> NDArray[np.int64]:
        return np.arange(len(self.prompts))

    @functools.cached_property
    def order(self) -> NDArray[np.int64]:
        return np.argsort(-self.lengths, kind="stable")

    def describe(self, some: Sequence[int]) -> str:
        more = f", and {len(some) - 1} more" if len(some) > 1 else ""
        return f"row {some[0]} of {self.dataset!r}, {len(self.prompts[some[0]].ids):,} tokens{more}"


class _TextBoard:
    """Texts by row as they come in; see `engine.loop.Board`."""

    total = 0.0

    def __init__(self, rows: int, partial: Entry | None) -> None:
        known = {} if partial is None else partial.facts.get("texts", {})
        self.texts = {int(row): str(text) for row, text in known.items() if 0 <= int(row) < rows}
        self.of, self.tokens = rows, 0

    @property
    def done(self) -> int:
        return len(self.texts)

    @property
    def so_far(self) -> str:
        return f"{self.done:,} of {self.of:,} texts"

    @property
    def entry(self) -> Entry:
        return Entry({}, {"texts": {str(row): text for row, text in self.texts.items()}})

    def is_done(self, item: int) -> bool:
        return item in self.texts

    def put(self, items: Sequence[int], results: Sequence[tuple[str, int]]) -> None:
        for row, (text, tokens) in zip(items, results, strict=True):
            self.texts[row] = text
            self.tokens += tokens
