"""A GGUF that is loaded. A number depends on no other row: rows share a batch or a context only if no bit changes.

llama.cpp chooses the long or the short factors of ``longrope`` by the size of the context, not by the row's length.
So a few tokens are read in a context for the longest row and in one for the shortest. Unless all numbers are the same
bits, each row is read in a context of its own size, which is what transformers computes.
"""

from __future__ import annotations

__all__ = ["LlamaCppRunner"]

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.backends.base import Batching, OutOfMemory, Runner
from pytest_lmgate.backends.llamacpp.library import Context, Weights, batch_tokens
from pytest_lmgate.backends.llamacpp.options import LoadOptions
from pytest_lmgate.backends.llamacpp.together import Together, planned
from pytest_lmgate.backends.llamacpp.tokens import Tokens
from pytest_lmgate.backends.vocabulary import check_ids
from pytest_lmgate.backends.writing import written
from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.data.requests.requests import Request, Requests
from pytest_lmgate.data.tokenization.prompting import PromptIds

if TYPE_CHECKING:
    from pytest_lmgate.backends.divergence import Logits

# Tokens between two reports of progress, and logits of a comparison, which are there four times: see `Logits`.
_TOKENS, _COMPARED_LOGITS = 2048, 2**24
# Positions whose exponentials a thread makes at a time.
_ROWS = 8
# Tokens of the trial of two contexts, and of which llama.cpp makes contexts whole multiples.
_TRIED, _STEP = 8, 256


