"""The engine server: a model behind an OpenAI-compatible HTTP server, whose answers are checked."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.engines.base import SAMPLING, Backend, Batching, Drawn, Model, ModelEntry, Runner
from pytest_lmgate.engines.checkpoints import TokenizerFolder
from pytest_lmgate.engines.server.client import BadAnswer, Client, ServerSettings
from pytest_lmgate.engines.server.likelihoods import Proven, ServedTokens, decoding, proven_way, tokens_of_folder
from pytest_lmgate.engines.tokenizers import facts_of
from pytest_lmgate.engines.writing import ended_text
from pytest_lmgate.errors import ConfigError, ModelError, OfflineError
from pytest_lmgate.identity import versions
from pytest_lmgate.settings.entries import ServerSpec
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.requests import Request, Requests
from pytest_lmgate.windows.tokens import PromptIds

if TYPE_CHECKING:
    from pytest_lmgate.engines.server.process import Command, ServerProcess

# What to do instead of each.
_UNSUPPORTED_KEYS = {
    "path": "give server: and tokenizer:",
    "hub": "give server: and tokenizer:",
    "adapter": "have the server load the adapter as a model with its own name",
    "dtype": "the server decides it",
    "device": "the server decides it",
    "trust_remote_code": "only the tokenizer is read here, and its code is not run",
    "pickle_weights": "no weights are read here",
    "batch_size": "the server makes its batches of the requests on their way: set load: {concurrency: 8}",
}
# A prompt ends with the last target, and a server has to write a token of its own.
_TAKEN = 2
_NO_LIMIT = 10**7  # tokenizers without a limit have 1e30
# Requests of a batch for each that is on its way, so that the slowest of a batch keeps few waiting.
_ROUNDS = 4
# llama-cpp-python may write more tokens than asked for, to end no text within a character: 11 of a random model.
_TO_A_CHARACTER = 16
# One request in so many is followed by a part of the experiment, and so is the last: a server may change on the way.
_TRIED_AGAIN = 100
T = TypeVar("T")
R = TypeVar("R")


class Server(Backend):
    """Models behind a server, with the tokens of a tokenizer's folder."""

    name = "server"
    offers = frozenset({"score", "generate", "greedy", "sample"})

    def describe(self, entry: ModelEntry) -> Model:
        spec, name = entry.spec, entry.name
        entry.refuse_keys(self.name, _UNSUPPORTED_KEYS)
        settings = ServerSettings.of(entry)
        if spec.tokenizer is None:
            raise ConfigError(
                f"models.{name}.tokenizer: a served model needs the folder or hub id of its tokenizer, since windows "
                "and prompts are cut into tokens here"
            )
        folder = TokenizerFolder.of(entry)
        files = folder.files
        command = _command(entry, spec.server) if isinstance(spec.server, ServerSpec) else None
        identity = {"server": settings.url} if command is None else command.content
        snapshot, digests = entry.hash_files(files if command is None else {**files, **command.files})
        content = {**digests, **identity, "model": settings.model, **folder.ingredients}
        if settings.chat:
            content["chat"] = f"by the server, reasoning_effort {settings.reasoning_effort}"
        is_known = spec.revision is not None or (
            command is not None and bool(command.spec.content or command.spec.image)
        )
        context = _context(entry, settings, folder.path)

        def open_() -> Runner:
            tokens = tokens_of_folder(folder)
            if command is not None:
                return _started(command, entry, settings, context, tokens)
            _require_allowed(entry, settings)
            client = Client(name, settings)
            if settings.context is not None:
                _require_room(client, settings.context)
            return ServerRunner(client, tokens)

        return Model(
            name,
            open_,
            context=context - _TAKEN,
            # Only the user knows whether another build answers at the same address.
            content=content if is_known else None,
            not_kept=""
            if is_known or command is None
            else "its server has neither content:, the files that decide its numbers, nor image:",
            process="" if command is None else json.dumps([entry.run, repr(command), content], sort_keys=True),
            runtime={
                "device": "server",
                **({} if command is None else command.runtime),
                **versions(["transformers", "tokenizers"]),
            },
            offers=self.offers,
            honours=SAMPLING,
            device="server",
            dtype="bfloat16",  # it may be
            files=snapshot,
            changed=lambda: sorted(snapshot.moved),
            tokenizer=partial(facts_of, folder),
        )


