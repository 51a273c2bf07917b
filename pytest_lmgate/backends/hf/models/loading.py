"""From a checkpoint's folder to a model in memory, and the facts of its tokenizer."""

from __future__ import annotations

__all__ = ["LoadedModel", "decoded", "load_checkpoint", "load_tokenizer", "quiet", "tokenizer_facts", "wrap_pair"]

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from pytest_lmgate.backends.base import Kind
from pytest_lmgate.backends.hf.models.checkpoint import Checkpoint
from pytest_lmgate.data.tokenization.tokens import Placed, TokenizerFacts
from pytest_lmgate.errors import ModelError

_LOADERS: dict[Kind, Any] = {
    "causal": transformers.AutoModelForCausalLM,
    "encoder-decoder": transformers.AutoModelForSeq2SeqLM,
    "masked": transformers.AutoModelForMaskedLM,
}
# A text's unknown words are its own; these stand around or between texts, or are the mask itself.
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
        """Rows of the input embedding; None where the model does not say."""
        try:
            return int(self.model.get_input_embeddings().weight.shape[0])
        except (AttributeError, NotImplementedError):
            return None

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights; float32 where the model does not say."""
        found: torch.dtype = getattr(self.model, "dtype", torch.float32)
        return found

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether it reads with an encoder what its decoder answers."""
        return bool(getattr(getattr(self.model, "config", None), "is_encoder_decoder", False))


def load_checkpoint(
    checkpoint: Checkpoint,
    *,
    tokenizer_folder: Path,
    adapter_folder: Path | None,
    load: dict[str, Any],
    dtype: str,
    device: str,
    trust_remote_code: bool,
    pickle_weights: bool,
) -> LoadedModel:
    """Load a model of the checkpoint's kind and its tokenizer; local files only, whatever had to be fetched has been.

    Raises:
        ModelError: It cannot be loaded whole: unknown architecture, missing weights, no tokenizer, no such device.
    """
    name, folder = checkpoint.name, str(checkpoint.folder)
    with quiet():
        tokenizer = load_tokenizer(name, tokenizer_folder, trust_remote_code=trust_remote_code)

        def read(**more: Any) -> Any:
            return _LOADERS[checkpoint.kind].from_pretrained(
                folder,
                dtype=dtype if dtype == "auto" else getattr(torch, dtype),
                use_safetensors=None if pickle_weights else True,
                output_loading_info=True,
                **{"low_cpu_mem_usage": True, **_decoded(load, checkpoint, device), **more},
                trust_remote_code=trust_remote_code,
                local_files_only=True,
            )

        try:
            model, info = read()
        except Exception as error:
            if reshaped := _reshaped(error, read):
                raise ModelError(
                    f"model {name!r}: weights in {folder} have another shape than its config.json says: "
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
        if adapter_folder is not None:
            model = _with_adapter(model, adapter_folder, name)
        model = model.eval()
        if "device_map" not in load and not getattr(model, "hf_device_map", None):
            try:
                model = model.to(device)
            except (RuntimeError, AssertionError, ValueError) as error:
                raise ModelError(
                    f"model {name!r}: cannot be put on the device {device!r}: {error}; say device: cpu, or "
                    "--lmgate-device cpu"
                ) from error
    return LoadedModel(name, model, tokenizer, _input_device(model))


def wrap_pair(pair: Sequence[Any], *, name: str) -> LoadedModel:
    """Wrap a ``(model, tokenizer)`` pair of the user's, which stays on its device.

    Raises:
        ModelError: It is not such a pair.
    """
    model, tokenizer = pair
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"model {name!r}: expected (model, tokenizer), got ({type(model).__name__}, ...)")
    if not callable(tokenizer):
        raise ModelError(f"model {name!r}: expected (model, tokenizer), got (..., {type(tokenizer).__name__})")
    return LoadedModel(name, model, tokenizer, _input_device(model))


