"""llama.cpp's library: a model and a context that reads tokens, and what llama.cpp says when it fails.

Its chatter goes nowhere: while one of these functions runs, its warnings and errors are collected for the message of
an exception. Nothing else of this package imports llama_cpp.
"""

from __future__ import annotations

__all__ = ["Context", "Weights", "batch_tokens", "built_with", "library"]

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.backends.base import OutOfMemory
from pytest_lmgate.backends.llamacpp.options import LoadOptions
from pytest_lmgate.errors import EngineError, ModelError

Logits = NDArray[np.float32]
# Logits that llama.cpp holds at a time.
_LOGIT_BYTES = 2**29
_BATCH = 512
_FLOAT32 = 0  # LLAMA_FTYPE_ALL_F32
_WARNING, _ERROR, _CONTINUED = 3, 4, 5  # ggml_log_level
_OUT_OF_MEMORY = ("failed to allocate", "out of memory", "unable to allocate", "failed to fit")


@functools.cache
def library(model: str) -> Any:
    """Return the module ``llama_cpp``, which the model of this name needs.

    Raises:
        ModelError: It is not installed.
    """
    try:
        import llama_cpp
    except ImportError as error:
        raise ModelError(
            f"model {model!r}: a GGUF runs with llama.cpp, but llama-cpp-python cannot be imported ({error}): "
            "pip install 'pytest-lmgate[gguf]'"
        ) from error
    with _listening(llama_cpp):
        llama_cpp.llama_backend_init()
    return llama_cpp


def built_with(model: str) -> str:
    """Return what llama.cpp was compiled for, as in ``CPU : SSE3 = 1 | AVX2 = 1``: another build rounds otherwise."""
    llama = library(model)
    with _listening(llama):
        found: bytes = llama.llama_print_system_info()
    return found.decode().strip()


@contextlib.contextmanager
def _listening(llama: Any) -> Iterator[list[str]]:
    """Collect llama.cpp's warnings and errors, and print nothing."""
    said: list[str] = []
    last = [0]

    @llama.llama_log_callback  # type: ignore[untyped-decorator]
    def listen(level: int, text: bytes, _: object) -> None:
        last[0] = last[0] if level == _CONTINUED else level
        if last[0] in (_WARNING, _ERROR):
            said.append(text.decode(errors="replace"))

    before, data = llama.llama_log_callback(), ctypes.c_void_p()
    llama.llama_log_get(ctypes.byref(before), ctypes.byref(data))
    llama.llama_log_set(listen, ctypes.c_void_p(0))
    try:
        yield said
    finally:
        llama.llama_log_set(before, data)


class Weights:
    """A GGUF that is open.

    Args:
        name: The model's name, for messages.
        file: The file; of several, the first.
        options: How to load it; None reads metadata and vocabulary alone.

    Raises:
        ModelError: It is no GGUF, cut short, or of an architecture that llama.cpp does not know.
        OutOfMemory: The weights do not fit.
    """

    def __init__(self, name: str, file: Path, options: LoadOptions | None = None) -> None:
        self.name, self.llama = name, library(name)
        params = self.llama.llama_model_default_params()
        params.vocab_only = options is None
        if options is not None:
            options.fill_model(params)
        with _listening(self.llama) as said:
            self.pointer = self.llama.llama_model_load_from_file(str(file).encode(), params)
        if not self.pointer:
            details = _reason(said)
            if any(phrase in details for phrase in _OUT_OF_MEMORY):
                raise OutOfMemory("the device", details)
            whole = "; the file is cut short or damaged: copy it again" if _is_cut(details) else ""
            raise ModelError(f"model {name!r}: llama.cpp cannot load {file}: {details}{whole}")
        self.vocabulary = self.llama.llama_model_get_vocab(self.pointer)
        self.vocabulary_size = int(self.llama.llama_vocab_n_tokens(self.vocabulary))
        self.is_float32 = self.llama.llama_model_ftype(self.pointer) == _FLOAT32

    def metadata(self, key: str) -> str | None:
        """Return a text or number of the GGUF's metadata; None where it is not there."""
        size = 1024
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = self.llama.llama_model_meta_val_str(self.pointer, key.encode(), buffer, size)
            if length < 0:
                return None
            if length < size:
                return buffer.value.decode(errors="replace")
            size = length + 1

    def close(self) -> None:
        """Give the memory back."""
        if self.pointer:
            with _listening(self.llama):
                self.llama.llama_model_free(self.pointer)
            self.pointer = None


