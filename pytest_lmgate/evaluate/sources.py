"""What stands behind the names in a gate: a model's files or an in-memory pair, a dataset's rows."""

from __future__ import annotations

__all__ = ["Resolver"]

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_lmgate.backends.base import Backend, Model
from pytest_lmgate.cache.digest import FileDigests
from pytest_lmgate.config.file import Project
from pytest_lmgate.config.options import Options
from pytest_lmgate.config.specs import DatasetSpec, ModelSpec
from pytest_lmgate.data.corpus import Corpus, corpus_from_rows, read_corpus, read_rows
from pytest_lmgate.data.in_memory import rows_in_memory
from pytest_lmgate.evaluate.models import Models
from pytest_lmgate.evaluate.names import Names
from pytest_lmgate.evaluate.rows import DatasetRows, mappings


class Resolver:
    """Finds what a gate's arguments stand for.

    Args:
        project: The project's file.
        options: The session's options.
        digests: Digests of files.
        users_backends: Engines that users registered, by name.
    """

    def __init__(
        self, project: Project, options: Options, digests: FileDigests, users_backends: Mapping[str, Backend]
    ) -> None:
        self._project, self._options = project, options
        self._names = Names(project)
        self._models = Models(project, options, digests, self._names, users_backends)

    def forget(self, *, share: bool = False) -> None:
        """Look at the session's code again: the user's code may have run since.

        Args:
            share: Let the models that follow share measurements that are not kept, until `forget` is called again.
        """
        self._models.code.forget(share=share)

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

    def model(self, model: Any) -> Model:
        """Find a model: a name, a path, a hub id, a ``(model, tokenizer)`` pair or a pipeline.

        Raises:
            ConfigError: None of these.
            ModelError: Its files are not what they should be.
        """
        return self._models.find(model)
