"""What stands behind the names in a gate: a model as its engine describes it, a dataset's rows.

A name is an entry of lmgate.yaml before a path before a hub id. ``org/name`` is a path where there is such a file or
folder, or where its first part is a folder of the project: then the second is misspelt or not there yet, and what lies
on the hub under that name would be a stranger's.
"""

from __future__ import annotations

__all__ = ["Resolver"]

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_lmgate.backends.base import Backend, Entry, Model
from pytest_lmgate.backends.table import backend_of, described
from pytest_lmgate.cache.digest import FileDigests
from pytest_lmgate.config.file import Project
from pytest_lmgate.config.options import Options
from pytest_lmgate.config.revision import RevisedModel
from pytest_lmgate.config.specs import DATA_SUFFIXES, DatasetSpec, ModelSpec
from pytest_lmgate.data.corpus import Corpus, corpus_from_rows, read_corpus, read_rows
from pytest_lmgate.data.in_memory import rows_in_memory
from pytest_lmgate.errors import ConfigError, harmless, nearest
from pytest_lmgate.evaluate.rows import DatasetRows, mappings
from pytest_lmgate.evaluate.session_code import SessionCode


class Resolver:
    """Finds what a gate's arguments stand for; a model whose files do not change is described once.

    Args:
        project: The project's file.
        options: The session's options.
        digests: Digests of files.
        users_backends: Engines that users registered, by name.
    """

    def __init__(
        self, project: Project, options: Options, digests: FileDigests, users_backends: Mapping[str, Backend]
    ) -> None:
        self._project, self._options, self._digests, self._users_backends = project, options, digests, users_backends
        self._described: dict[str, Model] = {}
        self.code = SessionCode()

    def beside(self, project: Project) -> Resolver:
        """Return the resolver of another project in the same session."""
        other = Resolver(project, self._options, self._digests, self._users_backends)
        other.code = self.code
        return other

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
            return self._from_files(*self.model_spec(model), revision)
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
        name, spec = self.dataset_spec(dataset)
        path = self._project.path(spec.path) if spec.path else None
        found = read_rows(spec, path, name=name, offline=self._options.offline)
        examples: tuple[Mapping[str, Any], ...] = ()
        if spec.examples is not None:
            file, key = self._project.path(spec.examples), f"datasets.{name}.examples"
            shown = read_rows(DatasetSpec(path=spec.examples), file, name=f"{name} (examples)", key=key)
            examples = mappings(shown, f"{name} (examples)")
        return DatasetRows(name, spec, mappings(found, name), examples)

    def model_spec(self, model: str | Path) -> tuple[str, ModelSpec]:
        """Return the name and spec of a model given by a name of lmgate.yaml, a path or a hub id.

        Raises:
            ConfigError: It is none of these.
        """
        known = self._project.spec.models
        if isinstance(model, str) and model in known:
            return model, known[model]
        if isinstance(model, Path):
            return str(model), ModelSpec(path=str(model))
        self._refuse_text("model", model)
        if self._is_path(model):
            return model, ModelSpec(path=model)
        if model.startswith("hub:") or model.count("/") == 1:
            self._require_no_folder("model", model)
            repo, revision = _hub_id(model)
            return model, ModelSpec(hub=repo, revision=revision)
        raise ConfigError(self._unknown("model", model))

    def dataset_spec(self, dataset: str | Path) -> tuple[str, DatasetSpec]:
        """Return the name and spec of a dataset given by a name of lmgate.yaml, a path or a hub id.

        A text with the suffix of a data file is a path.

        Raises:
            ConfigError: It is none of these.
        """
        known = self._project.spec.datasets
        if isinstance(dataset, str) and dataset in known:
            return dataset, known[dataset]
        if isinstance(dataset, Path):
            return str(dataset), DatasetSpec(path=str(dataset))
        self._refuse_text("dataset", dataset)
        is_hub_id = dataset.startswith("hub:")
        if not is_hub_id and (self._is_path(dataset) or self._is_file(dataset)):
            return dataset, DatasetSpec(path=dataset)
        if is_hub_id or dataset.count("/") == 1:
            self._require_no_folder("dataset", dataset)
            return dataset, DatasetSpec(hub=dataset.removeprefix("hub:"))
        raise ConfigError(self._unknown("dataset", dataset))

    def hub_id(self, tokenizer: str) -> tuple[str, str | None] | None:
        """Return the repository and revision of a tokenizer on the hub; None where a path is written.

        Raises:
            ConfigError: The first part of its name is a folder of the project.
        """
        if self._is_path(tokenizer):
            return None
        self._require_no_folder("tokenizer", tokenizer)
        return _hub_id(tokenizer)

    def _is_path(self, given: str) -> bool:
        """Whether it is written as only a path is, or exists."""
        if given.startswith("hub:"):
            return False
        if given.startswith((".", "/", "~")) or given.count("/") > 1:
            return True
        return "/" in given and self._exists(given)

    def _require_no_folder(self, what: str, given: str) -> None:
        """Refuse a hub id whose first part is a folder of the project."""
        top, _, inner = given.partition("/")
        if given.startswith("hub:") or not inner or not self._project.path(top).is_dir():
            return
        there: list[str] = []
        with contextlib.suppress(OSError):
            there = [path.name for path in self._project.path(top).iterdir()]
        raise ConfigError(
            f"{what} {given!r}: there is no {inner} in {self._project.path(top)}{nearest(inner, there)}; "
            f"check the path, or name it in lmgate.yaml; a hub id of that name is written hub:{given}"
        )

    def _is_file(self, given: str) -> bool:
        suffix = Path(given).suffix
        return suffix.lower() in DATA_SUFFIXES or (bool(suffix) and self._exists(given))

    def _exists(self, given: str) -> bool:
        try:
            return self._project.path(given).exists()
        except PermissionError:
            return True  # reading it says why it cannot be

    def _refuse_text(self, what: str, given: str) -> None:
        """Refuse a text that is too long for a path or has several lines: a name was expected."""
        with contextlib.suppress(ConfigError):
            self._project.path(given)
            if "\n" not in given:
                return
        raise ConfigError.of(
            what,
            f"expected a name of lmgate.yaml, a path or a hub id, got {len(given):,} characters that begin "
            f"{given[:40]!r}" + ("; put texts in a list: [text]" if what == "dataset" else ""),
        )

    def _unknown(self, what: str, given: str) -> str:
        tables: dict[str, Mapping[str, object]] = {
            "model": self._project.spec.models,
            "dataset": self._project.spec.datasets,
        }
        known, other = tables.pop(what), *tables
        origin, names = self._project.file, ", ".join(known) or "none"
        where = f"; {origin} has under {what}s: {names}" if origin else f", as {self._project.origin}"
        if given in tables[other]:
            return f"{what} {given!r} is a {other}, but a {what} is expected here{where}"
        one = "one of these, a path" if origin else "a path"
        text = "; a text goes in a list: [text]" if what == "dataset" and " " in given else ""
        return (
            f"{what} {given!r} is not known{nearest(given, known)}{where}; give {one} "
            f"(./{'folder' if what == 'model' else 'file'}) or a hub id (hub:org/name){text}"
        )

    def _from_files(self, name: str, spec: ModelSpec, revision: str | None) -> Model:
        # Paths in the entry are relative to the project's folder, which the cache's folder places on any machine.
        key = repr((_relative(self._project.folder, self._options.cache), name, spec))
        model = self._described.get(key)
        if model is None or model.files is None or not model.files.is_settled or model.files.moved:
            defaults, backend = self._project.spec.defaults, backend_of(spec, name, self._users_backends)
            entry = Entry(
                name=name,
                spec=spec,
                path=self._project.path,
                hub_id=self.hub_id,
                digest=self._digests.digest,
                device=spec.device or self._options.device or defaults.device,
                dtype=spec.dtype or defaults.dtype,
                offline=self._options.offline,
                workers=self._options.workers,
            )
            model = replace(described(backend, entry), batch_size=spec.batch_size or defaults.batch_size)
            self._described[key] = model
        if revision is None and spec.hub is None:
            revision = spec.revision
        return self.code.applied(model, revision, harmless(key))  # without the password of a server's address

    def _from_pair(self, pair: tuple[Any, Any], revision: str | None) -> Model:
        from pytest_lmgate.backends.hf.backend import describe_in_memory

        size = self._project.spec.defaults.batch_size
        model = describe_in_memory(pair, batch_size=size, workers=self._options.workers)
        return self.code.applied(model, revision, f"{id(pair[0])} {id(pair[1])}", pair)


def _relative(folder: Path, start: Path) -> str:
    try:
        return os.path.relpath(folder, start)
    except ValueError:  # on another drive of Windows
        return str(folder)


def _hub_id(written: str) -> tuple[str, str | None]:
    """Return the repository and revision of ``hub:org/name@revision``; ``hub:`` and the revision may be missing."""
    repo, _, revision = written.removeprefix("hub:").partition("@")
    return repo, revision or None
