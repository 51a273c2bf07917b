"""A GGUF that is loaded: its tokens, and a runner whose numbers depend on no other row.

llama.cpp chooses the long or the short factors of ``longrope`` by the size of the context, not by the row's length.
So a few tokens are read in a context for the longest row and in one for the shortest. Unless all numbers are the same
bits, each row is read in a context of its own size, which is what transformers computes.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.engines.base import Batching, Drawn, Runner, check_ids
from pytest_lmgate.engines.checkpoints import TokenizerFolder
from pytest_lmgate.engines.llamacpp.library import Context, LlamaCppOptions, Weights
from pytest_lmgate.engines.writing import Decode, drawn, written
from pytest_lmgate.errors import ModelError
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.requests import Request, Requests
from pytest_lmgate.windows.tokens import Placed, PromptIds, TokenizerFacts, continued, require_variables

if TYPE_CHECKING:
    from pytest_lmgate.engines.logits import Logits

# Tokens between two reports of progress, and logits of a comparison, which are there four times: see `Logits`.
_TOKENS, _COMPARED_LOGITS = 2048, 2**24
# Positions whose exponentials a thread makes at a time.
_ROWS = 8
# Tokens of the trial of two contexts, and of which llama.cpp makes contexts whole multiples.
_TRIED, _STEP = 8, 256
_NO_TOKEN = -1  # LLAMA_TOKEN_NULL
_SHOWN = 40


class LlamaCppRunner(Runner):
    """Reads requests and writes texts, one after the other."""

    rereads = False

    def __init__(
        self,
        weights: Weights,
        tokens: Tokens,
        options: LlamaCppOptions,
        *,
        file: Path,
        reopened: Callable[[Path], Runner],
    ) -> None:
        self.file = file  # of several files the first
        self.reopened = reopened  # opens another file of the same kind with the same options
        self._weights, self.tokens, self._options = weights, tokens, options
        self._pool = ThreadPoolExecutor(options.batch_threads)
        self._context: Context | None = None
        self._longest, self._writes, self._is_own_size = 1, False, False
        self.tokenizer = tokens.facts

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        size, order = self._weights.vocabulary_size, requests.order
        check_ids(requests.highest, size, self._weights.name)
        shortest, longest = (int(requests.lengths[order[at]]) for at in (-1, 0))
        remark = self._make_room(requests.make(int(order[0])).ids, shortest, longest)
        if compare:
            return Batching(max(1, min(_TOKENS, _COMPARED_LOGITS // size)), remark=remark)
        return Batching(_TOKENS, remark=remark, dedup_reads=True)

    def score(self, requests: Sequence[Request]) -> list[Floats]:
        return [self._nll(request) for request in requests]

    def distributions(self, requests: Sequence[Request]) -> Logits:
        import torch

        from pytest_lmgate.engines.logits import Logits

        size = self._weights.vocabulary_size
        states = np.empty((sum(len(request.at) for request in requests), size), dtype=np.float32)
        first = 0
        for request in requests:
            for targets, rows, logits in self._read(request):
                states[first + targets] = logits[rows]
            first += len(request.at)
        return Logits(torch.from_numpy(states), None)

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        most = len(prompts[0].ids) + settings.max_new_tokens
        return Batching(_TOKENS, remark=self._make_room(prompts[0].ids, len(prompts[-1].ids), most, writes=True))

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[tuple[str, int, bool]]:
        return [self._write(prompt, settings) for prompt in prompts]

    def sample(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[Drawn]:
        ends, name = self.tokens.ends, self._weights.name
        return [drawn(self._reader(prompt), prompt, settings, ends=ends, model=name) for prompt in prompts]

    def close(self) -> None:
        if self._context is not None:
            self._context.close()
        self._pool.shutdown()
        self._weights.close()

    def _make_room(self, ids: Sequence[int] | Ints, shortest: int, longest: int, *, writes: bool = False) -> str:
        """Make a context for the longest row, or for each row if a trial of `ids` shows other numbers there.

        Return a remark if each row gets a context of its own size; else an empty text.
        """
        self._writes, self._longest, self._is_own_size = writes, longest, True
        alone = None if _rounded(shortest) == _rounded(longest) else self._tried(ids[:_TRIED], shortest)
        self._is_own_size = False
        if alone is None or np.array_equal(alone, self._tried(ids[:_TRIED], longest), equal_nan=True):
            self._fitting(longest)
            return ""
        self._is_own_size = True
        self._fitting(longest)
        return (
            f"model {self._weights.name!r}: its numbers depend on the size of llama.cpp's context (as with longrope), "
            "so each row is read in a context of its own size"
        )

    def _tried(self, ids: Sequence[int] | Ints, tokens: int) -> NDArray[np.float32]:
        """Return the logits after some tokens in a context for so many tokens, shape ``[vocabulary]``."""
        context = self._fitting(tokens)
        context.forget()
        *_, logits = context.read(ids, np.array([len(ids) - 1]))
        next_logits: NDArray[np.float32] = logits[0].copy()
        return next_logits

    def _fitting(self, tokens: int) -> Context:
        """Return the context for a row of so many tokens; it is empty if the last row had another one."""
        shape = _rounded(tokens) if self._is_own_size else self._longest, self._writes
        if self._context is not None and self._context.shape != shape:
            self._context.close()
            self._context = None
        if self._context is None:
            self._context = Context(self._weights, shape[0], self._options, writes=self._writes)
        return self._context

    def _read(self, request: Request) -> Iterator[tuple[Ints, Ints, NDArray[np.float32]]]:
        """Yield logits, part by part, with the numbers of the targets that they predict and the row of each target."""
        context = self._fitting(len(request.ids))
        context.forget()
        positions, row_of = np.unique(request.at, return_inverse=True)
        begin = 0
        for logits in context.read(request.ids[: positions[-1] + 1], positions):
            end = begin + len(logits)
            targets = np.flatnonzero((row_of >= begin) & (row_of < end))
            yield targets, row_of[targets] - begin, logits
            begin = end

    def _nll(self, request: Request) -> Floats:
        nll, is_top = np.empty((2, len(request.targets)))
        for targets, rows, logits in self._read(request):
            parts = [logits[begin : begin + _ROWS] for begin in range(0, len(logits), _ROWS)]
            log_sums = np.concatenate([*self._pool.map(_log_sums, parts)])
            nll[targets] = log_sums[rows] - logits[rows, request.targets[targets]]
            if request.greedy:
                is_top[targets] = logits.argmax(1)[rows] == request.targets[targets]
        return np.stack([nll, is_top], 1) if request.greedy else nll

    def _write(self, prompt: PromptIds, settings: GenerationSettings) -> tuple[str, int, bool]:
        tokens, name = self.tokens, self._weights.name

        def ends(token: int) -> bool:
            return token == tokens.facts.eos or tokens.ends(token)

        return written(self._reader(prompt), prompt, settings, decode=tokens.decode, ends=ends, model=name)

    def _reader(self, prompt: PromptIds) -> Callable[[Sequence[int]], NDArray[np.float32]]:
        """Return a function that reads on in one context; see `written`."""
        context = self._fitting(len(prompt.ids))
        context.forget()
        so_far: list[int] = []

        def read(ids: Sequence[int]) -> NDArray[np.float32]:
            nonlocal context
            so_far.extend(ids)
            if (fitting := self._fitting(len(so_far))) is not context:  # outgrown: read all again in a larger one
                context, ids = fitting, so_far
            *_, logits = context.read(ids, np.array([len(ids) - 1]))
            return logits[0]  # type: ignore[no-any-return]

        return read


def _rounded(tokens: int) -> int:
    return -(-tokens // _STEP) * _STEP


def _log_sums(logits: NDArray[np.float32]) -> Floats:
    """Return the logarithm of the sum of exponentials of each row, shape ``[rows]``."""
    highest = logits.max(1)
    exponentials = logits - highest[:, None]
    np.exp(exponentials, out=exponentials)
    log_sums: Floats = np.log(exponentials.sum(1, dtype=np.float64)) + highest
    return log_sums


@dataclass(frozen=True)
class Tokens:
    """The tokens of a model."""

    facts: TokenizerFacts  # what the planning needs to know
    decode: Decode  # returns the text of generated tokens
    ends: Callable[[int], bool]  # returns whether a token ends a text


def own_tokens(weights: Weights) -> Tokens:
    """Return the tokens of the GGUF's own vocabulary.

    Special tokens that a text names, as ``<s>``, are read as such, as tokenizers of transformers do. `vocabulary` is
    left out, since converters rename unused and added tokens: two models are compared by the ids of the text.
    """
    llama, vocabulary = weights.llama, weights.vocabulary

    def encode(text: str, special: bool) -> list[int]:
        written = text.encode("utf-8", "surrogatepass")
        room = len(written) + 8
        while True:
            ids = (llama.llama_token * room)()
            count = llama.llama_tokenize(vocabulary, written, len(written), ids, room, special, True)
            if count >= 0:
                return list(ids[:count])
            room = -count

    @functools.cache
    def piece(token: int, special: bool) -> bytes:
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            count = llama.llama_token_to_piece(vocabulary, token, buffer, room, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            room = -count

    # Byte by byte: llama_detokenize takes spaces out that the model wrote.
    puts_space = llama.llama_vocab_type(vocabulary) == llama.LLAMA_VOCAB_TYPE_SPM
    puts_space = puts_space and weights.metadata("tokenizer.ggml.add_space_prefix") != "false"

    def spelled(ids: Sequence[int], special: bool) -> list[bytes]:
        parts = [piece(token, special) for token in ids]
        first = next((at for at, part in enumerate(parts) if part), None)
        if puts_space and first is not None:
            parts[first] = parts[first].removeprefix(b" ")
        return parts

    def decode(ids: Sequence[int], skip_special: bool) -> str:
        return b"".join(spelled(ids, not skip_special)).decode(errors="replace")

    def placed(text: str, special: bool) -> Placed | None:
        ids = encode(text, special)
        parts, whole = spelled(ids, True), text.encode("utf-8", "surrogatepass")
        return Placed(ids, *_characters(whole, [len(part) for part in parts])) if b"".join(parts) == whole else None

    def shown(token: int) -> str:
        return piece(token, True).decode(errors="replace")

    named = {
        name: token
        for name in ("bos", "eos", "eot", "sep", "pad", "mask")
        if (token := int(getattr(llama, f"llama_vocab_{name}")(vocabulary))) != _NO_TOKEN
    }
    facts = TokenizerFacts(
        encode,
        named.get("bos"),
        named.get("eos"),
        bool(llama.llama_vocab_get_add_bos(vocabulary)),
        shown,
        placed,
        lambda ids: decode(ids, False),
        special=frozenset(named.values()),
        chat=_chat(weights, {name: shown(token) for name, token in named.items()}),
    )
    return Tokens(facts, decode, lambda token: bool(llama.llama_vocab_is_eog(vocabulary, token)))


def _characters(text: bytes, lengths: Sequence[int]) -> tuple[Ints, Ints]:
    """Return where the characters of each part of a text in UTF-8 begin and end, from the parts' lengths in bytes."""
    begins_one = (np.frombuffer(text, dtype=np.uint8) & 0xC0) != 0x80
    before = np.append(0, np.cumsum(begins_one))  # characters that begin before each byte
    ends = np.cumsum(lengths, dtype=np.int64)
    begins = ends - lengths
    first = before[np.minimum(begins + 1, len(text))] - 1
    return np.where(lengths, first, before[begins]), before[ends]


