"""Models in memory: loaded from a checkpoint's folder, or made by the user, with what identifies those.

What a folder or lmgate.yaml says and transformers or PEFT would pass over is an error, since it is another model.

A model that the user made is identified by its weights and by what its modules, config and tokenizer hold. The user's
own code (a class, a hook, a replaced method) has no content that we can hash, and neither has an object that cannot be
pickled. `describe_pair` names these, and such a model is measured in each session and not kept.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import io
import json
import math
import pickle
import re
import sys
import types
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from transformers import modeling_rope_utils

from pytest_lmgate.engines.base import Kind
from pytest_lmgate.engines.checkpoints import Checkpoint, Stored, TokenizerFolder, pickled_in
from pytest_lmgate.engines.registry import library_warnings
from pytest_lmgate.engines.tokenizers import (
    are_alike,
    load_tokenizer,
    names_in,
    near_misses,
    options_of,
    without_progress_bars,
)
from pytest_lmgate.errors import ConfigError, ModelError, nearest
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
        file = _read_gguf(checkpoint.folder / load["gguf_file"]) if "gguf_file" in load else None
        require_quantized(checkpoint, model, load, options.get("quantization_config"), warned, file)
        require_all_weights_used(checkpoint, model, info.get("unexpected_keys", ()))
        if file is not None:
            require_all_of_gguf_used(checkpoint, load["gguf_file"], file, model)
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
        resized = "; use the model that it was trained on: with tokens added, save its base with resized embeddings"
        raise ModelError(
            f"model {name!r}: adapter {folder} cannot be loaded: {type(error).__name__}: {error}"
            f"{resized if 'size mismatch' in str(error) else ''}"
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
    if "gguf_file" in options:
        stored = {"quant_method": "gguf"}
        if not hasattr(transformers, "GgufConfig"):  # an older transformers, which makes floats of every file
            options.pop("dequantize", None)
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


# What a library would pass over. A key of config.json or adapter_config.json is taken for a misspelling if no code of
# the library's class mentions it and its name nearly is that of an option that the file lacks. Other unknown keys are
# left alone: checkpoints hold keys of other programs and of older versions. An option in lmgate.yaml, which is written
# for the library, has to be one.


# Constants that older versions of a library stored; the library computes them now.
_CONSTANTS = re.compile(r"(^|\.)(masked_bias|causal_mask|inv_freq|position_ids|version|_float_tensor)$")
_FREQUENCY_ROUNDING = 2.0**-6  # of bfloat16
_NEVER_TURNED = 1e20  # llama.cpp's factors of pairs that a model does not rotate are 1e30
# Heads that predict several tokens ahead. A model that is asked for the next token does not run them.
_AHEAD = re.compile(r"(^|[._])(mtp|nextn|medusa)")
# Heads of masked models for tasks other than filling a mask.
_OF_OTHER_TASKS = re.compile(
    r"(^|\.)(pooler|seq_relationship|sop_classifier|mask_predictions|discriminator_predictions)\."
)
# Parts of multimodal models that read no text, of which transformers may load the language model alone.
_OF_OTHER_INPUTS = re.compile(r"(^|\.)(vision|visual|image|audio|multi_modal|mm|embed_(vision|audio))(_\w+)?\.")
# What bitsandbytes stores beside a weight.
_OF_BITSANDBYTES = re.compile(r"\.(SCB|absmax)$")
_ROPE = ("rope_scaling", "rope_parameters")
_SHOWN = 3


def require_all_weights_used(checkpoint: Checkpoint, model: Any, unexpected: Iterable[str]) -> None:
    """Refuse weights that a model does not take, unless they cannot change the probability of the next token."""
    unused = [key for key in unexpected if not _is_harmless(key, checkpoint, model)]
    if unused := sorted(unused + _other_frequencies(checkpoint.tensors, model)):
        raise ModelError(
            f"model {checkpoint.name!r}: the checkpoint in {checkpoint.folder} holds weights that "
            f"{type(model).__name__} does not use, {_counted(unused)}: use a config.json that belongs to these "
            "weights, or remove them"
        )
    tensors = checkpoint.tensors
    names = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    for tied in names.values():
        stored = [name for name in tied if name in tensors]
        if len(stored) > 1 and any(not _values(tensors[name]).equal(_values(tensors[stored[0]])) for name in stored):
            raise ModelError(
                f"model {checkpoint.name!r}: {checkpoint.folder} holds different weights under {' and '.join(stored)}, "
                "but its config.json ties them to one: set tie_word_embeddings: false there"
            )


def _read_gguf(path: Path) -> Any:
    """Return the reader of a GGUF, which transformers has read with the same package."""
    return importlib.import_module("gguf").GGUFReader(path)


def require_all_of_gguf_used(checkpoint: Checkpoint, file: str, reader: Any, model: Any) -> None:
    """Refuse a GGUF with more weights than the model takes, or other rotary frequencies: transformers names neither."""
    own = model.state_dict(keep_vars=True)
    if not all(map(torch.is_floating_point, own.values())):
        return  # packed, by code that says which tensors are left over
    tensors = {tensor.name: tensor for tensor in reader.tensors if not _AHEAD.search(tensor.name)}
    if model.config.tie_word_embeddings:
        tensors.pop("output.weight", None)
    architecture, rope = reader.fields["general.architecture"].contents(), [getattr(model.config, k, "") for k in _ROPE]
    said = {key.removeprefix(f"{architecture}."): field.contents() for key, field in reader.fields.items()}
    scaling, window = said.get("rope.scaling.type", "none"), said.get("attention.sliding_window")
    unused = [] if scaling == "none" or repr(scaling) in repr(rope) else [f"rope.scaling.type: {scaling}"]
    context = said.get("context_length", math.inf)
    if isinstance(window, int) and 0 < window < context and window != getattr(model.config, "sliding_window", None):
        unused.append(f"attention.sliding_window: {window}")
    for name in [name for name in tensors if name.startswith("rope_")]:
        factors = torch.tensor(tensors.pop(name).data)
        if not _are_scaled_by(factors, model) and "longrope" not in repr(rope):
            unused.append(name)
    stored = sum(int(tensor.n_elements) for tensor in tensors.values())
    if stored > sum({id(tensor): tensor.numel() for tensor in own.values()}.values()):
        gguf: Any = importlib.import_module("gguf")
        layers = getattr(model.config, "num_hidden_layers", 0)
        kinds = {known: kind for kind, known in gguf.MODEL_ARCH_NAMES.items()}
        names = gguf.get_tensor_name_map(kinds[architecture], layers)
        taken = {names.get_name(name, try_suffixes=(".weight", ".bias")) for name in own}
        unused += sorted(tensors.keys() - taken)
    if unused:
        raise ModelError(
            f"model {checkpoint.name!r}: {file} holds what transformers' reader of GGUF files does not use, "
            f"{_counted(unused)}: make the file the path: of the model, for the engine llama.cpp"
        )


def _are_scaled_by(factors: Tensor, model: Any) -> bool:
    """Whether factors, by which llama.cpp divides its frequencies, make a geometric series of some of a model's."""
    turned = factors < _NEVER_TURNED
    buffers = [buffer.cpu() for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
    series = [(buffer * factors)[turned].log() for buffer in buffers if buffer.shape == factors.shape]
    return any(bool((each.diff().diff().abs() < _FREQUENCY_ROUNDING).all()) for each in series)


def _is_harmless(key: str, checkpoint: Checkpoint, model: Any) -> bool:
    if _CONSTANTS.search(key) or _AHEAD.search(key) or key in dict(model.named_buffers()):
        return True
    if checkpoint.kind == "masked" and _OF_OTHER_TASKS.search(key):
        return True
    if checkpoint.config.keys() & {"vision_config", "audio_config"} and _OF_OTHER_INPUTS.search(key):
        return True
    # A head for tokens ahead may be one more layer, which joins an embedding and a hidden state.
    layer = re.match(r".*\.layers\.\d+\.", key)
    if layer and any(name.startswith(f"{layer[0]}eh_proj.") for name in checkpoint.tensors):
        return True
    if not key.endswith(".bias"):
        return False
    # An attention mask was once stored under this name; and some quantizers store biases that are all 0.
    alike = (name for name in checkpoint.tensors if f".{name}".endswith(f".{key}") or f".{key}".endswith(f".{name}"))
    stored = [checkpoint.tensors[name] for name in alike]
    return len(stored) == 1 and (len(stored[0].shape) == 4 or not bool(_values(stored[0]).any()))


def _other_frequencies(tensors: Mapping[str, Stored], model: Any) -> list[str]:
    """Return the rotary frequencies, as old checkpoints store them, that a model computes otherwise.

    A common factor, that of linear scaling, may differ.
    """
    buffers = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq") and not buffer.is_meta]
    others = []
    for name in (each for each in tensors if each.endswith("inv_freq")):
        stored = tensors[name]
        alike = [buffer for buffer in buffers if [*buffer.shape] == stored.shape]
        ratios = [_values(stored).float() / buffer.cpu().float() for buffer in alike]
        if ratios and all(bool((each / each[0] - 1).abs().max() > _FREQUENCY_ROUNDING) for each in ratios):
            others.append(name)
    return others


def _values(stored: Stored) -> Any:
    if stored.file.suffix != ".safetensors":
        return pickled_in(stored.file)[stored.name]
    with safe_open(stored.file, framework="pt") as file:
        return file.get_tensor(stored.name)


def require_quantized(
    checkpoint: Checkpoint,
    model: Any,
    load: Mapping[str, Any],
    wanted: Any,
    warnings: Collection[str],
    file: Any,
) -> None:
    """Refuse a checkpoint that is quantized, and a model that does not compute with its weights as they are stored.

    `wanted` is the quantizer's config that was made of `load`, `file` the reader of its GGUF, if it has any.
    """
    if getattr(wanted, "dequantize", False) or load.get("dequantize"):
        return
    stored, quantizer = checkpoint.config.get("quantization_config") or {}, getattr(model, "hf_quantizer", None)
    says = f"its config.json has a quantization_config ({stored.get('quant_method')})" if stored else ""
    if file is not None:
        says = _quantized(file, load["gguf_file"])
        if all(map(torch.is_floating_point, model.state_dict().values())):
            quantizer = None
    if not says:
        return
    if quantizer is None:
        why = next((text for text in warnings if "quanti" in text), "")
        raise ModelError(
            f"model {checkpoint.name!r}: transformers loaded {checkpoint.folder} as a float model, but {says}"
            f"{why and f' ({why})'}; to measure its dequantized weights, write load: {{dequantize: true}}"
        )
    if stored.get("quant_method") == "bitsandbytes" and not any(map(_OF_BITSANDBYTES.search, checkpoint.tensors)):
        raise ModelError(
            f"model {checkpoint.name!r}: {says}, but the weights in {checkpoint.folder} are not quantized: remove it "
            "there; write it under load: to quantize them while they are loaded"
        )
    for key in load.get("quantization_config", ()):
        requested, used = (getattr(config, key, None) for config in (wanted, quantizer.quantization_config))
        if requested != used:
            raise ModelError(
                f"model {checkpoint.name!r}: load.quantization_config.{key}: {requested!r} is not used, because the "
                f"checkpoint is quantized already, with {used!r}: remove it"
            )


def _quantized(reader: Any, file: str) -> str:
    """Return that a GGUF is quantized, in words; empty if it is not."""
    kinds = {tensor.tensor_type.name for tensor in reader.tensors}
    quantized = ", ".join(sorted(kinds - {"F64", "F32", "F16", "BF16"}))
    return quantized and f"{file} is quantized ({quantized}): for its kernels, make it the path: of the model"


def quantization_config(name: str, given: Mapping[str, Any]) -> Any:
    """Return the quantizer's config of a mapping in ``load:``; a `ConfigError` for an option that it does not have."""
    try:
        config = transformers.quantizers.auto.AutoQuantizationConfig.from_dict(dict(given))
    except Exception as error:
        raise ModelError(
            f"model {name!r} cannot be loaded: load.quantization_config: {type(error).__name__}: {error}"
        ) from error
    kind = type(config)
    # Some classes keep whatever they are given, for a library of their own.
    kept = {*vars(config)}.union(*(value for value in vars(config).values() if isinstance(value, dict)))
    for key in sorted(given.keys() - names_in(kind)):
        if key not in kept or any(are_alike(key, option) for option in options_of(kind)):
            raise ConfigError(
                f"models.{name}.load.quantization_config: {kind.__name__} has no option {key!r}"
                f"{nearest(key, options_of(kind))}"
            )
    return config


def require_all_used(checkpoint: Checkpoint, *, trust_remote_code: bool) -> None:
    """Refuse a checkpoint whose biases or keys an engine would silently ignore, as far as transformers knows.

    They are listed by transformers' own model of the checkpoint, made without weights.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(
            str(checkpoint.folder), trust_remote_code=trust_remote_code, local_files_only=True
        )
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except Exception:  # an architecture that only the engine knows
        return
    taken = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    biases = {name for name in checkpoint.tensors if name.endswith(".bias")} - taken
    require_all_weights_used(checkpoint, model, [name for name in biases if f"{name[:-4]}weight" in taken])
    require_known_keys(checkpoint.name, checkpoint.folder / "config.json", config, checkpoint.config)


def require_known_keys(name: str, file: Path, config: Any, given: Mapping[str, Any]) -> None:
    """Refuse a misspelt key among those `given` by a JSON file, or by ``load:``, for an object of a library's class."""
    if misspelt := next(_misspelt(config, given), None):
        key, meant = misspelt
        raise ModelError(
            f"model {name!r}: {file}: {type(config).__name__} does not use the key {key!r} (did you mean {meant!r}?): "
            "correct or remove it"
        )


def _misspelt(config: Any, given: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    """Yield each misspelt key, and the key that was meant."""
    kind = type(config)
    if not is_library(kind.__module__):
        return
    yield from near_misses(given, names_in(kind), options_of(kind), where)
    for key, value in given.items():
        if not isinstance(value, Mapping):
            continue
        if key in _ROPE:
            members = vars(modeling_rope_utils).values()
            code = [member for member in members if inspect.isfunction(member) or inspect.isclass(member)]
            names = names_in(kind).union(*map(names_in, code))
            # The layers may be of several kinds, each with rope parameters of its own.
            for inner in (value, *(layers for layers in value.values() if isinstance(layers, Mapping))):
                yield from near_misses(inner, names, names, f"{where}{key}.")
            continue
        part = getattr(config, key, None)
        if isinstance(part, transformers.PretrainedConfig) or key == "quantization_config":
            yield from _misspelt(part, value, f"{where}{key}.")


def require_adapter_applied(name: str, folder: Path, adapted: Any) -> None:
    """Refuse an adapter unless PEFT applied every tensor of its file, and drew none at random."""
    import peft

    config = adapted.active_peft_config
    if config.is_prompt_learning:  # PEFT reads the one tensor of such an adapter, or fails
        return
    keys: Any = peft.set_peft_model_state_dict(adapted, peft.load_peft_weights(str(folder), device="cpu"))
    # Of tensors that are shared, or made from others, PEFT stores one.
    stored = {
        key.removesuffix(".weight") for key in peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
    }
    absent = {key.replace(f".{adapted.active_adapter}", "").removesuffix(".weight") for key in keys.missing_keys}
    for weights, words in (
        (set(keys.unexpected_keys), "holds weights that PEFT does not apply"),
        (absent & stored, "lacks weights, which PEFT draws at random"),
    ):
        if weights:
            raise ModelError(
                f"model {name!r}: the adapter in {folder} {words}, {_counted(sorted(weights))}: use the model that it "
                "was trained on, and its own adapter_config.json"
            )
    file = folder / "adapter_config.json"
    require_known_keys(name, file, config, json.loads(file.read_bytes()))


def _counted(names: Collection[str]) -> str:
    """Return how many tensors there are, and the names of the first three."""
    shown = [*names][:_SHOWN]
    return f"{len(names)} in all: {', '.join(shown)}{', ...' if len(names) > len(shown) else ''}"
