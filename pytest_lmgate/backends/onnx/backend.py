"""The engine onnx: describes folders that optimum exports."""

from __future__ import annotations

__all__ = ["Onnx"]

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pytest_lmgate.backends.base import SAMPLING, Backend, Entry, Model, Runner
from pytest_lmgate.backends.entries import hashed, refuse_keys
from pytest_lmgate.backends.hf.models.checkpoint import open_checkpoint
from pytest_lmgate.backends.hf.models.device import device_class, resolve_device
from pytest_lmgate.backends.hf.models.tokenizer import facts_of_folder, tokenizer_beside, tokenizer_files
from pytest_lmgate.backends.onnx.files import OnnxFiles
from pytest_lmgate.backends.onnx.options import LoadOptions
from pytest_lmgate.backends.onnx.session import library
from pytest_lmgate.errors import ModelError
from pytest_lmgate.identity.libraries import versions

# Keys of an entry that mean nothing for an exported model, and what to do instead.
_NOT_HERE = {
    "hub": "download the repository, and give its path:",
    "adapter": "merge the adapter into the model before exporting it",
    "dtype": "a file has the dtype that it was exported in; export it in another one",
    "trust_remote_code": "an exported model holds no code",
    "pickle_weights": "an exported model holds no pickle",
}
_LIBRARIES = ("torch", "transformers", "tokenizers")


class Onnx(Backend):
    """Causal models as optimum exports them: an .onnx file, with config and tokenizer in its folder."""

    name = "onnx"
    suffixes = (".onnx",)
    offers = frozenset({"score", "generate", "compare"})

    def describe(self, entry: Entry) -> Model:
        """Describe an export by its files.

        Raises:
            ConfigError: The entry says what an export does not have.
            ModelError: Its files are not what they should be, or onnxruntime is not installed.
        """
        spec, name = entry.spec, entry.name
        refuse_keys(entry, self.name, _NOT_HERE)
        device = _device(entry)
        options = LoadOptions.of(entry, device)
        export = OnnxFiles.of(entry)
        checkpoint = open_checkpoint(export.folder, name=name)
        if checkpoint.kind != "causal":
            raise ModelError(
                f"model {name!r}: the engine onnx runs causal models, but the one in {export.folder} is "
                f"{checkpoint.kind} ({checkpoint.architecture}): use the checkpoint that it was exported from"
            )
        tokenizer_folder = tokenizer_beside(entry, export.folder)
        files = export.by_name() | ({} if spec.tokenizer is None else tokenizer_files(tokenizer_folder))
        snapshot, content = hashed(entry, files)
        runtime = library(name)

        def open_() -> Runner:
            from pytest_lmgate.backends.hf.models.loading import load_tokenizer
            from pytest_lmgate.backends.onnx.runner import OnnxRunner
            from pytest_lmgate.backends.onnx.session import Session

            _require_provider(options, runtime.get_available_providers(), name)
            tokenizer = load_tokenizer(name, tokenizer_folder)
            session = Session(name, export.model, options)
            ends = _ends(checkpoint.config, export.folder, tokenizer, name)
            return OnnxRunner(name, session, tokenizer, ends, checkpoint.context)

        return Model(
            name,
            open_,
            context=checkpoint.context,
            content={
                **content,
                "load": json.dumps(options.changing_numbers, sort_keys=True, default=str),
                "windows": "read whole",  # earlier versions left the last token out
            },
            runtime={
                "device": device_class(device),
                "onnxruntime": f"{runtime.__version__}, {runtime.get_build_info()}",
                **versions(_LIBRARIES),
            },
            offers=self.offers,
            honours=SAMPLING,
            device=device,
            dtype=_dtype(checkpoint.config, export.model),
            weight_bytes=export.weight_bytes,
            architecture=checkpoint.architecture,
            files=snapshot,
            changed=lambda: sorted(snapshot.moved),
            tokenizer=partial(facts_of_folder, name, tokenizer_folder),
        )


def _device(entry: Entry) -> str:
    """Return ``cuda`` or ``cpu`` for ``auto``: the former where onnxruntime was built for it and there is a GPU."""
    device = resolve_device(entry.device, entry.worker)
    if entry.device != "auto":
        return device
    has_cuda = "CUDAExecutionProvider" in library(entry.name).get_available_providers()
    return device if has_cuda and device_class(device) == "cuda" else "cpu"


def _require_provider(options: LoadOptions, available: list[str], name: str) -> None:
    if device_class(options.device) in ("cpu", "cuda") and options.provider in available:
        return
    raise ModelError(
        f"model {name!r}: the device {options.device!r} cannot be used: this onnxruntime has {', '.join(available)}, "
        "and the engine onnx runs on cpu and cuda; say device: cpu, or install onnxruntime-gpu for cuda"
    )


def _dtype(config: Mapping[str, Any], file: Path) -> str:
    """Return what an export computes in: a file of another name than optimum's own is quantized, or so it may be."""
    if file.stem != "model":
        return "bfloat16"  # or coarser
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _ends(config: Mapping[str, Any], folder: Path, tokenizer: Any, name: str) -> frozenset[int]:
    """Return the tokens that end a text: generation_config.json's, else config.json's, else the tokenizer's own."""
    file = folder / "generation_config.json"
    said = None
    if file.is_file():
        try:
            said = json.loads(file.read_bytes()).get("eos_token_id")
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise ModelError(f"model {name!r}: {file}: not the JSON of a generation config: {error}") from error
    for ends in (said, config.get("eos_token_id"), getattr(tokenizer, "eos_token_id", None)):
        if ends is not None:
            return frozenset(ends if isinstance(ends, list) else [ends])
    return frozenset()
