"""llama.cpp's library: options, a model, and a context that reads tokens.

llama.cpp prints nothing: its warnings and errors are collected for the message of an exception. Only this folder
imports llama_cpp.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.engines.base import LoadOption, ModelEntry, OutOfMemory
from pytest_lmgate.errors import EngineError, ModelError

Logits = NDArray[np.float32]
# Logits that llama.cpp holds at a time.
_LOGIT_BYTES = 2**29
_BATCH = 512
_FLOAT32 = 0  # LLAMA_FTYPE_ALL_F32
_WARNING, _ERROR, _CONTINUED = 3, 4, 5  # ggml_log_level
_OUT_OF_MEMORY = ("failed to allocate", "out of memory", "unable to allocate", "failed to fit")
# What llama.cpp says of options that do not go together, for which it makes no context.
_OF_OPTIONS = ("requires", "does not divide", "not supported", "unsupported")
# Options under llama.cpp's own names; see llama_model_params and llama_context_params.
_MODEL = dict.fromkeys(("n_gpu_layers", "split_mode", "main_gpu"), LoadOption(int))
_CONTEXT = {
    **dict.fromkeys(("n_batch", "n_ubatch"), LoadOption(int, 1)),
    **dict.fromkeys(("rope_scaling_type", "yarn_orig_ctx"), LoadOption(int)),
    **dict.fromkeys(("rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor"), LoadOption(float)),
    **dict.fromkeys(("yarn_beta_fast", "yarn_beta_slow"), LoadOption(float)),
    **dict.fromkeys(("offload_kqv", "op_offload", "swa_full"), LoadOption(bool)),
}
_THREADS = dict.fromkeys(("n_threads", "n_threads_batch"), LoadOption(int, 1))
_FLOATS = ("f32", "f16", "bf16")
_CACHE_TYPES = (*_FLOATS, "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_CACHES = dict.fromkeys(("type_k", "type_v"), LoadOption(str, texts=_CACHE_TYPES))
_KNOWN = {**_MODEL, **_CONTEXT, **_THREADS, "flash_attn": LoadOption(bool), **_CACHES}


@functools.cache
def library(model: str) -> Any:
    try:
        import llama_cpp
    except ImportError as error:
        raise ModelError(
            f"model {model!r}: a GGUF runs with llama.cpp, but llama-cpp-python cannot be imported ({error}): "
            "pip install 'pytest-lmgate[gguf]'"
        ) from error
    with _captured_log(llama_cpp):
        llama_cpp.llama_backend_init()
    return llama_cpp


def built_with(model: str) -> str:
    """Return what llama.cpp was compiled for, as in ``CPU : SSE3 = 1 | AVX2 = 1``: another build rounds otherwise."""
    llama = library(model)
    with _captured_log(llama):
        info: bytes = llama.llama_print_system_info()
    return info.decode().strip()


@contextlib.contextmanager
def _captured_log(llama: Any) -> Iterator[list[str]]:
    """Collect llama.cpp's warnings and errors, and print nothing."""
    log: list[str] = []
    last = [0]

    @llama.llama_log_callback  # type: ignore[untyped-decorator]
    def listen(level: int, text: bytes, _: object) -> None:
        last[0] = last[0] if level == _CONTINUED else level
        if last[0] in (_WARNING, _ERROR):
            log.append(text.decode(errors="replace"))

    before, data = llama.llama_log_callback(), ctypes.c_void_p()
    llama.llama_log_get(ctypes.byref(before), ctypes.byref(data))
    llama.llama_log_set(listen, ctypes.c_void_p(0))
    try:
        yield log
    finally:
        llama.llama_log_set(before, data)


@dataclass(frozen=True)
class LlamaCppOptions:
    """Options of ``load:``, checked, with the default number of threads and the device."""

    given: Mapping[str, Any]
    threads: int
    device: str

    @classmethod
    def of(cls, entry: ModelEntry) -> LlamaCppOptions:
        return cls(entry.load_options("llama.cpp", _KNOWN), entry.threads, entry.device)

    @property
    def changing_numbers(self) -> dict[str, Any]:
        return {key: value for key, value in sorted(self.given.items()) if key not in _THREADS}

    @property
    def writing(self) -> dict[str, str]:
        """What else can change a text: the number of threads, with flash attention."""
        return {"n_threads": str(self.given.get("n_threads", self.threads))} if self._flash_writing else {}

    @property
    def batch_threads(self) -> int:
        return int(self.given.get("n_threads_batch", self.given.get("n_threads", self.threads)))

    @property
    def _flash_writing(self) -> bool:
        """Whether to write with flash attention: on request, or if the cache of values needs it.

        It shares the keys of a single token among the threads, so their number decides how sums are rounded.
        """
        return bool(self.given.get("flash_attn", self.given.get("type_v", "f16") not in _FLOATS))

    def flash(self, is_float32: bool, writes: bool) -> bool | None:
        """Whether to use flash attention; None lets llama.cpp choose."""
        default = self._flash_writing if writes or is_float32 else None
        flash: bool | None = self.given.get("flash_attn", default)
        return flash

    def flash_words(self, is_float32: bool, writes: bool) -> str:
        """Return `flash` as signatures name it."""
        return {None: "auto", False: "off", True: "on"}[self.flash(is_float32, writes)]

    @property
    def gpu_layers(self) -> int:
        """Layers to offload; -1 for all."""
        return int(self.given.get("n_gpu_layers", 0 if self.device.startswith("cpu") else -1))

    def fill_model(self, params: Any) -> None:
        kind, _, number = self.device.partition(":")
        if kind != "cpu" and number:
            params.split_mode, params.main_gpu = 0, int(number)
        for key in _MODEL:
            if key in self.given:
                setattr(params, key, self.given[key])
        params.n_gpu_layers = self.gpu_layers

    def fill_context(self, params: Any, library: Any, *, is_float32: bool, writes: bool) -> None:
        """Set ``llama_context_params``.

        llama.cpp keeps keys and values in float16, and its flash attention multiplies in float16, which moves an NLL
        by up to 0.02 nats. For float32 weights we switch both off.
        """
        for key in _CONTEXT:
            if key in self.given:
                setattr(params, key, self.given[key])
        params.n_threads, params.n_threads_batch = self.given.get("n_threads", self.threads), self.batch_threads
        if self.gpu_layers == 0:
            params.offload_kqv = params.op_offload = False
        for key in _CACHES:
            name = self.given.get(key, "f32" if is_float32 else "f16")
            setattr(params, key, getattr(library, f"GGML_TYPE_{name.upper()}"))
        if (flash := self.flash(is_float32, writes)) is not None:
            state = "ENABLED" if flash else "DISABLED"
            params.flash_attn_type = getattr(library, f"LLAMA_FLASH_ATTN_TYPE_{state}")


