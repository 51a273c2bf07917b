"""What a checkpoint's files say about it, read without torch: its kind, its context, the files that make it."""

from __future__ import annotations

__all__ = [
    "Architecture",
    "Checkpoint",
    "open_checkpoint",
    "require_own_code",
    "require_safe_adapter",
    "require_tokenizer",
]

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_lmgate.backends.base import Kind
from pytest_lmgate.data.corpora.git_lfs import is_lfs_pointer, pull_hint
from pytest_lmgate.errors import ModelError
from pytest_lmgate.identity.files import checkpoint_files

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
# Weights that are not read where there are others in safetensors.
_OTHER_WEIGHTS = (*_PICKLES, ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".tflite")
_CONTEXT_KEYS = (
    "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length",
    "context_length",
)  # fmt: skip
# Architectures whose positions begin behind the padding token's id, as fairseq counts them: RoBERTa's 514 positions are
# a context of 512.
_OFFSET_POSITIONS = frozenset(
    {"camembert", "data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm",
     "xlm-roberta", "xlm-roberta-xl", "xmod"}
)  # fmt: skip
# A multimodal model's language model is described in a config of its own.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "language_model")
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model",
    "sentencepiece.bpe.model", "tekken.json", "tokenizer.tiktoken",
)  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """What a model's config says of its kind; the name is for messages."""

    name: str
    config: Mapping[str, Any]

    @property
    def architecture(self) -> str:
        """First of the config's architectures, as in ``LlamaForCausalLM``."""
        named = self.config.get("architectures") or ["unknown"]
        return str(named[0])

    @property
    def context(self) -> int | None:
        """Tokens that the model can read at once; None where its config names no limit."""
        for config in (self.config, *(self.config.get(part) or {} for part in _TEXT_PARTS)):
            for key in _CONTEXT_KEYS:
                if (length := _positive(config.get(key))) is not None:
                    return length - _offset(config)
        return None

    @property
    def kind(self) -> Kind:
        """What the model predicts a token from."""
        if "ForMaskedLM" in self.architecture or "ForPreTraining" in self.architecture:
            return "masked"
        return "encoder-decoder" if self.config.get("is_encoder_decoder") else "causal"


@dataclass(frozen=True)
class Checkpoint(Architecture):
    """A checkpoint's folder."""

    folder: Path

    @property
    def files(self) -> dict[str, Path]:
        """Every file that can change what the model computes, by its name within the folder, sorted."""
        return checkpoint_files(self.folder)

    @property
    def weight_bytes(self) -> int:
        """Size of the weights on disk."""
        return sum(path.stat().st_size for path in self.files.values() if path.suffix in (".safetensors", *_PICKLES))

    @property
    def is_quantized(self) -> bool:
        """Whether another library's kernels run it."""
        return "quantization_config" in self.config

    def require_safe_weights(self, *, pickle_weights: bool) -> None:
        """Refuse weights that run code when read.

        Raises:
            ModelError: There are only pickle files and `pickle_weights` is not set, or no weights at all.
        """
        files = self.files
        suffixes = {path.suffix for path in files.values()}
        read = [path for path in files.values() if ".safetensors" not in suffixes or path.suffix not in _OTHER_WEIGHTS]
        _require_content(read, name=self.name)
        if suffixes & {".safetensors", ".gguf"}:
            return
        if not suffixes & set(_PICKLES):
            exported = next((name for name, path in files.items() if path.suffix == ".onnx"), None)
            hint = f"; it holds {exported}, which runs with backend: onnx" if exported else ""
            raise ModelError(f"model {self.name!r}: no weights in {self.folder}: expected *.safetensors{hint}")
        if not pickle_weights:
            found = ", ".join(name for name, path in self.files.items() if path.suffix in _PICKLES)
            raise ModelError(
                f"model {self.name!r}: {self.folder} has its weights only as pickle ({found}), which can run any code "
                "when read; convert them with save_pretrained to safetensors, or set pickle_weights: true if you trust "
                "them"
            )


