"""Models in memory: loaded from a checkpoint's folder, or made by the user, with what identifies those.

A model that the user made is identified by its weights and by what its modules, config and tokenizer hold. The user's
own code (a class, a hook, a replaced method) has no content that we can hash, and neither has an object that cannot be
pickled. `describe_pair` names these, and such a model is measured in each session and not kept.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import sys
import types
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from pytest_lmgate.engines.base import Kind
from pytest_lmgate.engines.checkpoints import Checkpoint, TokenizerFolder
from pytest_lmgate.engines.registry import library_warnings
from pytest_lmgate.engines.tokenizers import load_tokenizer, without_progress_bars
from pytest_lmgate.engines.transformers.unused import (
    quantization_config,
    require_adapter_applied,
    require_all_weights_used,
    require_known_keys,
    require_quantized,
)
from pytest_lmgate.errors import ModelError
from pytest_lmgate.identity import is_library

_LOADERS: dict[Kind, Any] = {
    "causal": transformers.AutoModelForCausalLM,
    "encoder-decoder": transformers.AutoModelForSeq2SeqLM,
    "masked": transformers.AutoModelForMaskedLM,
}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, in evaluation mode; its inputs go to `device`."""

    name: str
    model: Any
    tokenizer: Any
    device: torch.device

    @property
    def vocabulary_size(self) -> int | None:
        """Rows of the input embedding; None if unknown."""
        try:
            return int(self.model.get_input_embeddings().weight.shape[0])
        except (AttributeError, NotImplementedError):
            return None

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights; float32 if unknown."""
        dtype: torch.dtype = getattr(self.model, "dtype", torch.float32)
        return dtype

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(getattr(getattr(self.model, "config", None), "is_encoder_decoder", False))


def load_checkpoint(
    checkpoint: Checkpoint,
    *,
    tokenizer_folder: TokenizerFolder,
    adapter_folder: Path | None,
    load: dict[str, Any],
    dtype: str,
    device: str,
    trust_remote_code: bool,
    pickle_weights: bool,
) -> LoadedModel:
    """Load a model of the checkpoint's kind and its tokenizer, from local files only."""
    name, folder = checkpoint.name, str(checkpoint.folder)
    with without_progress_bars(), library_warnings() as warned:
        tokenizer = load_tokenizer(tokenizer_folder)
        options = _decoded(load, checkpoint, device)

        def read(**more: Any) -> Any:
            return _LOADERS[checkpoint.kind].from_pretrained(
                folder,
                dtype=dtype if dtype == "auto" else getattr(torch, dtype),
                use_safetensors=None if pickle_weights else True,
                output_loading_info=True,
                **{"low_cpu_mem_usage": True, **options, **more},
                trust_remote_code=trust_remote_code,
                local_files_only=True,
            )

        try:
            model, info = read()
        except Exception as error:
            if reshaped := _reshaped(error, read):
                raise ModelError(
                    f"model {name!r}: weights in {folder} do not have the shapes of its config.json: "
                    f"{_some(reshaped)}; put config.json and weights of one model there"
                ) from error
            raise ModelError(f"model {name!r}: {folder} cannot be loaded: {type(error).__name__}: {error}") from error
        # Weights that the checkpoint lacks, or has in another shape, are drawn at random: another model at every load.
        mismatched = {key if isinstance(key, str) else key[0] for key in info.get("mismatched_keys", ())}
        if missing := sorted(mismatched.union(info.get("missing_keys", ()))):
            raise ModelError(
                f"model {name!r}: the checkpoint in {folder} lacks weights that {type(model).__name__} needs: "
                f"{_some(missing)}; save the whole model"
            )
        require_quantized(checkpoint, model, load, options.get("quantization_config"), warned)
        require_all_weights_used(checkpoint, model, info.get("unexpected_keys", ()))
        require_known_keys(name, checkpoint.folder / "config.json", model.config, {**checkpoint.config, **load})
        if adapter_folder is not None:
            model = _with_adapter(model, adapter_folder, name)
        model = model.eval()
        if "device_map" not in load and not getattr(model, "hf_device_map", None):
            try:
                model = model.to(device)
            except (RuntimeError, AssertionError, ValueError) as error:
                raise ModelError(
                    f"model {name!r}: cannot be put on the device {device!r}: {error}; use device: cpu, or "
                    "--lmgate-device cpu"
                ) from error
    return LoadedModel(name, model, tokenizer, _input_device(model))


