"""Models: from a name, a path, a hub id or objects in memory to what their engine says of them."""

from __future__ import annotations

__all__ = ["Models"]

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_lmgate.backends.base import Backend, Entry, Model
from pytest_lmgate.backends.table import backend_of
from pytest_lmgate.cache.digest import FileDigests
from pytest_lmgate.config.file import Project
from pytest_lmgate.config.options import Options
from pytest_lmgate.config.revision import RevisedModel
from pytest_lmgate.config.specs import ModelSpec
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.evaluate.names import Names
from pytest_lmgate.evaluate.session_code import SessionCode


class Models:
    """Describes the models of a session; what cannot change within it is looked up once.

    Args:
        project: The project's file.
        options: The session's options.
        digests: Digests of files.
        names: Finds the specs of names.
        users_backends: Engines that users registered, by name.
    """

    def __init__(
        self,
        project: Project,
        options: Options,
        digests: FileDigests,
        names: Names,
        users_backends: Mapping[str, Backend],
    ) -> None:
        self._project, self._options, self._digests, self._names = project, options, digests, names
        self._users_backends = users_backends
        self._described: dict[str, Model] = {}
        self.code = SessionCode()

    def find(self, model: Any) -> Model:
        """Find a model: a name, a path, a hub id, a ``(model, tokenizer)`` pair or a pipeline.

        Raises:
            ConfigError: It is none of these.
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

    def _from_files(self, name: str, spec: ModelSpec, revision: str | None) -> Model:
        """Describe a model by its entry; the description is used again as long as none of its files changes."""
        key = repr((name, spec))
        model = self._described.get(key)
        if model is None or model.files is None or not model.files.is_settled or model.files.moved:
            defaults = self._project.spec.defaults
            entry = Entry(
                name=name,
                spec=spec,
                path=self._project.path,
                hub_id=self._names.tokenizer,
                digest=self._digests.digest,
                device=spec.device or self._options.device or defaults.device,
                dtype=spec.dtype or defaults.dtype,
                offline=self._options.offline,
                workers=self._options.workers,
            )
            backend = backend_of(spec, name, self._users_backends)
            model = replace(backend.describe(entry), batch_size=spec.batch_size or defaults.batch_size)
            if backend.name in self._users_backends:  # two engines may describe one file alike
                model = replace(model, runtime={**model.runtime, "backend": backend.name})
            self._described[key] = model
        if revision is None and spec.hub is None:
            revision = spec.revision
        return self.code.applied(model, revision, key)

    def _from_pair(self, pair: tuple[Any, Any], revision: str | None) -> Model:
        from pytest_lmgate.backends.hf.backend import describe_in_memory

        size = self._project.spec.defaults.batch_size
        model = describe_in_memory(pair, batch_size=size, workers=self._options.workers)
        return self.code.applied(model, revision, f"{id(pair[0])} {id(pair[1])}", pair)