def require_safe_adapter(folder: Path, *, name: str, pickle_weights: bool) -> None:
    """Refuse an adapter that runs code when read: PEFT goes by the names of its files, whatever lies beside them.

    Raises:
        ModelError: It is no folder saved by PEFT, has no weights, a Git LFS pointer in their place, or has them in
            pickle only and `pickle_weights` is not set.
    """
    config, safe, pickled = (
        folder / file for file in ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
    )
    if not folder.exists():
        raise ModelError(f"model {name!r}: no such folder: {folder}; check its adapter:")
    if not config.is_file():
        raise ModelError(f"model {name!r}: no adapter_config.json in {folder}: expected a folder saved by PEFT")
    if safe.is_file() or (pickle_weights and pickled.is_file()):
        _require_content([config, safe if safe.is_file() else pickled], name=name)
        return
    if not pickled.is_file():
        raise ModelError(f"model {name!r}: no weights in {folder}: expected {safe.name}")
    raise ModelError(
        f"model {name!r}: {folder} has its weights only as pickle ({pickled.name}), which can run any code when read; "
        f"save it as {safe.name}, or set pickle_weights: true if you trust it"
    )


def require_own_code(folder: Path, *, name: str) -> None:
    """Refuse a checkpoint or tokenizer whose code is another repository's: no digest of ours would tell of a change.

    Raises:
        ModelError: Its config refers to such code, as in ``"auto_map": {"AutoModel": "org/repo--modeling.Class"}``.
    """
    for file in (folder / "config.json", folder / "tokenizer_config.json"):
        try:
            mapped = json.loads(file.read_bytes()).get("auto_map")
        except (OSError, ValueError, AttributeError, RecursionError):
            continue  # absent, or said elsewhere to be malformed
        if (foreign := re.search(r'"([^"]+)--', json.dumps(mapped))) is not None:
            raise ModelError(
                f"model {name!r}: {file} takes its code from another repository, {foreign[1]}, where it may change: "
                "copy its .py files into the folder, and leave the repository out of auto_map"
            )


def open_checkpoint(folder: Path, *, name: str) -> Checkpoint:
    """Read a checkpoint's config.

    Raises:
        ModelError: The folder or its config.json is missing or malformed.
    """
    if not folder.is_dir():
        hint = "" if "/" in name else f"; check models.{name}.path"
        raise ModelError(f"model {name!r}: no such folder: {folder}{hint}")
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(f"model {name!r}: no config.json in {folder}: expected a folder made by save_pretrained")
    _require_content([file], name=name)
    try:
        config = json.loads(file.read_bytes())
    except RecursionError:
        raise ModelError(f"model {name!r}: {file}: nested too deeply to be a model's config") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"model {name!r}: {file}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"model {name!r}: {file}: expected a JSON object, got {type(config).__name__}")
    if (folder / "adapter_config.json").is_file():
        # The loader would take the base model that this file names, and pass over the weights in the folder.
        raise ModelError(
            f"model {name!r}: {folder} holds a PEFT adapter: put its folder under adapter: and its base "
            "model's under path:"
        )
    return Checkpoint(name, config, folder)


def require_tokenizer(folder: Path, *, name: str) -> None:
    """Refuse a folder without a tokenizer, for which a library may invent an empty one.

    Raises:
        ModelError: None of the files of a tokenizer is there, or one is a Git LFS pointer.
    """
    _require_content((folder / file for file in _TOKENIZER_FILES), name=name)
    if not any((folder / file).exists() for file in _TOKENIZER_FILES):
        raise ModelError(
            f"model {name!r}: no tokenizer in {folder}: expected tokenizer.json or tokenizer.model; save it there with "
            "tokenizer.save_pretrained, or set tokenizer: to the folder that has it"
        )


def _require_content(files: Iterable[Path], *, name: str) -> None:
    """Refuse Git LFS pointers, which stand for files that were not fetched."""
    for file in files:
        if is_lfs_pointer(file):
            raise ModelError(f"model {name!r}: {pull_hint(file)}")


def _offset(config: Mapping[str, Any]) -> int:
    """How many of a model's positions no token ever has."""
    if config.get("model_type") not in _OFFSET_POSITIONS:
        return 0
    pad = config.get("pad_token_id")
    return (1 if pad is None else int(pad)) + 1


def _positive(value: object) -> int | None:
    # Some configs write 1e30 for "no limit".
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        return None
    return int(value)
