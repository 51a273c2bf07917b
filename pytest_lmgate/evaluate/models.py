"""Models: from a name, a path, a hub id or objects in memory to a `ModelSource`."""

from __future__ import annotations

__all__ = ["Models"]

import json
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_lmgate.cache.digest import FileDigests
from pytest_lmgate.config.file import Project
from pytest_lmgate.config.options import Options
from pytest_lmgate.config.revision import RevisedModel
from pytest_lmgate.config.specs import ModelSpec
from pytest_lmgate.engine.checkpoint import (
    Architecture,
    open_checkpoint,
    require_own_code,
    require_safe_adapter,
    require_tokenizer,
)
from pytest_lmgate.engine.device import device_class, resolve_device
from pytest_lmgate.engine.hub import fetch_checkpoint
from pytest_lmgate.errors import ConfigError, ModelError
from pytest_lmgate.evaluate.model_source import ModelSource
from pytest_lmgate.evaluate.names import Names, hub_id
from pytest_lmgate.evaluate.session_code import SessionCode, several
from pytest_lmgate.identity.code import imports_of
from pytest_lmgate.identity.files import Snapshot, checkpoint_files, folders_below, is_file, texts_in
from pytest_lmgate.identity.libraries import LIBRARIES, QUANTIZERS, installed_packages, versions

if TYPE_CHECKING:
    from pytest_lmgate.engine.loading import LoadedModel

# The address of every model from files holds these versions.
_LIBRARIES = ("torch", "transformers", "tokenizers")
# Beside a tokenizer taken from another model's folder, these do not matter.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")


class Models:
    """Describes the models of a session; what cannot change within it is looked up once.

    Args:
        project: The project's file.
        options: The session's options.
        digests: Digests of files.
        names: Finds the specs of names.
    """

    def __init__(self, project: Project, options: Options, digests: FileDigests, names: Names) -> None:
        self._project, self._options, self._digests, self._names = project, options, digests, names
        self._described: dict[str, tuple[ModelSource, Snapshot]] = {}
        self.code = SessionCode()

    def source(self, model: Any) -> ModelSource:
        """Find a model: a name, a path, a hub id, a ``(model, tokenizer)`` pair or a pipeline.

        Raises:
            ConfigError: None of these.
            ModelError: Its files are not what they should be.
        """
        revision = None
        if isinstance(model, RevisedModel):
            model, revision = model.model, model.revision
        if isinstance(model, str | Path):
            return self._from_files(*self._names.model(model), revision)
        if hasattr(model, "model") and hasattr(model, "tokenizer") and not isinstance(model, tuple):
            return self._from_pair((model.model, model.tokenizer), revision)
        if isinstance(model, tuple | list) and len(model) == 2:
            return self._from_pair((model[0], model[1]), revision)
        raise ConfigError(
            "model: expected a name of lmgate.yaml, a path, a hub id, a (model, tokenizer) pair or a pipeline, "
            f"got {type(model).__name__}"
        )

    def _from_files(self, name: str, spec: ModelSpec, revision: str | None) -> ModelSource:
        """Describe a model by its files; the description is used again as long as none of them changes."""
        key = repr((name, spec))
        source, snapshot = self._described.get(key, (None, None))
        if source is None or snapshot is None or not snapshot.is_settled or snapshot.moved:
            source, snapshot = self._described[key] = self._describe(name, spec)
        if revision is None and spec.path is not None:
            revision = spec.revision
        return self.code.applied(source, revision, key)

    def _from_pair(self, pair: tuple[Any, Any], revision: str | None) -> ModelSource:
        from pytest_lmgate.engine.in_memory import describe_pair
        from pytest_lmgate.engine.loading import wrap_pair

        kind = type(pair[0]).__name__
        loaded = wrap_pair(pair, name=f"in-memory {kind}")
        config: Any = getattr(pair[0], "config", None)
        facts = config.to_dict() if hasattr(config, "to_dict") else {}
        facts["architectures"] = facts.get("architectures") or [kind]
        described, unknown = describe_pair(loaded)
        found = {name: version for name, version in versions(sorted(LIBRARIES)).items() if version != "absent"}
        ingredients = {**described, **versions(_LIBRARIES), **found, "python": platform.python_version()}
        source = ModelSource(
            loaded.name,
            Architecture(loaded.name, facts),
            {**ingredients, "device": loaded.device.type},
            lambda: loaded,
            str(loaded.device),
            0,
            self._project.spec.defaults.batch_size,
            in_memory=True,
            not_kept=several(unknown),
        )
        return self.code.applied(source, revision, f"{id(pair[0])} {id(pair[1])}", pair)

    def _describe(self, name: str, spec: ModelSpec) -> tuple[ModelSource, Snapshot]:
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

        everything, load = spec.trust_remote_code, dict(spec.load)
        parts = {"model": folder, "tokenizer": tokenizer_folder, "adapter": adapter}

        def files() -> dict[str, Path]:
            return dict(_files(parts, everything=everything, load=load))

        folders = [where for each in parts.values() if each is not None for where in folders_below(each)]
        try:
            snapshot = Snapshot.of([*files().values(), *folders])
            ingredients = {file: self._digests.digest(path) for file, path in files().items()}
        except OSError as error:
            raise ModelError(f"model {name!r}: {error.filename}: cannot be read: {error.strerror}") from error
        hashed = {str(path) for path in files().values()}

        def changed() -> list[str]:
            if not (moved := snapshot.moved):
                return []
            there = {str(path) for path in files().values()}  # a file may be new
            return sorted((there ^ hashed) | (set(moved) & hashed))

        ingredients |= {
            "load": json.dumps(_ordered(spec.load), default=str),
            "dtype": dtype,
            "device": device_class(device),
            "trust_remote_code": str(spec.trust_remote_code),
        }
        unknown = ""
        if spec.trust_remote_code:
            imports = imports_of(Path(path) for path in sorted(hashed) if path.endswith(".py"))
            unknown = imports.unknown
            if imports.packages:
                ingredients["installed packages"] = installed_packages()
        libraries = list(_LIBRARIES) + (["peft"] if adapter else [])
        if checkpoint.is_quantized or spec.load:
            libraries += QUANTIZERS
        ingredients |= versions(libraries)

        def loaded() -> LoadedModel:
            from pytest_lmgate.engine.loading import load_checkpoint

            return load_checkpoint(
                checkpoint,
                tokenizer_folder=tokenizer_folder,
                adapter_folder=adapter,
                load=load,
                dtype=dtype,
                device=device,
                trust_remote_code=spec.trust_remote_code,
                pickle_weights=spec.pickle_weights,
            )

        size = spec.batch_size or defaults.batch_size
        source = ModelSource(
            name,
            checkpoint,
            ingredients,
            loaded,
            device,
            checkpoint.weight_bytes,
            size,
            not_kept=unknown,
            changed=changed,
        )
        return source, snapshot

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


def _files(
    parts: Mapping[str, Path | None], *, everything: bool, load: Mapping[str, Any]
) -> Iterator[tuple[str, Path]]:
    """Yield the files of a model's parts by the names that an address has them under."""
    for part, where in parts.items():
        if where is not None and (part == "model" or where != parts["model"]):
            for file, path in checkpoint_files(where, everything=everything).items():
                if part != "tokenizer" or path.suffix not in _WEIGHTS:
                    yield f"{part}/{file}", path
    for text in texts_in(load):  # as in gguf_file: inner/model.gguf
        for path in (Path(text), Path(str(parts["model"]), text)):
            if is_file(path):
                yield f"load/{text}", path
