"""What stands behind the names in a gate: a model's files or an in-memory pair, a dataset's rows.

A source knows its ingredients (for the address) without loading anything, and how to load itself.
"""

from __future__ import annotations

__all__ = ["ModelSource", "Resolver"]

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_lmgate.cache.digest import FileDigests
from pytest_lmgate.cache.fingerprint import Fingerprint, versions
from pytest_lmgate.config.file import Project
from pytest_lmgate.config.options import Options
from pytest_lmgate.config.specs import DatasetSpec, ModelSpec
from pytest_lmgate.data.corpus import Corpus, corpus_from_rows, read_corpus, read_rows
from pytest_lmgate.data.in_memory import rows_in_memory
from pytest_lmgate.engine.checkpoint import (
    Architecture,
    checkpoint_files,
    open_checkpoint,
    require_own_code,
    require_safe_adapter,
    require_tokenizer,
)
from pytest_lmgate.engine.device import device_class, resolve_device
from pytest_lmgate.engine.hub import fetch_checkpoint
from pytest_lmgate.engine.imports import imported_code
from pytest_lmgate.engine.libraries import LIBRARIES, library_versions
from pytest_lmgate.engine.session_code import session_code
from pytest_lmgate.errors import ConfigError, ModelError
from pytest_lmgate.evaluate.names import Names, hub_id
from pytest_lmgate.evaluate.rows import DatasetRows, mappings

if TYPE_CHECKING:
    from pytest_lmgate.engine.loading import LoadedModel

# Versions of what computes; the kernels of quantized models come from one of the latter.
_LIBRARIES = ("torch", "transformers", "tokenizers")
# Beside a tokenizer taken from another model's folder, these do not matter.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
_QUANTIZERS = ("accelerate", "bitsandbytes", "torchao", "gptqmodel", "autoawq", "compressed-tensors", "optimum", "hqq")


@dataclass(frozen=True)
class ModelSource:
    """A model, not yet loaded.

    Attributes:
        name: As the user wrote it.
        architecture: What its config says.
        ingredients: Everything of it that can change a number.
        load: Loads it.
        device: Where it will run.
        weight_bytes: About what its weights take.
        batch_size: Windows per batch, or ``auto``.
        in_memory: Whether it is the user's own object, which lives as long as the user wants.
    """

    name: str
    architecture: Architecture
    ingredients: Mapping[str, str]
    load: Callable[[], LoadedModel]
    device: str
    weight_bytes: int
    batch_size: int | str
    in_memory: bool = False

    @property
    def identity(self) -> str:
        """Digest of what it is, wherever it runs: its ingredients less the device and the libraries' versions."""
        where = {"device", *_LIBRARIES, *_QUANTIZERS, *LIBRARIES, "python"}
        return Fingerprint.of(
            "model", {key: each for key, each in self.ingredients.items() if key not in where}
        ).address