def tokens_of_folder(folder: TokenizerFolder, weights: Weights) -> Tokens:
    """Return the tokens of a tokenizer's folder, which must cut every text as the GGUF does."""
    from pytest_lmgate.engines.tokenizers import decoded, load_tokenizer, tokenizer_facts

    tokenizer = load_tokenizer(folder)
    given, own_ids = tokenizer_facts(tokenizer), own_tokens(weights)

    def check(ids: Sequence[int], text: str, special: bool) -> None:
        if list(ids) == (its := list(own_ids.facts.encode(text, special))):
            return
        pairs = zip(ids, its, strict=False)
        at = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(its)))
        before = own_ids.decode(its[:at], True)[-_SHOWN:]
        where = f"after {before!r}" if before else "at the beginning"
        raise ModelError(
            f"model {weights.name!r}: the tokenizer in {folder.path} and the GGUF tokenize a text differently: token "
            f"{at} {where} is {_shown(ids, at, given)} in the folder and {_shown(its, at, own_ids.facts)} in the GGUF; "
            "give the folder that the GGUF was made from, or leave tokenizer: out to use the GGUF's own tokens"
        )

    facts = checked_facts(given, check)
    facts.encode("a", True)
    return Tokens(facts, partial(decoded, tokenizer), own_ids.ends)