def _command(entry: ModelEntry, spec: ServerSpec) -> Command:
    if os.name != "posix":
        raise ConfigError(
            f"models.{entry.name}.server: expected an address on this system, because only Linux and macOS have the "
            "groups of processes by which a server and all that it started can be ended"
        )
    from pytest_lmgate.engines.server.process import Command

    return Command.of(entry, spec)


def _started(
    command: Command, entry: ModelEntry, settings: ServerSettings, context: int, tokens: ServedTokens
) -> ServerRunner:
    from pytest_lmgate.engines.server.process import ServerProcess

    command.require()
    process = ServerProcess(command, entry, settings)
    try:
        with process.use() as client:
            _require_room(client, context)
            return ServerRunner(client, tokens, process)
    except BaseException:
        process.close()
        raise


def _require_room(client: Client, room: int) -> None:
    """Refuse a server that lacks the model, or whose context is shorter than the entry's."""
    served = client.served_context()
    if served is not None and served < room:
        raise ConfigError(
            f"models.{client.name}.load.context: expected {served:,} at most, as the server, got {room:,}"
        )


def _require_allowed(entry: ModelEntry, settings: ServerSettings) -> None:
    if entry.offline and not settings.is_local:
        raise OfflineError(
            f"model {entry.name!r}: the server {settings.url} is not on this machine, and --lmgate-offline forbids the "
            "network; remove the option, or forward a port of localhost to it"
        )


def _context(entry: ModelEntry, settings: ServerSettings, folder: Path) -> int:
    """Return how many tokens prompt and text may have together, by the entry, the server or the tokenizer."""
    if settings.context is not None:
        return settings.context
    if settings.url and not entry.looks:
        _require_allowed(entry, settings)
        with contextlib.closing(Client(entry.name, settings)) as client:
            served = client.served_context()
        if served is not None:
            return served
    try:
        length = json.loads((folder / "tokenizer_config.json").read_bytes()).get("model_max_length")
    except (OSError, ValueError, AttributeError):
        length = None
    if isinstance(length, int) and _TAKEN < length < _NO_LIMIT:
        return length
    if entry.looks and settings.url:
        return _NO_LIMIT  # the server may know
    raise ModelError(
        f"model {entry.name!r}: neither its server nor its tokenizer gives its context length; set it in "
        f"models.{entry.name}: load: {{context: 2048}}"
    )