def tokenizer_facts(tokenizer: Any) -> TokenizerFacts:
    """Return what the planning needs to know of a tokenizer."""

    def encode(text: str, special: bool) -> Sequence[int]:
        try:
            with quiet():
                ids: Sequence[int] = tokenizer(text, add_special_tokens=special)["input_ids"]
        except Exception as error:
            raise _failed(
                error, "is called as tokenizer(text, add_special_tokens=...) and returns a mapping with input_ids"
            ) from error
        return ids

    def decode(token: int) -> str:
        try:
            with quiet():
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
        with quiet():
            found = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        ids, starts = found["input_ids"], [begin for begin, _ in found["offset_mapping"]]
        if len(ids) != len(starts):
            return None
        return Placed(ids, starts, _words(tokenizer, found))

    def target(text: str) -> Sequence[int]:
        with quiet():
            ids: Sequence[int] = tokenizer(text_target=text)["input_ids"]
        return ids

    def chat(messages: Sequence[Mapping[str, str]]) -> str:
        with quiet():
            return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))

    bos, eos, mask = (getattr(tokenizer, f"{which}_token_id", None) for which in ("bos", "eos", "mask"))
    special = (getattr(tokenizer, name, None) for name in _SPECIAL)
    return TokenizerFacts(
        encode,
        bos,
        eos,
        bos is not None and list(encode("a", True))[:1] == [bos],
        decode,
        placed,
        mask=mask,
        special=frozenset(token for token in special if token is not None),
        target=target,
        chat=chat if getattr(tokenizer, "chat_template", None) else None,
        vocabulary=getattr(tokenizer, "get_vocab", None),
    )


def _words(tokenizer: Any, found: Any) -> Sequence[int | None] | None:
    """Return the number of the word of each token, as `Placed` has it; one word of all where words cannot be told."""
    one_word = [0] * len(found["input_ids"])
    backend = getattr(tokenizer, "backend_tokenizer", None)
    # Lengths are counted from the beginning of the text, and words within them do not show where they end.
    if backend is None or not hasattr(found, "word_ids") or "FixedLength" in str(backend.pre_tokenizer):
        return one_word
    words: list[int | None] = found.word_ids()
    # As Llama 2 has it: BPE of the text as a whole.
    return None if len(set(words)) < 2 and type(backend.model).__name__ == "BPE" else words


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the libraries' progress bars, advice and warnings, which are not about the user's test.

    Under ``-W error`` a library's own deprecation would otherwise fail a gate.
    """
    logging = transformers.utils.logging
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def load_tokenizer(name: str, folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a folder, of the model of this name.

    Raises:
        ModelError: It cannot be loaded.
    """
    try:
        with quiet():
            return transformers.AutoTokenizer.from_pretrained(
                str(folder), trust_remote_code=trust_remote_code, local_files_only=True
            )
    except Exception as error:
        raise ModelError(
            f"model {name!r}: no usable tokenizer in {folder}: {type(error).__name__}: {error}; save one there with "
            "tokenizer.save_pretrained, or set tokenizer: to the folder that has it"
        ) from error


def decoded(tokenizer: Any, ids: Sequence[int], *, skip_special: bool = True, **how: Any) -> str:
    """Return the text of tokens, in silence."""
    with quiet():
        return str(tokenizer.decode(list(ids), skip_special_tokens=skip_special, **how))


def _with_adapter(model: Any, folder: Path, name: str) -> Any:
    try:
        import peft
    except ImportError as error:
        raise ModelError(f"model {name!r}: an adapter needs PEFT: pip install 'pytest-lmgate[peft]'") from error
    try:
        return peft.PeftModel.from_pretrained(model, str(folder), local_files_only=True)
    except Exception as error:
        raise ModelError(f"model {name!r}: adapter {folder} cannot be loaded: {error}") from error


def _reshaped(error: Exception, read: Callable[..., Any]) -> list[str]:
    """Name the weights of another shape than they should have, which the error of transformers itself does not."""
    if "ignore_mismatched_sizes" not in str(error):
        return []
    try:
        _, info = read(ignore_mismatched_sizes=True)
    except Exception:  # what the first error says is better than nothing
        return []
    keys = info.get("mismatched_keys", ())
    return sorted(
        key if isinstance(key, str) else f"{key[0]} {list(key[1])} in place of {list(key[2])}" for key in keys
    )


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:5])}{' and more' if len(names) > 5 else ''}"


def _decoded(load: dict[str, Any], checkpoint: Checkpoint, device: str) -> dict[str, Any]:
    """Turn what YAML can say into what from_pretrained takes: a quantization config by its method, the device's map."""
    options = dict(load)
    config = options.get("quantization_config")
    if isinstance(config, dict):
        config = transformers.quantizers.auto.AutoQuantizationConfig.from_dict(config)
        options["quantization_config"] = config
    stored = checkpoint.config.get("quantization_config") or {}
    if "bitsandbytes" in (getattr(config, "quant_method", None), stored.get("quant_method")):
        # Unless told, it takes the first GPU there is, whatever device was asked for.
        options.setdefault("device_map", {"": device})
    return options


def _input_device(model: Any) -> torch.device:
    try:
        return model.get_input_embeddings().weight.device  # type: ignore[no-any-return]
    except (AttributeError, NotImplementedError):
        return next(iter(model.parameters()), torch.zeros(0)).device
