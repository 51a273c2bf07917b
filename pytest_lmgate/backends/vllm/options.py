"""What `load:` of an entry may say to vLLM, and what vLLM is told."""

from __future__ import annotations

__all__ = ["LoadOptions"]

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_lmgate.backends.base import Entry
from pytest_lmgate.backends.hf.models.checkpoint import Checkpoint
from pytest_lmgate.errors import ConfigError

# Options that the entry itself decides, by the key that does.
_BESIDE = {
    "model": "path", "tokenizer": "tokenizer", "dtype": "dtype", "trust_remote_code": "trust_remote_code",
    "revision": "revision", "device": "device", "hf_config_path": "path", "load_format": "pickle_weights",
}  # fmt: skip
# Options that this engine decides, so that a number depends on the model and the text alone.
_OURS = ("enable_prefix_caching", "logprobs_mode", "runner", "seed", "skip_tokenizer_init")
# Options that name another model, or code, whose content no address would hold.
_UNSEEN = (
    "code_revision", "enable_lora", "generation_config", "kv_transfer_config", "logits_processors", "lora_modules",
    "scheduler_cls", "spec_method", "spec_model", "speculative_config", "tokenizer_revision", "worker_cls",
    "worker_extension_cls",
)  # fmt: skip
_CPU_CACHE_BYTES = 2**31


@dataclass(frozen=True)
class LoadOptions:
    """Options of `load:`, checked, the context in tokens, and whether that is the checkpoint's own limit."""

    given: Mapping[str, Any]
    context: int
    is_own_context: bool

    @classmethod
    def of(cls, entry: Entry, checkpoint: Checkpoint) -> LoadOptions:
        """Read the options of a model's entry.

        Raises:
            ConfigError: One is not for the user to decide, or the context is not known.
        """
        where, load = f"models.{entry.name}.load", entry.spec.load
        for key in load:
            if key in _BESIDE:
                raise ConfigError(f"{where}.{key}: say {_BESIDE[key]}: beside load:, not inside it")
            if key in _OURS:
                raise ConfigError(f"{where}.{key}: this engine sets it itself; leave it out")
            if key in _UNSEEN:
                raise ConfigError(
                    f"{where}.{key}: it brings in a model or code that the measurement's address does not cover; "
                    "leave it out"
                )
        context = load.get("max_model_len", checkpoint.context)
        if context is None:
            raise ConfigError(
                f"{where}.max_model_len: expected the number of tokens that the model reads at once, since its "
                "config.json does not say it"
            )
        if isinstance(context, bool) or not isinstance(context, int) or context < 1:
            raise ConfigError(f"{where}.max_model_len: expected a whole number from 1, got {context!r}")
        return cls(load, context, context == checkpoint.context)

    def arguments(self, *, model: Path, tokenizer: Path, dtype: str, device: str, trust: bool) -> dict[str, Any]:
        """Return the arguments of ``vllm.LLM``.

        The context is a token longer than the model's: a window may fill the model's own, and its last target is what
        the model is made to write next. No state is ever computed of that token.
        """
        arguments: dict[str, Any] = {"disable_log_stats": True}
        if device == "cpu":
            # To compile a model for the CPU takes a C++ compiler and minutes. vLLM's own cache fills the memory.
            arguments["enforce_eager"] = True
            if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
                arguments["kv_cache_memory_bytes"] = _CPU_CACHE_BYTES
        return {
            **arguments,
            **self.given,
            "model": str(model),
            "tokenizer": str(tokenizer),
            "dtype": dtype,
            "trust_remote_code": trust,
            "max_model_len": self.context + 1,
            "enable_prefix_caching": False,
            "logprobs_mode": "raw_logprobs",
            "runner": "generate",
            "seed": 0,
        }
