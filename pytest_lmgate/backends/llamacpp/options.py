"""What `load:` of a GGUF's entry may say, and which of it can change a number."""

from __future__ import annotations

__all__ = ["LoadOptions"]

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_lmgate.backends.base import Entry
from pytest_lmgate.backends.entries import refuse_options, threads
from pytest_lmgate.errors import ConfigError

# Options by what they must be, under llama.cpp's own names; see llama_model_params and llama_context_params.
_MODEL = {"n_gpu_layers": int, "split_mode": int, "main_gpu": int}
_CONTEXT = {
    "n_batch": int, "n_ubatch": int, "rope_scaling_type": int, "rope_freq_base": float, "rope_freq_scale": float,
    "yarn_ext_factor": float, "yarn_attn_factor": float, "yarn_beta_fast": float, "yarn_beta_slow": float,
    "yarn_orig_ctx": int, "offload_kqv": bool, "op_offload": bool, "swa_full": bool,
}  # fmt: skip
_THREADS = {"n_threads": int, "n_threads_batch": int}
_FLOATS = ("f32", "f16", "bf16")
_CACHE_TYPES = (*_FLOATS, "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_CACHES = ("type_k", "type_v")
_KNOWN: dict[str, type] = {**_MODEL, **_CONTEXT, **_THREADS, "flash_attn": bool, **dict.fromkeys(_CACHES, str)}


@dataclass(frozen=True)
class LoadOptions:
    """Options of `load:`, checked, and what else is asked for: threads that they do not name, and the device."""

    given: Mapping[str, Any]
    threads: int
    device: str

    @classmethod
    def of(cls, entry: Entry) -> LoadOptions:
        """Read the options of a model's entry.

        Raises:
            ConfigError: One is not known, or of the wrong type.
        """
        where = f"models.{entry.name}.load"
        refuse_options(entry, "llama.cpp", _KNOWN)
        for key, value in entry.spec.load.items():
            kind = _KNOWN[key]
            fits = isinstance(value, (int, float) if kind is float else kind)
            if not fits or (isinstance(value, bool) and kind is not bool):
                raise ConfigError(f"{where}.{key}: expected {_words(kind)}, got {value!r}")
            if key in _CACHES and value not in _CACHE_TYPES:
                raise ConfigError(f"{where}.{key}: expected one of {', '.join(_CACHE_TYPES)}; got {value!r}")
            if key in ("n_batch", "n_ubatch", *_THREADS) and value < 1:
                raise ConfigError(f"{where}.{key}: expected a whole number from 1, got {value!r}")
        return cls(dict(entry.spec.load), threads(entry.workers), entry.device)

    @property
    def changing_numbers(self) -> dict[str, Any]:
        """All but the threads."""
        return {key: value for key, value in sorted(self.given.items()) if key not in _THREADS}

    @property
    def writing(self) -> dict[str, str]:
        """What else can change a text: the threads, where flash attention was asked for."""
        return {"n_threads": str(self.given.get("n_threads", self.threads))} if self._flash_writing else {}

    @property
    def batch_threads(self) -> int:
        """Threads that read more than one token."""
        return int(self.given.get("n_threads_batch", self.given.get("n_threads", self.threads)))

    def batch(self, most: int) -> int:
        """Return how many tokens are computed at a time, `most` unless the user says so."""
        return min(int(self.given.get(key, most)) for key in ("n_batch", "n_ubatch"))

    @property
    def _flash_writing(self) -> bool:
        """Whether to write with flash attention: where it was asked for, or the cache of values needs it.

        It shares the keys of a single token among the threads, so that their number would decide how sums are rounded.
        """
        return bool(self.given.get("flash_attn", self.given.get("type_v", "f16") not in _FLOATS))

    @property
    def gpu_layers(self) -> int:
        """Layers to offload, -1 for all; none where the device is the CPU."""
        return int(self.given.get("n_gpu_layers", 0 if self.device.startswith("cpu") else -1))

    def fill_model(self, params: Any) -> None:
        """Set ``llama_model_params``."""
        kind, _, number = self.device.partition(":")
        if kind != "cpu" and number:
            params.split_mode, params.main_gpu = 0, int(number)
        for key in _MODEL:
            if key in self.given:
                setattr(params, key, self.given[key])
        params.n_gpu_layers = self.gpu_layers

    def fill_context(self, params: Any, library: Any, *, is_float32: bool, writes: bool) -> None:
        """Set ``llama_context_params``.

        llama.cpp keeps keys and values in float16 and multiplies them so in its flash attention, which moves an NLL by
        up to 0.02 nats. Float32 weights ask for float32 throughout, so for them both are switched off.
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
        flash = self.given.get("flash_attn", self._flash_writing if writes or is_float32 else None)
        if flash is not None:
            state = "ENABLED" if flash else "DISABLED"
            params.flash_attn_type = getattr(library, f"LLAMA_FLASH_ATTN_TYPE_{state}")


def _words(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]