def batch_tokens(weights: Weights) -> int:
    """Return how many tokens a batch holds unless the user says so: 512, fewer where their logits would be too many."""
    return min(_BATCH, max(1, _LOGIT_BYTES // (4 * weights.vocabulary_size)))


class Context:
    """A model's cache of keys and values, and the buffers that it computes in.

    Args:
        weights: The model.
        tokens: The longest sequence to read.
        options: How to compute.
        sequences: Sequences of a batch, each with as much room of its own.
        writes: Whether a text is to be written, token by token.

    Raises:
        ModelError: The model sees the tokens that it has to predict.
        OutOfMemory: It does not fit.
    """

    def __init__(
        self, weights: Weights, tokens: int, options: LoadOptions, *, sequences: int = 1, writes: bool = False
    ) -> None:
        self._weights, self._llama, self.shape = weights, weights.llama, (tokens, sequences, writes)
        params = self._llama.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.no_perf = tokens * sequences, sequences, True
        params.n_batch = params.n_ubatch = batch_tokens(weights)
        options.fill_context(params, self._llama, is_float32=weights.is_float32, writes=writes)
        params.n_ubatch = min(params.n_ubatch, params.n_batch)
        with _listening(self._llama) as said:
            self._pointer = self._llama.llama_init_from_model(weights.pointer, params)
        if not self._pointer:
            raise OutOfMemory("the device", _reason(said))
        if not self._llama.llama_get_causal_attn(self._pointer):
            raise ModelError(
                f"model {weights.name!r}: expected a causal model, but it sees the tokens that it predicts"
            )
        self._memory = self._llama.llama_get_memory(self._pointer)
        self._most = int(self._llama.llama_n_batch(self._pointer))
        self._batch = self._llama.llama_batch_init(self._most, 0, 1)
        shape = (self._most,)
        self._ids = np.ctypeslib.as_array(self._batch.token, shape)
        self._positions = np.ctypeslib.as_array(self._batch.pos, shape)
        self._wanted = np.ctypeslib.as_array(self._batch.logits, shape)
        np.ctypeslib.as_array(self._batch.n_seq_id, shape)[:] = 1
        for at in range(self._most):
            self._batch.seq_id[at][0] = 0
        self._read = 0

    def forget(self) -> None:
        """Begin a new sequence."""
        self._llama.llama_memory_clear(self._memory, True)
        self._read = 0

    def read(self, ids: Sequence[int] | NDArray[np.int64], at: NDArray[np.int64]) -> Iterator[Logits]:
        """Read tokens behind those that were read, and give the logits after some of them.

        Args:
            ids: Token ids, shape ``[tokens]``.
            at: Positions in `ids`, rising, shape ``[positions]``.

        Yields:
            The logits after some of the positions, one part after the other, shape ``[part, vocabulary]`` each; valid
            until the next part.

        Raises:
            OutOfMemory: llama.cpp has no room for the tokens.
            EngineError: llama.cpp failed.
        """
        tokens = np.asarray(ids, dtype=np.int32)
        wanted = np.zeros(len(tokens), dtype=np.int8)
        wanted[at] = 1
        for some in self._chunks(len(tokens)):
            count, outputs = len(tokens[some]), int(wanted[some].sum())
            self._ids[:count], self._wanted[:count] = tokens[some], wanted[some]
            self._positions[:count] = np.arange(self._read, self._read + count)
            self._decode(count)
            self._read += count
            if outputs:
                yield self._logits(outputs)

    def read_together(self, rows: Sequence[NDArray[np.int64]], at: Sequence[NDArray[np.int64]]) -> Logits:
        """Read several sequences from their beginnings in one batch, which forgets what was read before.

        Args:
            rows: Token ids of each sequence, shape ``[tokens]`` each; all have one length, and fit into a batch.
            at: Positions in each sequence, rising, shape ``[positions]`` each.

        Returns:
            The logits after the positions, one sequence after the other, shape ``[positions of all, vocabulary]``;
            valid until something else is read.

        Raises:
            OutOfMemory: llama.cpp has no room for the tokens.
            EngineError: llama.cpp failed.
        """
        self.forget()
        length, count = len(rows[0]), sum(map(len, rows))
        self._ids[:count], self._wanted[:count] = np.concatenate(rows), 0
        self._positions[:count] = np.tile(np.arange(length), len(rows))
        for number, positions in enumerate(at):
            self._wanted[number * length + positions] = 1
        try:
            for token in range(count):
                self._batch.seq_id[token][0] = token // length
            self._decode(count)
        finally:
            for token in range(count):
                self._batch.seq_id[token][0] = 0
        return self._logits(sum(map(len, at)))

    def _chunks(self, tokens: int) -> Iterator[slice]:
        """Yield as many tokens as a batch holds; a single one is not left for the end, see `LoadOptions.writing`."""
        begin = 0
        while begin < tokens:
            count = self._most - 1 if tokens - begin == self._most + 1 > 2 else self._most
            yield slice(begin, begin + count)
            begin += count

    def _logits(self, outputs: int) -> Logits:
        found = self._llama.llama_get_logits(self._pointer)
        return np.ctypeslib.as_array(found, (outputs, self._weights.vocabulary_size))

    def _decode(self, tokens: int) -> None:
        self._batch.n_tokens = tokens
        with _listening(self._llama) as said:
            status = self._llama.llama_decode(self._pointer, self._batch)
        if status == 0:
            return
        details = _reason(said)
        if status in (1, -2):
            raise OutOfMemory("the device", details)
        raise EngineError(f"model {self._weights.name!r}: llama.cpp failed with status {status}: {details}")

    def close(self) -> None:
        """Give the memory back."""
        if self._pointer:
            with _listening(self._llama):
                self._llama.llama_batch_free(self._batch)
                self._llama.llama_free(self._pointer)
            self._pointer = None


def _reason(said: Sequence[str]) -> str:
    """Return the first thing that llama.cpp complained of, without the name of its function."""
    lines = [line.strip() for line in "".join(said).splitlines() if line.strip()]
    if not lines:
        return "it does not say why"
    return (lines[0].partition(": ")[2] or lines[0]).removeprefix("error loading model: ")


def _is_cut(details: str) -> bool:
    return "failed to read" in details or "not within the file bounds" in details
