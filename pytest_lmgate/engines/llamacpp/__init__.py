"""The engine llama.cpp, through llama-cpp-python: describes GGUF files."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

from pytest_lmgate.data.corpus import is_lfs_pointer, pull_hint
from pytest_lmgate.engines.base import SAMPLING, Backend, Model, ModelEntry, OutOfMemory, Runner
from pytest_lmgate.engines.checkpoints import TokenizerFolder
from pytest_lmgate.engines.devices import device_class
from pytest_lmgate.engines.llamacpp.gguf import Tokens, own_tokens, tokens_of_folder
from pytest_lmgate.engines.llamacpp.library import LlamaCppOptions, Weights, built_with, library
from pytest_lmgate.errors import EngineError, ModelError
from pytest_lmgate.identity import versions
from pytest_lmgate.windows.tokens import TokenizerFacts

_MAGIC = b"GGUF"
SPLIT = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
# What to do instead of each.
_UNSUPPORTED_KEYS = {
    "hub": "download the file, and give its path:",
    "adapter": "merge the adapter into the model before converting it",
    "dtype": "a GGUF has the dtype of its weights; convert it to another one",
    "trust_remote_code": "a GGUF contains no code",
    "pickle_weights": "a GGUF contains no pickle",
}
# What llama.cpp calls its devices, by what torch calls them.
_DEVICES = {"CUDA": "cuda", "ROCm": "cuda", "Metal": "mps", "MTL": "mps"}
# Dtypes by general.file_type, a llama_ftype; quantized weights round more coarsely than bfloat16.
_DTYPES = {"0": "float32", "1": "float16"}


class LlamaCpp(Backend):
    """GGUF files, split ones too, with their own tokens or those of a tokenizer's folder."""

    name = "llama.cpp"
    offers = frozenset({"score", "generate", "compare", "greedy", "sample"})

    def describe(self, entry: ModelEntry) -> Model:
        spec, name = entry.spec, entry.name
        entry.refuse_keys(self.name, _UNSUPPORTED_KEYS)
        options = LlamaCppOptions.of(entry)
        files = _files(entry)
        first = next(iter(files.values()))
        folder = None if spec.tokenizer is None else TokenizerFolder.of(entry)
        if folder is not None:
            files |= folder.files
        device = _device(entry, options)
        architecture, context, dtype = _facts(name, first)
        snapshot, content = entry.hash_files(files)
        size = sum(path.stat().st_size for path in files.values() if path.suffix == ".gguf")
        libraries = ["llama-cpp-python"] + (["transformers", "tokenizers"] if folder is not None else [])

        def open_(file: Path = first) -> Runner:
            from pytest_lmgate.engines.llamacpp.gguf import LlamaCppRunner

            _require_device(device, name)
            try:
                weights = Weights(name, file, options)
            except OutOfMemory as error:
                raise EngineError(
                    f"model {name!r}: no memory for its weights of {size:,} bytes on {device}: {error.details}; "
                    "offload fewer layers (load: {n_gpu_layers: ..}), or use a machine with more memory"
                ) from error
            return LlamaCppRunner(weights, _tokens(weights, folder), options, file=file, reopened=open_)

        @functools.cache
        def tokenizer() -> TokenizerFacts:
            return _tokens(Weights(name, first), folder).facts

        return Model(
            name,
            open_,
            context=context,
            content={
                **content,
                "load": json.dumps(options.changing_numbers),
                **({} if folder is None else folder.ingredients),
            },
            runtime={"device": device_class(device), "llama.cpp": built_with(name), **versions(libraries)},
            offers=self.offers,
            honours=SAMPLING,
            device=device,
            dtype=dtype,
            weight_bytes=size,
            architecture=architecture,
            writing=lambda: options.writing,
            named=lambda generates: {"flash_attn": options.flash_words(dtype == "float32", generates)},
            files=snapshot,
            changed=lambda: sorted(snapshot.moved),
            tokenizer=tokenizer,
        )


def _tokens(weights: Weights, folder: TokenizerFolder | None) -> Tokens:
    return own_tokens(weights) if folder is None else tokens_of_folder(folder, weights)


def _facts(name: str, file: Path) -> tuple[str, int | None, str]:
    """Return architecture, context and dtype by the metadata, and refuse a model that is not causal."""
    weights = Weights(name, file)
    try:
        llama, model = weights.llama, weights.pointer
        architecture = weights.metadata("general.architecture") or ""
        is_causal = weights.metadata(f"{architecture}.attention.causal") != "false"
        if not is_causal or llama.llama_model_has_encoder(model) or llama.llama_model_is_diffusion(model):
            raise ModelError(
                f"model {name!r}: {file} is not a causal model (architecture {architecture}); llama.cpp gives "
                "likelihoods of causal models only: use the checkpoint that it was converted from"
            )
        length = weights.metadata(f"{architecture}.context_length")
        # llama_model_ftype is 0 of every file that is opened without its weights.
        dtype = _DTYPES.get(weights.metadata("general.file_type") or "", "bfloat16")
        return architecture, int(length) if length else None, dtype
    finally:
        weights.close()


def _files(entry: ModelEntry) -> dict[str, Path]:
    """Return the files of a GGUF by their names in an address, the first of several first."""
    name = entry.name
    if entry.spec.path is None:
        raise ModelError(f"model {name!r}: expected path: of a .gguf file")
    path = entry.path(entry.spec.path)
    if path.suffix != ".gguf":
        raise ModelError(f"model {name!r}: the engine llama.cpp reads a file that ends in .gguf, got {path}")
    files = {"model": path}
    if split := SPLIT.fullmatch(path.name):
        if int(split["number"]) != 1:
            raise ModelError(f"model {name!r}: {path} is part {int(split['number'])}: give the first, -00001-of-...")
        parts = [f"{number:05}-of-{split['count']}" for number in range(1, int(split["count"]) + 1)]
        files = {f"model/{part}": path.with_name(f"{split['stem']}-{part}.gguf") for part in parts}
    for file in files.values():
        if not file.is_file():
            raise ModelError(f"model {name!r}: no such file: {file}; check models.{name}.path")
        if is_lfs_pointer(file):
            raise ModelError(f"model {name!r}: {pull_hint(file)}")
        try:
            with file.open("rb") as opened:
                begin = opened.read(len(_MAGIC))
        except OSError as error:
            raise ModelError(f"model {name!r}: {file}: cannot be read: {error.strerror}") from error
        if begin != _MAGIC:
            raise ModelError(
                f"model {name!r}: {file} is not a GGUF file: expected it to begin with GGUF, got {begin!r}"
            )
    return files


def _device(entry: ModelEntry, options: LlamaCppOptions) -> str:
    """Return where layers will run: the first accelerator that llama.cpp was built for, else the CPU."""
    if entry.device != "auto":
        return entry.device
    built = built_with(entry.name)
    accelerator = built.partition(" :")[0].strip()
    if options.gpu_layers == 0 or not library(entry.name).llama_supports_gpu_offload():
        return "cpu"
    return _DEVICES.get(accelerator, accelerator.lower())


def _require_device(device: str, name: str) -> None:
    if device.startswith("cpu") or library(name).llama_supports_gpu_offload():
        return
    raise ModelError(
        f"model {name!r}: the device {device!r} cannot be used: this llama-cpp-python was built for "
        f"{built_with(name).partition(' :')[0]} alone; use device: cpu, or install a build for the device"
    )