def checked_facts(given: TokenizerFacts, check: Callable[[Sequence[int], str, bool], None]) -> TokenizerFacts:
    """Return a tokenizer that hands token ids, their text and whether special tokens were added to `check`."""

    def encode(text: str, special: bool) -> Sequence[int]:
        ids = list(given.encode(text, special))
        check(ids, text, special)
        return ids

    def placed(text: str, special: bool) -> Placed | None:
        spans = given.placed(text, special)
        if spans is not None:
            check(spans.ids, text, special)
        return spans

    return replace(given, encode=encode, placed=placed, target=None)


def _shown(ids: Sequence[int], at: int, facts: TokenizerFacts) -> str:
    return f"{ids[at]} ({facts.decode(ids[at])!r})" if at < len(ids) else "none"


def _chat(weights: Weights, special: Mapping[str, str]) -> Callable[..., str] | None:
    template = weights.metadata("tokenizer.chat_template")
    if template is None:
        return None

    def chat(messages: Sequence[Mapping[str, str]], **variables: Any) -> str:
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        require_variables(template, variables)
        goes_on, named = messages[-1]["role"] == "assistant", (special.get("eos", ""), special.get("bos", ""))
        formatter: Any = Jinja2ChatFormatter(template, *named, add_generation_prompt=not goes_on)
        formatter.strftime_now = variables.pop("strftime_now", formatter.strftime_now)

        def render(turns: Sequence[Mapping[str, str]]) -> str:
            return str(formatter(messages=list(turns), **variables).prompt)

        return continued(render, messages) if goes_on else render(messages)

    return chat
