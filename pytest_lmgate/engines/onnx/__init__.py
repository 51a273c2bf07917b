"""The engine onnx: onnxruntime, its options, and folders that optimum exports, described by their files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from pytest_lmgate.data.corpus import is_lfs_pointer, pull_hint
from pytest_lmgate.engines.base import SAMPLING, Backend, LoadOption, Model, ModelEntry, Runner
from pytest_lmgate.engines.checkpoints import (
    WEIGHTS,
    TokenizerFolder,
    open_checkpoint,
)
from pytest_lmgate.engines.devices import device_class, resolve_device
from pytest_lmgate.engines.tokenizers import facts_of
from pytest_lmgate.errors import ModelError
from pytest_lmgate.identity import checkpoint_files, versions

# What to do instead of each.
_UNSUPPORTED_KEYS = {
    "hub": "download the repository, and give its path:",
    "adapter": "merge the adapter into the model before exporting it",
    "dtype": "a file has the dtype that it was exported in; export it in another one",
    "trust_remote_code": "an exported model contains no code",
    "pickle_weights": "an exported model contains no pickle",
}
_LIBRARIES = ("torch", "transformers", "tokenizers")
# Older versions open data outside of a model's folder, which its address does not cover.
_OLDEST = (1, 24)
# Options under the names of optimum and onnxruntime.
_KNOWN = {
    "file_name": LoadOption(str),
    "graph_optimization_level": LoadOption(str, texts=("disable", "basic", "extended", "layout", "all")),
    "intra_op_num_threads": LoadOption(int, 1),
    "provider_options": LoadOption(dict),
}


class Onnx(Backend):
    """Causal models as optimum exports them: an .onnx file, with config and tokenizer in its folder."""

    name = "onnx"
    offers = frozenset({"score", "generate", "compare", "greedy", "sample"})

    def describe(self, entry: ModelEntry) -> Model:
        spec, name = entry.spec, entry.name
        entry.refuse_keys(self.name, _UNSUPPORTED_KEYS)
        device = _device(entry)
        options = OnnxOptions.of(entry, device)
        export = OnnxFiles.of(entry)
        checkpoint = open_checkpoint(export.folder, name=name)
        if checkpoint.kind != "causal":
            raise ModelError(
                f"model {name!r}: the engine onnx runs causal models, but the one in {export.folder} is "
                f"{checkpoint.kind} ({checkpoint.architecture}): use the checkpoint that it was exported from"
            )
        folder = TokenizerFolder.of(entry, export.folder)
        files = export.by_name() | (folder.named_files if spec.tokenizer_path is None else folder.files)
        snapshot, content = entry.hash_files(files)
        runtime = library(name)

        def open_() -> Runner:
            from pytest_lmgate.engines.onnx.session import OnnxRunner, Session
            from pytest_lmgate.engines.tokenizers import load_tokenizer

            _require_provider(options, runtime.get_available_providers(), name)
            tokenizer = load_tokenizer(folder)
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
                **folder.ingredients,
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
            tokenizer=partial(facts_of, folder),
        )


def _device(entry: ModelEntry) -> str:
    """Return the device; ``auto`` is ``cuda`` if onnxruntime was built for it and there is a GPU, else ``cpu``."""
    device = resolve_device(entry.device, entry.worker)
    if entry.device != "auto":
        return device
    has_cuda = "CUDAExecutionProvider" in library(entry.name).get_available_providers()
    return device if has_cuda and device_class(device) == "cuda" else "cpu"


def _require_provider(options: OnnxOptions, available: list[str], name: str) -> None:
    if device_class(options.device) in ("cpu", "cuda") and options.provider in available:
        return
    raise ModelError(
        f"model {name!r}: the device {options.device!r} cannot be used: this onnxruntime has {', '.join(available)}, "
        "and the engine onnx runs on cpu and cuda; use device: cpu, or install onnxruntime-gpu for cuda"
    )


def _dtype(config: Mapping[str, Any], file: Path) -> str:
    """Return the dtype of an export; a file whose name is not optimum's ``model.onnx`` may be quantized."""
    if file.stem != "model":
        return "bfloat16"  # or coarser
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _ends(config: Mapping[str, Any], folder: Path, tokenizer: Any, name: str) -> frozenset[int]:
    """Return the tokens that end a text, by generation_config.json, else by config.json, else by the tokenizer."""
    file = folder / "generation_config.json"
    configured = None
    if file.is_file():
        try:
            configured = json.loads(file.read_bytes()).get("eos_token_id")
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise ModelError(f"model {name!r}: {file}: not the JSON of a generation config: {error}") from error
    for ends in (configured, config.get("eos_token_id"), getattr(tokenizer, "eos_token_id", None)):
        if ends is not None:
            return frozenset(ends if isinstance(ends, list) else [ends])
    return frozenset()


# Where a repository of the hub keeps its exports, below its config and tokenizer.
_BELOW = "onnx"