class Resolver:
    """Finds what a gate's arguments stand for.

    Args:
        project: The project's file.
        options: The session's options.
        digests: Digests of files.
    """

    def __init__(self, project: Project, options: Options, digests: FileDigests) -> None:
        self._project, self._options, self._digests = project, options, digests
        self._names = Names(project)

    def model_spec(self, model: str | Path) -> tuple[str, ModelSpec]:
        """Return the name and spec of a model given by a name of lmgate.yaml, a path or a hub id.

        Raises:
            ConfigError: It is none of these.
        """
        return self._names.model(model)

    def dataset_spec(self, dataset: str | Path) -> tuple[str, DatasetSpec]:
        """Return the name and spec of a dataset, likewise.

        Raises:
            ConfigError: It is none of these.
        """
        return self._names.dataset(dataset)

    def corpus(self, dataset: Any) -> Corpus:
        """Read a dataset: a name, a path, a hub id, or rows in memory.

        Raises:
            ConfigError: A name that is not known.
            DataError: It cannot be read.
        """
        if isinstance(dataset, str | Path):
            name, spec = self.dataset_spec(dataset)
            path = self._project.path(spec.path) if spec.path else None
            return read_corpus(spec, path, name=name, offline=self._options.offline)
        rows = rows_in_memory(dataset, of="texts")
        return corpus_from_rows(rows, text="text", name=f"in-memory {type(dataset).__name__}")

    def rows(self, dataset: Any) -> DatasetRows:
        """Read a dataset's rows with all their columns, and those of its few-shot examples.

        Rows in memory have the columns ``source`` and ``references``, or ``question``, ``choices`` and ``answer``.

        Raises:
            ConfigError: A name that is not known.
            DataError: It cannot be read, has no row, or rows that are not mappings.
        """
        if not isinstance(dataset, str | Path):
            found = rows_in_memory(dataset, of="rows")
            name = f"in-memory {type(dataset).__name__}"
            spec = DatasetSpec(
                path=name,
                source="source",
                references=["references"],
                question="question",
                choices="choices",
                answer="answer",
            )
            return DatasetRows(name, spec, mappings(found, name))
        name, spec = self.dataset_spec(dataset)
        path = self._project.path(spec.path) if spec.path else None
        found = read_rows(spec, path, name=name, offline=self._options.offline)
        examples: tuple[Mapping[str, Any], ...] = ()
        if spec.examples is not None:
            file = self._project.path(spec.examples)
            key = f"datasets.{name}.examples"
            shown = read_rows(DatasetSpec(path=spec.examples), file, name=f"{name} (examples)", key=key)
            examples = mappings(shown, f"{name} (examples)")
        return DatasetRows(name, spec, mappings(found, name), examples)

    def model(self, model: Any) -> ModelSource:
        """Find a model: a name, a path, a hub id, a ``(model, tokenizer)`` pair or a pipeline.

        Raises:
            ConfigError: None of these.
            ModelError: Its files are not what they should be.
        """
        if isinstance(model, str | Path):
            return self._from_files(*self.model_spec(model))
        if hasattr(model, "model") and hasattr(model, "tokenizer") and not isinstance(model, tuple):
            return _from_pair((model.model, model.tokenizer), self._project.spec.defaults.batch_size)
        if isinstance(model, tuple | list) and len(model) == 2:
            return _from_pair((model[0], model[1]), self._project.spec.defaults.batch_size)
        raise ConfigError(
            "model: expected a name of lmgate.yaml, a path, a hub id, a (model, tokenizer) pair or a pipeline, "
            f"got {type(model).__name__}"
        )

    def _from_files(self, name: str, spec: ModelSpec) -> ModelSource:
        defaults = self._project.spec.defaults
        folder = self._fetched(name, spec) if spec.path is None else self._project.path(spec.path)
        checkpoint = open_checkpoint(folder, name=name)
        checkpoint.require_safe_weights(pickle_weights=spec.pickle_weights)
        tokenizer_folder = folder
        if spec.tokenizer is not None:
            tokenizer_folder = self._project.path(spec.tokenizer)
            if not tokenizer_folder.is_dir():
                if self._names.is_path(spec.tokenizer):
                    raise ModelError(f"model {name!r}: no such folder: {tokenizer_folder}; check its tokenizer:")
                self._names.require_no_folder("tokenizer", spec.tokenizer)
                tokenizer_folder = fetch_checkpoint(
                    *hub_id(spec.tokenizer), name=name, offline=self._options.offline, only_tokenizer=True
                )
        require_tokenizer(tokenizer_folder, name=name)
        if spec.trust_remote_code:
            for part in (folder, tokenizer_folder):
                require_own_code(part, name=name)
        adapter = self._project.path(spec.adapter) if spec.adapter else None
        if adapter is not None:
            require_safe_adapter(adapter, name=name, pickle_weights=spec.pickle_weights)
        dtype = spec.dtype or defaults.dtype
        device = resolve_device(spec.device or self._options.device or defaults.device)

        parts = {"model": folder, "tokenizer": tokenizer_folder, "adapter": adapter}
        try:
            ingredients = {
                f"{part}/{file}": self._digests.digest(path)
                for part, where in parts.items()
                if where is not None and (part == "model" or where != folder)
                for file, path in checkpoint_files(where).items()
                if part != "tokenizer" or path.suffix not in _WEIGHTS
            }
        except OSError as error:
            raise ModelError(f"model {name!r}: {error.filename}: cannot be read: {error.strerror}") from error
        ingredients |= {
            "load": json.dumps(_ordered(spec.load), default=str),
            "dtype": dtype,
            "device": device_class(device),
            "trust_remote_code": str(spec.trust_remote_code),
            **session_code(checkpoint.config),
        }
        if spec.trust_remote_code:
            ingredients |= imported_code(file for part in {folder, tokenizer_folder} for file in part.rglob("*.py"))
        libraries = list(_LIBRARIES) + (["peft"] if adapter else [])
        if checkpoint.is_quantized or spec.load:
            libraries += _QUANTIZERS
        ingredients |= versions(libraries)

        def load() -> LoadedModel:
            from pytest_lmgate.engine.loading import load_checkpoint

            return load_checkpoint(
                checkpoint,
                tokenizer_folder=tokenizer_folder,
                adapter_folder=adapter,
                load=spec.load,
                dtype=dtype,
                device=device,
                trust_remote_code=spec.trust_remote_code,
                pickle_weights=spec.pickle_weights,
            )

        size = spec.batch_size or defaults.batch_size
        return ModelSource(name, checkpoint, ingredients, load, device, checkpoint.weight_bytes, size)

    def _fetched(self, name: str, spec: ModelSpec) -> Path:
        repo, revision, offline = str(spec.hub), spec.revision, self._options.offline
        try:
            return fetch_checkpoint(repo, revision, name=name, offline=offline, pickle_weights=spec.pickle_weights)
        except ModelError as error:
            if name.partition("@")[0] != repo:
                raise
            # What was written in place of a name as `org/name` may have been meant as a path.
            raise type(error)(
                f"{str(error).rstrip('.')}; there is no folder {repo} either (write ./{repo}, or name it in "
                "lmgate.yaml)"
            ) from error


def _ordered(value: Any) -> Any:
    """Turn mappings into sorted lists of their items: YAML's may have numbers and texts as keys, which do not sort."""
    if isinstance(value, Mapping):
        return sorted(([repr(key), _ordered(each)] for key, each in value.items()), key=lambda item: item[0])
    return [_ordered(each) for each in value] if isinstance(value, list) else value


def _from_pair(pair: tuple[Any, Any], batch_size: int | str) -> ModelSource:
    from pytest_lmgate.engine.in_memory import digest_pair
    from pytest_lmgate.engine.loading import wrap_pair

    kind = type(pair[0]).__name__
    loaded = wrap_pair(pair, name=f"in-memory {kind}")
    config: Any = getattr(pair[0], "config", None)
    facts = config.to_dict() if hasattr(config, "to_dict") else {}
    facts["architectures"] = facts.get("architectures") or [kind]
    ingredients = {**digest_pair(loaded), **session_code(facts), "device": loaded.device.type}
    ingredients |= versions((*_LIBRARIES, "peft")) | library_versions()
    architecture, device = Architecture(loaded.name, facts), str(loaded.device)
    return ModelSource(loaded.name, architecture, ingredients, lambda: loaded, device, 0, batch_size, in_memory=True)
