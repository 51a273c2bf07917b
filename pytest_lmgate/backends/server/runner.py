"""A served model: several requests at once, their answers checked."""

from __future__ import annotations

__all__ = ["ServerRunner"]

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.backends.base import Batching, Runner
from pytest_lmgate.backends.server.client import BadAnswer, Client
from pytest_lmgate.backends.server.likelihoods import Proven, decoding, proven_way
from pytest_lmgate.backends.server.tokens import ServedTokens
from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.data.requests.requests import Request, Requests
from pytest_lmgate.data.tokenization.prompting import PromptIds

T = TypeVar("T")
R = TypeVar("R")
# Requests of a batch for each that is on its way, so that the slowest of a batch keeps few waiting.
_ROUNDS = 4
# Tokens that llama-cpp-python writes more than it was asked for, to end no text within a character: 11 of a model of
# random weights.
_TO_A_CHARACTER = 16
# One request in so many is followed by a part of the experiment, and so is the last: a server may turn bad on the way.
_TRIED_AGAIN = 100


class ServerRunner(Runner):
    """Asks a server for likelihoods and texts."""

    is_tried = True  # see `proven_way`

    def __init__(self, client: Client, tokens: ServedTokens) -> None:
        self._client, self._tokens = client, tokens
        self._at_once = client.settings.concurrency
        self._pool = ThreadPoolExecutor(self._at_once)
        self._proven: Proven | None = None
        self._takes_ids: bool | None = None
        self._has_scored = False
        self.tokenizer = tokens.facts

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Make a part of the experiment again after the last likelihood.

        Raises:
            WrongNumbers: The server answers otherwise than at the beginning.
            EngineError: It cannot be reached.
        """
        self._has_scored = False
        yield
        if self._has_scored:
            self._try_again()

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        """Find out, once, how the server gives likelihoods.

        Raises:
            ModelError: It does not.
            EngineError: It cannot be reached.
        """
        if self._proven is None:
            self._proven = proven_way(self._client, self._tokens)
        return self._batching(requests.lengths.tolist())

    def score(self, requests: Sequence[Request]) -> list[Floats]:
        """Return the NLLs of the requests' targets.

        Raises:
            BadAnswer: An answer is not what it should be.
            EngineError: The server cannot be reached.
            ModelError: A request cannot be sent as text.
        """
        return self._together(self._nll, requests)

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        """Find out, once, whether the server takes token ids.

        Raises:
            EngineError: The server cannot be reached.
        """
        if self._takes_ids is None:
            self._takes_ids = self._reads_ids()
        return self._batching([len(prompt.ids) + settings.max_new_tokens for prompt in prompts])

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[tuple[str, int]]:
        """Write a text for each prompt.

        Raises:
            BadAnswer: An answer is not what it should be.
            EngineError: The server cannot be reached.
            ModelError: A prompt cannot be sent as text.
        """
        return self._together(partial(self._write, settings=settings), prompts)

    def close(self) -> None:
        """Close all connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _batching(self, lengths: Iterable[int]) -> Batching:
        return Batching(_ROUNDS * self._at_once * max(lengths, default=1))

    def _together(self, do: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Do several things at once; the first that fails cancels those that have not begun."""
        futures = [self._pool.submit(do, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _nll(self, request: Request) -> Floats:
        assert self._proven is not None
        last = int(np.argmax(request.at))
        prompt = np.append(request.ids[: request.at[last] + 1], request.targets[last])
        assert np.array_equal(prompt[request.at + 1], request.targets)
        self._has_scored = True
        if random.randrange(_TRIED_AGAIN) == 0:
            self._try_again()
        found: Floats = -self._proven.way.ask(self._client, self._tokens, prompt.tolist()).logprobs[request.at + 1]
        if np.isnan(found).any():
            raise self._client.wrong(
                "it gives no likelihood of the first token after a BOS, which this protocol scores; use a protocol "
                "that does not score it, such as sliding, or another server, such as vLLM"
            )
        return found

    def _try_again(self) -> None:
        assert self._proven is not None
        self._proven.try_again(self._client, self._tokens)

    def _reads_ids(self) -> bool:
        ids = list(self._tokens.facts.encode("the", True))
        try:
            answer = self._client.completion({"prompt": ids, "max_tokens": 1, "temperature": 0.0}, tries=True)
        except BadAnswer:
            return False
        return _count(answer, "prompt_tokens") == len(ids)

    def _write(self, prompt: PromptIds, settings: GenerationSettings) -> tuple[str, int]:
        client, ids = self._client, list(prompt.ids)
        body = {
            "prompt": ids if self._takes_ids else self._tokens.prompt_text(ids),
            "max_tokens": settings.max_new_tokens,
            "return_token_ids": True,  # vLLM: so that special tokens are left out as the tokenizer does
            **decoding(settings, prompt.row),
        }
        answer = client.completion(body)
        choice, read = answer["choices"][0], _count(answer, "prompt_tokens")
        if read != len(ids):
            raise client.wrong(
                f"row {prompt.row}: the prompt has {len(ids):,} tokens by tokenizer:, but the server counted "
                f"{read if read is not None else 'none (no usage.prompt_tokens)'}: expected the server's own tokenizer"
            )
        if choice.get("finish_reason") not in ("stop", "length"):
            raise client.wrong(
                f"row {prompt.row}: expected finish_reason stop or length, got {choice.get('finish_reason')!r}"
            )
        written = choice.get("token_ids")
        text = self._tokens.text(written, True) if isinstance(written, list) else choice.get("text")
        if not isinstance(text, str):
            raise client.wrong(f"row {prompt.row}: expected a text, got {text!r:.40}")
        if isinstance(written, list):
            return text, len(written)
        tokens, most = _count(answer, "completion_tokens") or 0, settings.max_new_tokens
        return self._tokens.as_decoded(text), tokens if tokens > most + _TO_A_CHARACTER else min(tokens, most)


def _count(answer: dict[str, Any], which: str) -> int | None:
    usage = answer.get("usage")
    found = usage.get(which) if isinstance(usage, dict) else None
    return found if isinstance(found, int) else None