class LlamaCppRunner(Runner):
    """Reads requests through llama.cpp's batches and writes texts."""

    def __init__(self, weights: Weights, tokens: Tokens, options: LoadOptions) -> None:
        self._weights, self._tokens, self._options = weights, tokens, options
        self._pool = ThreadPoolExecutor(options.batch_threads)
        self._context: Context | None = None
        self._together = Together(0, 1)
        self._longest, self._writes, self._is_own_size = 1, False, False
        self.tokenizer = tokens.facts

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        """Make room for the longest request, or for several that are read together.

        Raises:
            ModelError: A token id is beyond the vocabulary.
            OutOfMemory: The longest request does not fit.
        """
        size = self._weights.vocabulary_size
        check_ids(requests.highest, size, self._weights.name)
        lengths, order = requests.lengths[requests.order], requests.order
        batch = self._options.batch(batch_tokens(self._weights))
        self._together = Together(0, 1) if compare else planned(lengths, batch)
        longest, ends = requests.make(int(order[0])).ids, (int(lengths[-1]), int(lengths[0]))
        try:
            remark = self._make_room(longest, *ends)
        except OutOfMemory:
            self._together = Together(0, 1)
            remark = self._make_room(longest, *ends)
        if compare:
            return Batching(max(1, min(_TOKENS, _COMPARED_LOGITS // size)), remark=remark)
        return Batching(self._together.budget(_TOKENS), remark=remark, reads_once=True)

    def score(self, requests: Sequence[Request]) -> list[Floats]:
        """Return the NLLs of the requests' targets."""
        return self._together.read(requests, self._nll, self._nll_together)

    def distributions(self, requests: Sequence[Request]) -> Logits:
        """Return the logits that predict the requests' targets, whole."""
        import torch

        from pytest_lmgate.backends.divergence import Logits

        size = self._weights.vocabulary_size
        found = np.empty((sum(len(request.at) for request in requests), size), dtype=np.float32)
        first = 0
        for request in requests:
            for targets, rows, logits in self._read(request):
                found[first + targets] = logits[rows]
            first += len(request.at)
        return Logits(torch.from_numpy(found), None)

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        """Make room for the longest prompt and its text.

        Raises:
            OutOfMemory: The longest prompt does not fit.
        """
        self._together = Together(0, 1)
        most = len(prompts[0].ids) + settings.max_new_tokens
        return Batching(_TOKENS, remark=self._make_room(prompts[0].ids, len(prompts[-1].ids), most, writes=True))

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[tuple[str, int]]:
        """Write one text for each prompt, one after the other.

        Raises:
            NonFiniteError: The logits are NaN or infinite.
        """
        return [self._write(prompt, settings) for prompt in prompts]

    def close(self) -> None:
        """Give the memory back."""
        if self._context is not None:
            self._context.close()
        self._pool.shutdown()
        self._weights.close()

    def _make_room(self, ids: Sequence[int] | Ints, shortest: int, longest: int, *, writes: bool = False) -> str:
        """Make a context for the longest row, unless rows of other lengths have other numbers there.

        Args:
            ids: Tokens for the trial.
            shortest: Tokens of the shortest row.
            longest: Tokens of the longest row.
            writes: Whether texts are to be written.

        Returns:
            A remark where each row gets a context of its own size; else an empty text.
        """
        self._writes, self._longest, self._is_own_size = writes, longest, True
        alone = None if _rounded(shortest) == _rounded(longest) else self._tried(ids[:_TRIED], shortest)
        self._is_own_size = False
        if alone is None or np.array_equal(alone, self._tried(ids[:_TRIED], longest), equal_nan=True):
            self._fitting(longest)
            return ""
        self._is_own_size, self._together = True, Together(0, 1)
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
        found: NDArray[np.float32] = logits[0].copy()
        return found

    def _fitting(self, tokens: int) -> Context:
        """Return the context of a row of so many tokens, which has read nothing if the one before was another."""
        shape = _rounded(tokens) if self._is_own_size else self._longest, self._together.rows, self._writes
        if self._context is not None and self._context.shape != shape:
            self._context.close()
            self._context = None
        if self._context is None:
            room, sequences, writes = shape
            self._context = Context(self._weights, room, self._options, sequences=sequences, writes=writes)
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
        nll = np.empty(len(request.targets))
        for targets, rows, logits in self._read(request):
            nll[targets] = self._log_sums(logits)[rows] - logits[rows, request.targets[targets]]
        return nll

    def _nll_together(self, requests: Sequence[Request]) -> list[Floats]:
        context = self._fitting(self._together.tokens)
        at, row_of = zip(*(np.unique(request.at, return_inverse=True) for request in requests), strict=True)
        logits = context.read_together([r.ids[: p[-1] + 1] for r, p in zip(requests, at, strict=True)], at)
        sums, begin, found = self._log_sums(logits), 0, []
        for request, positions, own in zip(requests, at, row_of, strict=True):
            rows = begin + own
            found.append(sums[rows] - logits[rows, request.targets])
            begin += len(positions)
        return found

    def _log_sums(self, logits: NDArray[np.float32]) -> Floats:
        """Return the logarithm of the sum of exponentials of each row, shape ``[rows]``."""
        parts = [logits[begin : begin + _ROWS] for begin in range(0, len(logits), _ROWS)]
        return np.concatenate([*self._pool.map(_log_sums, parts)])

    def _write(self, prompt: PromptIds, settings: GenerationSettings) -> tuple[str, int]:
        context = self._fitting(len(prompt.ids))
        context.forget()
        so_far: list[int] = []

        def read(ids: Sequence[int]) -> NDArray[np.float32]:
            nonlocal context
            so_far.extend(ids)
            if (fitting := self._fitting(len(so_far))) is not context:  # read again by what is now its length
                context, ids = fitting, so_far
            *_, logits = context.read(ids, np.array([len(ids) - 1]))
            return logits[0]  # type: ignore[no-any-return]

        text, ends = self._tokens.text, self._tokens.ends
        return written(read, prompt, settings, text=text, ends=ends, model=self._weights.name)


def _rounded(tokens: int) -> int:
    return -(-tokens // _STEP) * _STEP


def _log_sums(logits: NDArray[np.float32]) -> Floats:
    highest = logits.max(1)
    exponentials = logits - highest[:, None]
    np.exp(exponentials, out=exponentials)
    found: Floats = np.log(exponentials.sum(1, dtype=np.float64)) + highest
    return found
