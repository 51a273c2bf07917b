"""What stands behind the names in a gate: a model as its engine describes it, a dataset's rows."""

from __future__ import annotations

__all__ = ["Resolver"]

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_lmgate.backends.base import Backend, Entry, Model
from pytest_lmgate.backends.table import backend_of, described
from pytest_lmgate.cache.digest import FileDigests
from pytest_lmgate.config.arguments.revision import RevisedModel
from pytest_lmgate.config.file import Project
from pytest_lmgate.config.options import Options
from pytest_lmgate.config.specs import DatasetSpec, ModelSpec
from pytest_lmgate.data.corpora.corpus import Corpus, corpus_from_rows, read_corpus, read_rows
from pytest_lmgate.data.corpora.in_memory import rows_in_memory
from pytest_lmgate.data.corpora.tags import read_tags
from pytest_lmgate.engine.cluster.cluster import Cluster
from pytest_lmgate.errors import ConfigError, harmless
from pytest_lmgate.evaluate.sources.names import Names
from pytest_lmgate.evaluate.sources.rows import DatasetRows, mappings
from pytest_lmgate.evaluate.sources.session_code import SessionCode


class Resolver:
    """Finds what a gate's arguments stand for; a model whose files do not change is described once.

    Args:
        project: The project's file.
        options: The session's options.
        digests: Digests of files.
        users_backends: Engines that users registered, by name.
        cluster: Where models from files run; None for this process, which also asks servers.
    """

    def __init__(
        self,
        project: Project,
        options: Options,
        digests: FileDigests,
        users_backends: Mapping[str, Backend],
        cluster: Cluster | None = None,
    ) -> None:
        self._project, self._options, self._digests, self._users_backends = project, options, digests, users_backends
        self._cluster = cluster
        self._described: dict[str, Model] = {}
        self.workers = options.workers
        """Processes that measure side by side and share the processors, by those that will load a model."""
        self.names, self.code = Names(project), SessionCode()

    def beside(self, project: Project) -> Resolver:
        """Return the resolver of another project in the same session."""
        other = Resolver(project, self._options, self._digests, self._users_backends, self._cluster)
        other.code = self.code
        return other

    def close(self) -> None:
        """End the workers that models run on."""
        if self._cluster is not None:
            self._cluster.close()

    def model(self, model: Any) -> Model:
        """Find a model: a name, a path, a hub id, a ``(model, tokenizer)`` pair or a pipeline.

        Raises:
            ConfigError: It is none of these.
            ModelError: Its files are not what they should be.
        """
        revision = None
        if isinstance(model, RevisedModel):
            model, revision = model.model, model.revision
        if isinstance(model, str | Path):
            return self._from_files(*self.names.model_spec(model), revision)
        if hasattr(model, "model") and hasattr(model, "tokenizer") and not isinstance(model, tuple):
            return self._from_pair((model.model, model.tokenizer), revision)
        if isinstance(model, tuple | list) and len(model) == 2:
            return self._from_pair((model[0], model[1]), revision)
        raise ConfigError(
            "model: expected a name of lmgate.yaml, a path, a hub id, a (model, tokenizer) pair or a pipeline, "
            f"got {type(model).__name__}"
        )

    def corpus(self, dataset: Any) -> Corpus:
        """Read a dataset: a name, a path, a hub id, or rows in memory.

        Raises:
            ConfigError: A name that is not known.
            DataError: It cannot be read.
        """
        if isinstance(dataset, str | Path):
            name, spec = self.names.dataset_spec(dataset)
            path = self._project.path(spec.path) if spec.path else None
            return read_corpus(spec, path, name=name, offline=self._options.offline)
        rows = rows_in_memory(dataset, of="texts")
        return corpus_from_rows(rows, name=f"in-memory {type(dataset).__name__}")

    def rows(self, dataset: Any) -> DatasetRows:
        """Read a dataset's rows with all their columns, and those of its few-shot examples.

        Rows in memory have the columns ``source`` and ``references``, or ``question``, ``choices`` and ``answer``.

        Raises:
            ConfigError: A name that is not known.
            DataError: It cannot be read, has no row, or rows that are not mappings.
        """
        if not isinstance(dataset, str | Path):
            found, name = rows_in_memory(dataset, of="rows"), f"in-memory {type(dataset).__name__}"
            spec = DatasetSpec(
                path=name,
                source="source",
                references=["references"],
                question="question",
                choices="choices",
                answer="answer",
            )
            return DatasetRows(name, spec, mappings(found, name))
        name, spec = self.names.dataset_spec(dataset)
        path = self._project.path(spec.path) if spec.path else None
        found = read_rows(spec, path, name=name, offline=self._options.offline)
        examples: tuple[Mapping[str, Any], ...] = ()
        if spec.examples is not None:
            file, key = self._project.path(spec.examples), f"datasets.{name}.examples"
            if path is not None and path.exists() and file.exists() and path.samefile(file):
                raise ConfigError(f"{key}: {file} is the dataset's own file: each row would be shown with its answer")
            shown = read_rows(DatasetSpec(path=spec.examples), file, name=f"{name} (examples)", key=key)
            examples = mappings(shown, f"{name} (examples)")
        rows = mappings(found, name)
        return DatasetRows(name, spec, rows, examples, read_tags(rows, spec.tag_columns, name))

    def _from_files(self, name: str, spec: ModelSpec, revision: str | None) -> Model:
        # Paths in the entry are relative to the project's folder, which the cache's folder places on any machine.
        key = repr((_relative(self._project.folder, self._options.cache), name, spec))
        model = self._described.get(key)
        if model is None or model.files is None or not model.files.is_settled or model.files.moved:
            defaults, backend = self._project.spec.defaults, backend_of(spec, name, self._users_backends)
            device = spec.device or self._options.device or defaults.device
            if device == "auto" and self._options.executor is not None:
                device = self._options.executor.device
            entry = Entry(
                name=name,
                spec=spec,
                path=self._project.path,
                hub_id=self.names.hub_id,
                digest=self._digests.digest,
                device=device,
                dtype=spec.dtype or defaults.dtype,
                offline=self._options.offline,
                workers=self.workers,
                worker=self._options.worker,
            )
            model = replace(described(backend, entry), batch_size=spec.batch_size or defaults.batch_size)
            # A server's address may be localhost, and its key is in this process's environment.
            if self._cluster is not None and spec.server is None:
                model = self._cluster.moved(model, backend, entry)
            self._described[key] = model
        if revision is None and spec.hub is None:
            revision = spec.revision
        return self.code.applied(model, revision, harmless(key))  # without the password of a server's address

    def _from_pair(self, pair: tuple[Any, Any], revision: str | None) -> Model:
        from pytest_lmgate.backends.hf.backend import describe_in_memory

        size = self._project.spec.defaults.batch_size
        model = describe_in_memory(pair, batch_size=size, workers=self.workers)
        return self.code.applied(model, revision, f"{id(pair[0])} {id(pair[1])}", pair)


def _relative(folder: Path, start: Path) -> str:
    try:
        return os.path.relpath(folder, start)
    except ValueError:  # on another drive of Windows
        return str(folder)