class ServerRunner(Runner):
    """Asks a server for likelihoods and texts, several requests at once. `process` is the server if it is ours."""

    is_tried = True  # see `proven_way`

    def __init__(self, client: Client, tokens: ServedTokens, process: ServerProcess | None = None) -> None:
        self._client, self._tokens, self._process = client, tokens, process
        self._at_once = client.settings.concurrency
        self._pool = ThreadPoolExecutor(self._at_once)
        self._proven: Proven | None = None
        self._takes_ids: bool | None = None
        self._has_scored = False
        self.tokenizer = tokens.facts

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Repeat a part of the experiment after the last likelihood: `WrongNumbers` if the server has changed."""
        self._has_scored = False
        with contextlib.nullcontext(self._client) if self._process is None else self._process.use() as client:
            if client is not self._client:  # it was started again
                self._client, self._proven, self._takes_ids = client, None, None
            yield
            if self._has_scored and self._proven is not None:
                self._proven.try_again()

    @property
    def settings(self) -> ServerSettings:
        """How to talk to the server; one that the session started has another address each time."""
        return self._client.settings

    def through(self, ask: Callable[..., dict[str, Any]]) -> ServerRunner:
        """Return what asks the same server, which takes the same prompts, by a function around `Client.ask`."""
        client = copy.copy(self._client)
        # A server that the session started has another client each time.
        vars(client).update(ask=partial(ask, lambda *what, **how: self._client.ask(*what, **how)), close=lambda: None)
        runner = ServerRunner(client, self._tokens)
        runner._takes_ids = self._takes_ids
        return runner

    def refusal(self, **fields: Any) -> str:
        """Return why the server refuses a request with these fields; empty if it takes it."""
        prompt = {"messages": [{"role": "user", "content": "the"}]} if self.settings.chat else {"prompt": "the"}
        try:
            self._client.completion({**prompt, "max_tokens": 1, "temperature": 0.0, **fields}, tries=True)
        except BadAnswer as error:
            return self._client.reason(error)
        return ""

    def reads_ids(self) -> bool:
        """Return whether the server takes token ids for a prompt."""
        if self._takes_ids is None:
            self._takes_ids = self._reads_ids()
        return self._takes_ids

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        if self._proven is None:
            self._proven = proven_way(self._client, self._tokens)
        return self._batching(requests.lengths.tolist())

    def score(self, requests: Sequence[Request]) -> list[Floats]:
        return self._together(self._nll, requests)

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        if not self.settings.chat:
            self.reads_ids()
        return self._batching([len(prompt.ids) + settings.max_new_tokens for prompt in prompts])

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[tuple[str, int, bool]]:
        write = self._answer if self.settings.chat else self._write
        return self._together(partial(write, settings=settings), prompts)

    def sample(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[Drawn]:
        return self._together(partial(self._draw, settings=settings), prompts)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        (self._process or self._client).close()

    def _batching(self, lengths: Iterable[int]) -> Batching:
        return Batching(_ROUNDS * self._at_once * max(lengths, default=1))

    def _together(self, do: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Do several things at once; the first failure cancels those that have not begun."""
        futures = [self._pool.submit(do, item) for item in items]
        try:
            answers = [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
        if self._process is not None:
            self._process.require_own_answers()
        return answers

    def _nll(self, request: Request) -> Floats:
        assert self._proven is not None
        last = int(np.argmax(request.at))
        prompt = np.append(request.ids[: request.at[last] + 1], request.targets[last])
        assert np.array_equal(prompt[request.at + 1], request.targets)
        self._has_scored = True
        if random.randrange(_TRIED_AGAIN) == 0:
            self._proven.try_again()
        reading = self._proven.way.ask(prompt.tolist())
        found: Floats = -reading.logprobs[request.at + 1]
        if np.isnan(found).any():
            raise self._client.wrong(
                "it gives no likelihood of the first token after a BOS, which this protocol scores; use a protocol "
                "that does not score it, such as sliding, or another server, such as vLLM"
            )
        if not request.greedy:
            return found
        tops = [reading.tops[at + 1] for at in request.at]
        if not all(tops):
            raise self._client.wrong(
                "it does not say which token is the most likely: expected it under top_logprobs; use another server, "
                "such as vLLM"
            )
        return np.stack([found, [-nll >= max(top) for nll, top in zip(found, tops, strict=True)]], 1)

    def _reads_ids(self) -> bool:
        ids = list(self._tokens.facts.encode("the", True))
        try:
            answer = self._client.completion({"prompt": ids, "max_tokens": 1, "temperature": 0.0}, tries=True)
        except BadAnswer:
            return False
        return _count(answer, "prompt_tokens") == len(ids)

    def _write(self, prompt: PromptIds, settings: GenerationSettings) -> tuple[str, int, bool]:
        answer = self._completed(prompt, settings)
        choice = answer["choices"][0]
        written, has_ended = choice.get("token_ids"), choice["finish_reason"] == "stop"
        if isinstance(written, list):
            decode, eos = self._tokens.text, self.tokenizer.eos
            text, count, stopped = ended_text(written, settings.stop, decode=decode, ends=lambda token: token == eos)
            return text, count, stopped or has_ended
        text = choice.get("text")
        if not isinstance(text, str):
            raise self._client.wrong(f"{prompt.place}: expected a text, got {text!r:.40}")
        text, stopped = self._tokens.until_stop(self._tokens.as_decoded(text), settings.stop)
        return text, _written(answer, settings), stopped or has_ended

    def _draw(self, prompt: PromptIds, settings: GenerationSettings) -> Drawn:
        choice = self._completed(prompt, settings, logprobs=1)["choices"][0]
        ids, given = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
        if not isinstance(ids, list) or not isinstance(given, list) or len(ids) != len(given):
            raise self._client.wrong(
                f"{prompt.place}: expected ids of the tokens that it drew (token_ids) and as many token_logprobs, "
                f"got {ids!r:.40} and {given!r:.40}: have another engine write the texts, or serve the model with vLLM"
            )
        return ids, [-value for value in given]

    def _completed(self, prompt: PromptIds, settings: GenerationSettings, **more: Any) -> dict[str, Any]:
        """Return the server's answer to a prompt; it must have counted as many tokens as the prompt has."""
        client, ids = self._client, list(prompt.ids)
        body = {
            "prompt": ids if self._takes_ids else self._tokens.prompt_text(ids),
            "max_tokens": settings.max_new_tokens,
            "return_token_ids": True,  # of vLLM: the tokenizer leaves out special tokens
            **decoding(settings, prompt.row),
            **more,
        }
        answer = client.completion(body)
        read = _count(answer, "prompt_tokens")
        if read != len(ids):
            raise client.wrong(
                f"{prompt.place}: the prompt has {len(ids):,} tokens by tokenizer:, but the server counted "
                f"{read if read is not None else 'none (no usage.prompt_tokens)'}: expected the server's own tokenizer"
            )
        self._has_ended(answer["choices"][0], prompt)
        return answer

    def _answer(self, prompt: PromptIds, settings: GenerationSettings) -> tuple[str, int, bool]:
        """Have the server answer a chat by its own template; its reasoning is not a part of the text."""
        client, turns = self._client, prompt.prompt
        if isinstance(turns, str) or settings.truncate == "left":
            raise ConfigError(
                f"models.{client.name}.load.chat: the server takes chats and makes their tokens itself: set chat: true "
                "(or messages:) in the dataset, without truncate: left; or remove chat: from load:"
            )
        body: dict[str, Any] = {
            "messages": [{"role": role, "content": content} for role, content in turns],
            "max_tokens": settings.max_new_tokens,
            **decoding(settings, prompt.row),
        }
        if turns[-1][0] == "assistant":
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        if prompt.variables:
            body["chat_template_kwargs"] = dict(prompt.variables)
        if client.settings.reasoning_effort is not None:
            body["reasoning_effort"] = client.settings.reasoning_effort
        answer = client.completion(body)
        choice = answer["choices"][0]
        has_ended, message = self._has_ended(choice, prompt), choice.get("message")
        text = message.get("content") if isinstance(message, dict) else message
        if text is None and isinstance(message, dict):
            text = ""  # it has only reasoned
        if not isinstance(text, str):
            raise client.wrong(f"{prompt.place}: expected a message with content, got {message!r:.40}")
        text, stopped = self._tokens.until_stop(text, settings.stop)
        return text, _written(answer, settings), stopped or has_ended

    def _has_ended(self, choice: Mapping[str, Any], prompt: PromptIds) -> bool:
        """Return whether a text ended by itself, or refuse one that ended otherwise."""
        if (reason := choice.get("finish_reason")) not in ("stop", "length"):
            raise self._client.wrong(f"{prompt.place}: expected finish_reason stop or length, got {reason!r}")
        return bool(reason == "stop")


def _written(answer: dict[str, Any], settings: GenerationSettings) -> int:
    """Return how many tokens a server has written; 0 if it does not say."""
    tokens, most = _count(answer, "completion_tokens") or 0, settings.max_new_tokens
    return tokens if tokens > most + _TO_A_CHARACTER else min(tokens, most)


def _count(answer: dict[str, Any], which: str) -> int | None:
    usage = answer.get("usage")
    tokens_used = usage.get(which) if isinstance(usage, dict) else None
    return tokens_used if isinstance(tokens_used, int) else None