class Weights:
    """A GGUF that is open, by its first file; without options, only its metadata and vocabulary."""

    def __init__(self, name: str, file: Path, options: LlamaCppOptions | None = None) -> None:
        self.name, self.llama = name, library(name)
        params = self.llama.llama_model_default_params()
        params.vocab_only = options is None
        if options is not None:
            options.fill_model(params)
        with _captured_log(self.llama) as log:
            self.pointer = self.llama.llama_model_load_from_file(str(file).encode(), params)
        if not self.pointer:
            details = _first_complaint(log)
            if any(phrase in details for phrase in _OUT_OF_MEMORY):
                raise OutOfMemory("the device", details)
            is_cut = "failed to read" in details or "not within the file bounds" in details
            hint = "; the file is truncated or damaged: copy it again" if is_cut else ""
            raise ModelError(f"model {name!r}: llama.cpp cannot load {file}: {details}{hint}")
        if options is not None and (text := " ".join("".join(log).split())):
            logging.getLogger("llama_cpp").warning("%s", text)
        self.vocabulary = self.llama.llama_model_get_vocab(self.pointer)
        self.vocabulary_size = int(self.llama.llama_vocab_n_tokens(self.vocabulary))
        self.is_float32 = self.llama.llama_model_ftype(self.pointer) == _FLOAT32

    def metadata(self, key: str) -> str | None:
        """Return a text or number of the GGUF's metadata, as text; None if it is not there."""
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
        if self.pointer:
            with _captured_log(self.llama):
                self.llama.llama_model_free(self.pointer)
            self.pointer = None


class Context:
    """A model's cache of keys and values for the longest sequence, and the buffers that it computes in."""

    def __init__(self, weights: Weights, tokens: int, options: LlamaCppOptions, *, writes: bool = False) -> None:
        self._weights, self._llama, self.shape = weights, weights.llama, (tokens, writes)
        params = self._llama.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.no_perf = tokens, 1, True
        params.n_batch = params.n_ubatch = min(_BATCH, max(1, _LOGIT_BYTES // (4 * weights.vocabulary_size)))
        options.fill_context(params, self._llama, is_float32=weights.is_float32, writes=writes)
        params.n_ubatch = min(params.n_ubatch, params.n_batch)
        with _captured_log(self._llama) as log:
            self._pointer = self._llama.llama_init_from_model(weights.pointer, params)
        if not self._pointer:
            details = _first_complaint(log)
            if not any(word in details for word in _OF_OPTIONS):
                raise OutOfMemory("the device", details)
            raise ModelError(f"model {weights.name!r}: llama.cpp refuses its load: {details}")
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
        self._llama.llama_memory_clear(self._memory, True)
        self._read = 0

    def read(self, ids: Sequence[int] | NDArray[np.int64], at: NDArray[np.int64]) -> Iterator[Logits]:
        """Read tokens that follow the last ones, and yield the logits after the positions `at`, which rise.

        Each part has the shape ``[part, vocabulary]`` and is valid until the next part.
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
                logits = self._llama.llama_get_logits(self._pointer)
                yield np.ctypeslib.as_array(logits, (outputs, self._weights.vocabulary_size))

    def _chunks(self, tokens: int) -> Iterator[slice]:
        """Yield as many tokens as a batch holds; a single one is never left for the end: `LlamaCppOptions.writing`."""
        begin = 0
        while begin < tokens:
            count = self._most - 1 if tokens - begin == self._most + 1 > 2 else self._most
            yield slice(begin, begin + count)
            begin += count

    def _decode(self, tokens: int) -> None:
        self._batch.n_tokens = tokens
        with _captured_log(self._llama) as log:
            status = self._llama.llama_decode(self._pointer, self._batch)
        if status == 0:
            return
        details = _first_complaint(log)
        if status in (1, -2):
            raise OutOfMemory("the device", details)
        raise EngineError(f"model {self._weights.name!r}: llama.cpp failed with status {status}: {details}")

    def close(self) -> None:
        if self._pointer:
            with _captured_log(self._llama):
                self._llama.llama_batch_free(self._batch)
                self._llama.llama_free(self._pointer)
            self._pointer = None


def _first_complaint(log: Sequence[str]) -> str:
    """Return llama.cpp's first complaint, without the name of its function."""
    lines = [line.strip() for line in "".join(log).splitlines() if line.strip()]
    if not lines:
        return "it does not say why"
    return (lines[0].partition(": ")[2] or lines[0]).removeprefix("error loading model: ")