def wrap_pair(pair: Sequence[Any], *, name: str) -> LoadedModel:
    model, tokenizer = pair
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"model {name!r}: expected (model, tokenizer), got ({type(model).__name__}, ...)")
    if not callable(tokenizer):
        raise ModelError(f"model {name!r}: expected (model, tokenizer), got (..., {type(tokenizer).__name__})")
    return LoadedModel(name, model, tokenizer, _input_device(model))


def _with_adapter(model: Any, folder: Path, name: str) -> Any:
    try:
        import peft
    except ImportError as error:
        raise ModelError(f"model {name!r}: an adapter needs PEFT: pip install 'pytest-lmgate[peft]'") from error
    try:
        adapted = peft.PeftModel.from_pretrained(model, str(folder), local_files_only=True)
    except Exception as error:
        raise ModelError(
            f"model {name!r}: adapter {folder} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    require_adapter_applied(name, folder, adapted)
    return adapted


def _reshaped(error: Exception, read: Callable[..., Any]) -> list[str]:
    """Return the names of weights with wrong shapes, which transformers' own error does not have."""
    if "ignore_mismatched_sizes" not in str(error):
        return []
    try:
        _, info = read(ignore_mismatched_sizes=True)
    except Exception:  # what the first error says is better than nothing
        return []
    keys = info.get("mismatched_keys", ())
    return sorted(key if isinstance(key, str) else f"{key[0]} {list(key[1])} instead of {list(key[2])}" for key in keys)


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:5])}{' and more' if len(names) > 5 else ''}"


def _decoded(load: dict[str, Any], checkpoint: Checkpoint, device: str) -> dict[str, Any]:
    """Turn options of YAML into those of from_pretrained: a quantization config by its method, the device's map.

    ``dequantize: true`` is short for a quantization config of the checkpoint's own method that says so.
    """
    options, stored = dict(load), checkpoint.config.get("quantization_config") or {}
    config = options.pop("quantization_config", None)
    if "dequantize" in options:
        config = {**(config or {}), "dequantize": options.pop("dequantize")}
    if isinstance(config, dict):
        method = {"quant_method": stored["quant_method"]} if "quant_method" in stored else {}
        config = quantization_config(checkpoint.name, {**method, **config})
    if config is not None:
        options["quantization_config"] = config
    if "bitsandbytes" in (getattr(config, "quant_method", None), stored.get("quant_method")):
        # By default it takes the first GPU, even if another device is wanted.
        options.setdefault("device_map", {"": device})
    return options


def _input_device(model: Any) -> torch.device:
    try:
        return model.get_input_embeddings().weight.device  # type: ignore[no-any-return]
    except (AttributeError, NotImplementedError):
        return next(iter(model.parameters()), torch.zeros(0)).device


# Where an object was loaded from and what was warned of; nothing here trains, or pads by the tokenizer's padding side.
_NOTES = frozenset(
    {"_commit_hash", "_is_hf_initialized", "_name_or_path", "_original_object_hash", "base_model_name_or_path",
     "deprecation_warnings", "files_loaded", "init_inputs", "init_kwargs", "merges_file", "name_or_path",
     "padding_side", "tokens_trie", "training", "verbose", "vocab_file"}
)  # fmt: skip
_CODE = type | types.FunctionType | types.BuiltinFunctionType


