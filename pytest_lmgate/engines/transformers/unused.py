"""What a folder or lmgate.yaml says and transformers or PEFT would pass over: an error, since it is another model.

A key of config.json or adapter_config.json is taken for a misspelling if no code of the library's class mentions it and
its name nearly is that of an option that the file lacks. Other unknown keys are left alone: checkpoints hold keys of
other programs and of older versions. An option in lmgate.yaml, which is written for the library, has to be one.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from transformers import modeling_rope_utils

from pytest_lmgate.engines.checkpoints import Checkpoint, Stored
from pytest_lmgate.engines.library_options import are_alike, names_in, near_misses, options_of
from pytest_lmgate.errors import ConfigError, ModelError, nearest
from pytest_lmgate.identity import is_library

# Constants that older versions of a library stored; the library computes them now.
_CONSTANTS = re.compile(r"(^|\.)(masked_bias|causal_mask|inv_freq|position_ids|version|_float_tensor)$")
# Heads that predict several tokens ahead. A model that is asked for the next token does not run them.
_AHEAD = re.compile(r"(^|[._])(mtp|nextn|medusa)")
# Heads of masked models for tasks other than filling a mask.
_OF_OTHER_TASKS = re.compile(
    r"(^|\.)(pooler|seq_relationship|sop_classifier|mask_predictions|discriminator_predictions)\."
)
_ROPE = ("rope_scaling", "rope_parameters")
_SHOWN = 3


def require_all_weights_used(checkpoint: Checkpoint, model: Any, unexpected: Iterable[str]) -> None:
    """Refuse weights that a model does not take, unless they cannot change the probability of the next token."""
    unused = sorted(key for key in unexpected if not _is_harmless(key, checkpoint, model))
    if unused:
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


def _is_harmless(key: str, checkpoint: Checkpoint, model: Any) -> bool:
    if _CONSTANTS.search(key) or _AHEAD.search(key) or key in dict(model.named_buffers()):
        return True
    if checkpoint.kind == "masked" and _OF_OTHER_TASKS.search(key):
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


def _values(stored: Stored) -> Any:
    with safe_open(stored.file, framework="pt") as file:
        return file.get_tensor(stored.name)


def require_quantized(
    checkpoint: Checkpoint, model: Any, load: Mapping[str, Any], wanted: Any, warnings: Collection[str]
) -> None:
    """Refuse a checkpoint that is quantized, and a model that does not compute with its weights as they are stored.

    `wanted` is the quantizer's config that was made of `load`, if it has any.
    """
    stored = checkpoint.config.get("quantization_config")
    if not stored or getattr(wanted, "dequantize", False):
        return
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is None:
        why = next((text for text in warnings if "quanti" in text), "")
        raise ModelError(
            f"model {checkpoint.name!r}: transformers loaded {checkpoint.folder} as a float model, but its config.json "
            f"has a quantization_config ({stored.get('quant_method')}){why and f' ({why})'}; to measure its "
            "dequantized weights, write load: {dequantize: true}"
        )
    for key in load.get("quantization_config", ()):
        requested, used = (getattr(config, key, None) for config in (wanted, quantizer.quantization_config))
        if requested != used:
            raise ModelError(
                f"model {checkpoint.name!r}: load.quantization_config.{key}: {requested!r} is not used, because the "
                f"checkpoint is quantized already, with {used!r}: remove it"
            )


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