@dataclass(frozen=True)
class OnnxFiles:
    """The files of one model."""

    model: Path  # the .onnx file
    folder: Path  # where its config.json is, and its tokenizer unless the entry names another

    @classmethod
    def of(cls, entry: ModelEntry) -> OnnxFiles:
        name, wanted = entry.name, entry.spec.load.get("file_name")
        if entry.spec.path is None:
            raise ModelError(f"model {name!r}: expected path: of a folder that optimum exported, or of an .onnx file")
        path = entry.path(entry.spec.path)
        if path.suffix == ".onnx" and not path.is_dir():
            if wanted is not None:
                raise ModelError(f"model {name!r}: path: names a file, {path}: leave load.file_name out")
            is_below = path.parent.name == _BELOW and not (path.parent / "config.json").is_file()
            return cls(path, path.parents[1 if is_below else 0])._checked(name)
        if not path.is_dir():
            raise ModelError(f"model {name!r}: no such folder: {path}; check models.{name}.path")
        if wanted is not None:
            return cls(path / wanted, path)._checked(name)
        models = sorted(path.glob("*.onnx")) or sorted(path.glob(f"{_BELOW}/*.onnx"))
        if not models:
            raise ModelError(
                f"model {name!r}: no .onnx file in {path}: expected a folder made by optimum-cli export onnx"
            )
        if len(models) > 1:
            names = ", ".join(file.relative_to(path).as_posix() for file in models)
            raise ModelError(
                f"model {name!r}: {path} has several .onnx files ({names}): name one, as in load: {{file_name: "
                f"{models[0].relative_to(path).as_posix()}}}"
            )
        return cls(models[0], path)._checked(name)

    @property
    def weight_bytes(self) -> int:
        parts = self.model.parent.glob(f"{self.model.name}*")
        return sum(path.stat().st_size for path in parts if path.is_file())

    def by_name(self) -> dict[str, Path]:
        """Return every file that can change a number, by its name in an address.

        Weights outside of the .onnx file may have any name, but onnxruntime opens none outside of its folder. So all
        files there count, except for other .onnx files.
        """
        inner = self.model.parent
        nearby = checkpoint_files(inner, everything=True).items()
        files = {f"onnx/{file}": path for file, path in nearby if path.suffix != ".onnx" or path == self.model}
        if inner != self.folder:
            around = checkpoint_files(self.folder).items()
            files |= {f"model/{file}": path for file, path in around if path.suffix not in (".onnx", *WEIGHTS)}
        return files

    def _checked(self, name: str) -> OnnxFiles:
        if not self.model.is_file():
            raise ModelError(f"model {name!r}: no such file: {self.model}; check models.{name}")
        for path in self.by_name().values():
            if is_lfs_pointer(path):
                raise ModelError(f"model {name!r}: {pull_hint(path)}")
        return self


# onnxruntime, and the options of ``load:`` that it takes.


@dataclass(frozen=True)
class OnnxOptions:
    """Options of ``load:``, checked, with the number of threads and the device, such as ``cuda:1``."""

    given: Mapping[str, Any]
    threads: int
    device: str

    @classmethod
    def of(cls, entry: ModelEntry, device: str) -> OnnxOptions:
        given = entry.load_options("the engine onnx", _KNOWN)
        return cls(given, given.get("intra_op_num_threads", entry.threads), device)

    @property
    def changing_numbers(self) -> dict[str, Any]:
        """Options that can change a number; the address covers the file by its content."""
        return {key: self.given[key] for key in ("graph_optimization_level", "provider_options") if key in self.given}

    @property
    def provider(self) -> str:
        return "CUDAExecutionProvider" if self.device.startswith("cuda") else "CPUExecutionProvider"

    def session_options(self, library: Any) -> Any:
        options = library.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = self.threads
        level = self.given.get("graph_optimization_level", "all").upper()
        name = f"ORT_{level}_ALL" if level == "DISABLE" else f"ORT_ENABLE_{level}"
        options.graph_optimization_level = getattr(library.GraphOptimizationLevel, name)
        return options

    def providers(self) -> list[tuple[str, dict[str, str]]]:
        """Return the execution providers, the device's own first, and their options.

        On CUDA we switch off TF32, onnxruntime's default, which keeps 10 bits of a fraction.
        """
        options = {str(key): str(value) for key, value in self.given.get("provider_options", {}).items()}
        if not self.device.startswith("cuda"):
            return [(self.provider, options)]
        cuda_options = {"device_id": self.device.partition(":")[2] or "0", "use_tf32": "0"}
        return [(self.provider, cuda_options | options), ("CPUExecutionProvider", {})]


@cache
def library(model: str) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(
            f"model {model!r}: an ONNX model runs with onnxruntime, which cannot be imported ({error}): "
            "pip install 'pytest-lmgate[onnx]'"
        ) from error
    version = tuple(int(part) for part in re.findall(r"\d+", onnxruntime.__version__)[:2])
    if version < _OLDEST:
        raise ModelError(
            f"model {model!r}: expected onnxruntime {'.'.join(map(str, _OLDEST))} or newer, got "
            f"{onnxruntime.__version__}: pip install -U onnxruntime"
        )
    return onnxruntime