def describe_pair(loaded: LoadedModel) -> tuple[dict[str, str], list[str]]:
    """Return the ingredients of a model in memory, and the reasons why they do not cover it, if any."""
    model, tokenizer = _Content("the model"), _Content("the tokenizer")
    parts = {"memory.modules": model.written(loaded.model), "memory.tokenizer": tokenizer.written(loaded.tokenizer)}
    parts["memory.weights"] = "\n".join(model.tensors).encode()
    digests = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    return digests, list(dict.fromkeys(model.unknown + tokenizer.unknown))


class _Content(pickle.Pickler):
    """Writes an object's content, to be hashed and never read; notes parts that no library defines."""

    def __init__(self, where: str) -> None:
        self._file, self._where = io.BytesIO(), where
        super().__init__(self._file, protocol=4)
        self.fast = True  # equal texts are written alike, whether or not they are the same object
        self.tensors: list[str] = []
        self.unknown: list[str] = []
        self._seen: dict[int, tuple[int, object]] = {}  # with the object, so that no other gets its id

    def written(self, thing: object) -> bytes:
        try:
            self.dump(thing)
        except Exception as error:  # a tensor on no device, say; even a revision must not find it again
            self._note(type(thing), f"cannot be hashed: {error}")
            return uuid.uuid4().bytes
        return self._file.getvalue()

    def persistent_id(self, value: Any) -> Any:
        """Return the replacement that is written for an object; None if it is pickled as usual."""
        if isinstance(value, set | frozenset):
            return sorted(value, key=repr)
        if isinstance(value, types.MethodType):
            return [value.__func__, value.__self__]
        if isinstance(value, _CODE):
            attribute: Any = sys.modules.get(str(value.__module__))
            for part in value.__qualname__.split("."):
                attribute = getattr(attribute, part, None)
            if not is_library(value.__module__) or (attribute is not value and value.__module__ != "builtins"):
                self._note(value, "no installed library defines")
            return [value.__module__, value.__qualname__]
        if type(value).__module__ == "tokenizers" and hasattr(value, "to_str"):
            # without the padding and truncation of the last call
            return json.dumps({**json.loads(value.to_str()), "truncation": None, "padding": None}, sort_keys=True)
        if not isinstance(value, Tensor | nn.Module):
            return None
        if id(value) in self._seen:  # tied weights, or a module that holds its parent
            return self._seen[id(value)][0]
        self._seen[id(value)] = len(self._seen), value
        return [type(value), _facts(vars(value)), self._tensor(value) if isinstance(value, Tensor) else None]

    def reducer_override(self, value: Any) -> Any:
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:  # a lock, say
            self._note(type(value), f"cannot be hashed: {error}")
            return object, ()
        if isinstance(reduced, str) or not isinstance(state := (*reduced, {})[2], dict):
            return reduced
        # All attributes: some classes leave them out of their pickles.
        return (*reduced[:2], _facts(getattr(value, "__dict__", state)), *reduced[3:])

    def _tensor(self, tensor: Tensor) -> Any:
        facts = [str(tensor.dtype), *tensor.shape]
        if hasattr(tensor, "__tensor_flatten__"):  # a wrapper around other tensors, as torchao's
            names, context = tensor.__tensor_flatten__()
            return [facts, context, [getattr(tensor, name) for name in names]]
        plain = tensor.dequantize() if tensor.is_quantized else tensor
        plain = plain.to_dense() if plain.layout != torch.strided else plain
        plain = plain.detach().as_subclass(Tensor).cpu().contiguous().flatten().view(torch.uint8)
        self.tensors.append(f"{facts} {hashlib.sha256(plain.numpy().data).hexdigest()}")
        return len(self.tensors)

    def _note(self, thing: Any, why: str) -> None:
        self.unknown.append(f"{self._where} has {thing.__module__}.{thing.__qualname__}, which {why}")


def _facts(held: dict[str, Any]) -> dict[str, Any]:
    # Hooks have numbers that count up through the session.
    facts = {key: held[key] for key in sorted(held.keys() - _NOTES)}
    return {key: [*value.values()] if key.endswith("_hooks") else value for key, value in facts.items()}
