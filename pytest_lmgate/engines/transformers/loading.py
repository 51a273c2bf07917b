"""From a checkpoint's folder to a model in memory, and the facts of its tokenizer."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from pytest_lmgate.engines.base import Kind
from pytest_lmgate.engines.checkpoints import Checkpoint, TokenizerFolder
from pytest_lmgate.engines.registry import library_warnings
from pytest_lmgate.engines.transformers.unused import (
    quantization_config,
    require_adapter_applied,
    require_all_weights_used,
    require_known_keys,
    require_quantized,
    unknown_options,
)
from pytest_lmgate.errors import ConfigError, ModelError
from pytest_lmgate.identity.code import is_library
from pytest_lmgate.windows.tokens import Placed, TokenizerFacts, require_variables

_LOADERS: dict[Kind, Any] = {
    "causal": transformers.AutoModelForCausalLM,
    "encoder-decoder": transformers.AutoModelForSeq2SeqLM,
    "masked": transformers.AutoModelForMaskedLM,
}
# A text's unknown words are its own; these are around or between texts, or are the mask itself.
_SPECIAL = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id", "mask_token_id")


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
        found: torch.dtype = getattr(self.model, "dtype", torch.float32)
        return found

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
    with _without_progress_bars(), library_warnings() as warned:
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


def tokenizer_facts(tokenizer: Any) -> TokenizerFacts:
    """Return what the planning needs to know of a tokenizer."""
    # The library's own tokenizers have an argument that silences them; others may not. `quiet` empties the caches of
    # all loggers, which takes longer than to encode a short text.
    silently, how = (_without_warnings, {"verbose": False}) if is_library(type(tokenizer).__module__) else (quiet, {})

    def encode(text: str, special: bool) -> Sequence[int]:
        try:
            with silently():
                ids: Sequence[int] = tokenizer(text, add_special_tokens=special, **how)["input_ids"]
        except Exception as error:
            raise _failed(
                error, "is called as tokenizer(text, add_special_tokens=...) and returns a mapping with input_ids"
            ) from error
        return ids

    @functools.cache
    def decode(token: int) -> str:
        try:
            with silently():
                return str(tokenizer.decode(token))
        except Exception as error:
            raise _failed(error, "returns a token's text by tokenizer.decode(id)") from error

    def _failed(error: Exception, expected: str) -> ModelError:
        return ModelError(
            f"the tokenizer {type(tokenizer).__name__} failed: {type(error).__name__}: {error}; "
            f"expected one that {expected}"
        )

    def placed(text: str, special: bool) -> Placed | None:
        if not getattr(tokenizer, "is_fast", False):
            return None
        with silently():
            found = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True, **how)
        ids, offsets = found["input_ids"], np.array(found["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        return Placed(ids, *offsets.T) if len(ids) == len(offsets) else None

    def text(ids: Sequence[int]) -> str | None:
        try:
            return decoded(tokenizer, ids, skip_special=False)
        except Exception:  # of a tokenizer of the user's, which needs no such method
            return None

    def target(text: str) -> Sequence[int]:
        with silently():
            ids: Sequence[int] = tokenizer(text_target=text, **how)["input_ids"]
        return ids

    def chat(messages: Sequence[Mapping[str, str]], **variables: Any) -> str:
        goes_on = messages[-1]["role"] == "assistant"
        if variables:
            require_variables(tokenizer.get_chat_template(), variables)
        with silently():
            return str(
                tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=not goes_on, continue_final_message=goes_on,
                    **variables,
                )
            )  # fmt: skip

    bos, eos, mask = (getattr(tokenizer, f"{which}_token_id", None) for which in ("bos", "eos", "mask"))
    special = (getattr(tokenizer, name, None) for name in _SPECIAL)
    return TokenizerFacts(
        encode,
        bos,
        eos,
        bos is not None and list(encode("a", True))[:1] == [bos],
        decode,
        placed,
        text,
        mask=mask,
        special=frozenset(token for token in special if token is not None),
        target=target,
        chat=chat if getattr(tokenizer, "chat_template", None) else None,
        vocabulary=getattr(tokenizer, "get_vocab", None),
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the libraries' progress bars and warnings: under ``-W error`` a deprecation would fail a gate."""
    logging = transformers.utils.logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with _without_progress_bars(), _without_warnings():
            yield
    finally:
        logging.set_verbosity(verbosity)


@contextlib.contextmanager
def _without_progress_bars() -> Iterator[None]:
    logging = transformers.utils.logging
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def load_tokenizer(folder: TokenizerFolder) -> Any:
    try:
        with _without_progress_bars(), library_warnings():
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(folder.path), trust_remote_code=folder.trust_remote_code, local_files_only=True, **folder.options
            )
    except Exception as error:
        raise ModelError(
            f"model {folder.name!r}: no usable tokenizer in {folder.path}: {type(error).__name__}: {error}; save one "
            "there with tokenizer.save_pretrained, or set tokenizer: to the folder that has it"
        ) from error
    if unknown := unknown_options((type(tokenizer), transformers.AutoTokenizer), folder.options):
        raise ConfigError(
            f"models.{folder.name}.tokenizer.{unknown[0]}: {type(tokenizer).__name__} has no such option; remove it"
        )
    return tokenizer


def decoded(tokenizer: Any, ids: Sequence[int], skip_special: bool = True) -> str:
    """Return the text of token ids with every space that the model wrote, which some tokenizers clean up."""
    how = {"clean_up_tokenization_spaces": False} if hasattr(tokenizer, "clean_up_tokenization_spaces") else {}
    with _without_warnings():
        return str(tokenizer.decode(list(ids), skip_special_tokens=skip_special, **how))


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
