"""What the names in a gate refer to: a model as its engine describes it, a dataset read once a session.

A name is an entry of lmgate.yaml before a path before a hub id.

``org/name`` is a path if there is such a file or folder, or where its first part is a folder of the project: then
the second is misspelt or not there yet, and what lies on the hub under that name would be a stranger's.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_lmgate.cache.fingerprint import FileDigests
from pytest_lmgate.cache.store import logs_of
from pytest_lmgate.data.corpus import Corpus, corpus_from_rows, read_corpus, read_rows, rows_in_memory
from pytest_lmgate.data.prompts import Prompt, TextTask, bare, cell, make_task
from pytest_lmgate.data.tags import Tags, read_tags
from pytest_lmgate.engines.base import Backend, Entry, Model
from pytest_lmgate.engines.registry import backend_of, described
from pytest_lmgate.errors import ConfigError, DataError, escape_controls, nearest
from pytest_lmgate.identity.code import replaced_in_libraries, summarize
from pytest_lmgate.identity.files import Snapshot
from pytest_lmgate.measure.measurement import digest_of, identity_of, template_variables
from pytest_lmgate.settings.entries import DATA_SUFFIXES, DatasetSpec, ModelSpec
from pytest_lmgate.settings.file import Project
from pytest_lmgate.settings.gates import RevisedModel
from pytest_lmgate.settings.session import Options
from pytest_lmgate.stats.sample import cluster_numbers
from pytest_lmgate.windows.choices import Question, make_questions
from pytest_lmgate.windows.tokens import NO_CHATS, Chats

if TYPE_CHECKING:
    from pytest_lmgate.measure.cluster import Cluster

T = TypeVar("T")


class Names:
    def __init__(self, project: Project) -> None:
        self._project = project

    def model_spec(self, model: str | Path) -> tuple[str, ModelSpec]:
        """Return the name and spec of a model given by a name of lmgate.yaml, a path or a hub id."""
        known = self._project.spec.models
        if isinstance(model, str) and model in known:
            return model, known[model]
        if isinstance(model, Path) or self._is_path(model, "model"):
            return str(model), ModelSpec(path=str(model))
        if model.startswith("hub:") or model.count("/") == 1:
            self._require_no_folder("model", model)
            repo, revision = _hub_id(model)
            return model, ModelSpec(hub=repo, revision=revision)
        raise ConfigError(self._unknown("model", model))

    def dataset_spec(self, dataset: str | Path) -> tuple[str, DatasetSpec]:
        """Return the name and spec of a dataset given by a name of lmgate.yaml, a path or a hub id.

        A text with the suffix of a data file is a path.
        """
        known = self._project.spec.datasets
        if isinstance(dataset, str) and dataset in known:
            return dataset, known[dataset]
        if isinstance(dataset, Path) or self._is_path(dataset, "dataset"):
            return str(dataset), DatasetSpec(path=str(dataset))
        if dataset.startswith("hub:") or dataset.count("/") == 1:
            self._require_no_folder("dataset", dataset)
            return dataset, DatasetSpec(hub=dataset.removeprefix("hub:"))
        raise ConfigError(self._unknown("dataset", dataset))

    def hub_id(self, tokenizer: str) -> tuple[str, str | None] | None:
        """Return the repository and revision of a tokenizer on the hub; None for a path."""
        if self._is_path(tokenizer):
            return None
        self._require_no_folder("tokenizer", tokenizer)
        return _hub_id(tokenizer)

    def _is_path(self, given: str, what: str = "") -> bool:
        """Whether it has the form of a path, or exists."""
        if what:
            self._refuse_text(what, given)
        if given.startswith("hub:"):
            return False
        if given.startswith((".", "/", "~")) or given.count("/") > 1:
            return True
        suffix = Path(given).suffix if what == "dataset" else ""
        return suffix.lower() in DATA_SUFFIXES or (("/" in given or bool(suffix)) and self._exists(given))

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

    def _exists(self, given: str) -> bool:
        try:
            return self._project.path(given).exists()
        except PermissionError:
            return True  # reading it says why it cannot be

    def _refuse_text(self, what: str, given: str) -> None:
        """Refuse a text too long for a path or with several lines: a name was expected."""
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
            return f"{what} {given!r} is a {other}; expected a {what}{where}"
        one = "one of these, a path" if origin else "a path"
        text = "; put a text in a list: [text]" if what == "dataset" and " " in given else ""
        return (
            f"{what} {given!r} is not known{nearest(given, known)}{where}; give {one} "
            f"(./{'folder' if what == 'model' else 'file'}) or a hub id (hub:org/name){text}"
        )


def _hub_id(written: str) -> tuple[str, str | None]:
    """Parse ``hub:org/name@revision``; ``hub:`` and the revision are optional."""
    repo, _, revision = written.removeprefix("hub:").partition("@")
    return repo, revision or None


@dataclass(frozen=True)
class DatasetRows:
    """A dataset with all its columns, and the rows to show before each prompt as examples."""

    name: str
    spec: DatasetSpec
    rows: tuple[Mapping[str, Any], ...]
    examples: tuple[Mapping[str, Any], ...] = ()
    tags: Tags = field(default_factory=dict)

    @cached_property
    def question_prompts(self) -> tuple[Prompt, ...]:
        """What the questions ask, one or several a row."""
        return tuple(prompt for each in self.questions for prompt in each.prompts)

    def chats(self, model: Model, prompts: tuple[Prompt, ...]) -> Chats:
        """Return the chats among prompts of this dataset as a model's template writes them, once a session."""
        if not self.spec.is_chat:
            return NO_CHATS
        variables = template_variables(model, self.spec)

        def write() -> Chats:
            assert model.tokenizer is not None  # see `Evaluator`
            return Chats.of(prompts, model.tokenizer(), variables, model=model.name)

        if model.in_memory:  # nothing may hold it
            return write()
        key = model.name, identity_of(model), repr(variables), id(prompts)
        if key not in self._chats:
            self._chats[key] = write()
        return self._chats[key]

    @cached_property
    def _chats(self) -> dict[tuple[str, str, str, int], Chats]:
        return {}

    @cached_property
    def prompts_digest(self) -> str:
        """SHA-256 of all prompts."""
        return digest_of(self.prompts)

    @cached_property
    def pairs_digest(self) -> str:
        """SHA-256 of all prompts with the `targets`."""
        return digest_of([self.task.prompts, self.targets, *self._variables])

    @property
    def targets(self) -> list[str]:
        """The first reference of each row."""
        return [references[0] for references in self.task.references]

    @cached_property
    def questions_text(self) -> str:
        """All questions with their choices, as JSON."""
        return json.dumps([each.content for each in self.questions], ensure_ascii=False)

    @cached_property
    def clusters(self) -> list[Any] | None:
        """Label of each row's cluster; None without a `cluster` column."""
        if self.spec.cluster is None:
            return None
        return [cell(row, self.spec.cluster, self.name, index, what="cluster") for index, row in enumerate(self.rows)]

    @cached_property
    def groups(self) -> list[Any] | None:
        """Label of each row's group; None without `average_by`."""
        column = self.spec.average_by
        if column is None:
            return None
        return [bare(column, row, self.name, index, what="average_by") for index, row in enumerate(self.rows)]

    @property
    def parts(self) -> list[Any]:
        """The numbers of each row's cluster and group, and variables of the chat template, for digests."""
        clusters, groups = (
            None if labels is None else cluster_numbers(labels, len(self.rows)).tolist()
            for labels in (self.clusters, self.groups)
        )
        return [
            *([] if clusters is None else [clusters]),
            *([] if groups is None else [{"average_by": groups}]),
            *self._variables,
        ]

    @property
    def _variables(self) -> list[Any]:
        """The variables of the chat template, for digests; an empty list without any."""
        found = self.spec.chat_template_kwargs
        return [{"chat_template_kwargs": json.dumps(found, sort_keys=True, default=str)}] if found else []

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """What a model goes on from; no references are needed."""
        return self._task.prompts

    @property
    def task(self) -> TextTask:
        """Prompts and references."""
        require_references(self.name, self.spec)
        return self._task

    @cached_property
    def _task(self) -> TextTask:
        return make_task(self.rows, self.spec, name=self.name, examples=self.examples)

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """Questions with their choices."""
        require_questions(self.name, self.spec)
        return make_questions(self.rows, self.spec, name=self.name, examples=self.examples)


def require_references(name: str, spec: DatasetSpec) -> None:
    """Refuse a dataset that has nothing to compare texts with."""
    if spec.references is None:
        raise ConfigError(
            f"dataset {name!r}: set references: COLUMN (or a list of them) to compare texts with, and prompt: TEMPLATE "
            "with {column} fields, source: COLUMN or messages: COLUMN"
        )


def require_questions(name: str, spec: DatasetSpec) -> None:
    """Refuse a dataset without choices and targets."""
    if spec.question is None and (spec.messages is None or spec.answer is spec.target is None):
        raise ConfigError(
            f"dataset {name!r}: accuracy needs question: (a column or template), choices: (a column that holds a list, "
            "or a list of columns) and answer: (the column of the right one); or question: and target: (the text that "
            "follows)"
        )


def mappings(rows: Iterable[Any], name: str) -> tuple[Mapping[str, Any], ...]:
    """Return rows as mappings, a bare text as the column ``text``; there must be one."""
    found = tuple({"text": row} if isinstance(row, str) else row for row in rows)
    if not found:
        raise DataError(f"dataset {name!r}: expected rows, got none")
    for index, row in enumerate(found):
        if not isinstance(row, Mapping):
            raise DataError(f"dataset {name!r}: row {index}: expected a mapping, got {type(row).__name__}")
    return found


class SessionCode:
    """Says of each model whether its measurements may be kept.

    The user's code may patch a library whenever a test runs. So patches are looked for at each model, except for gates
    between which no code of the user's runs.
    """

    def __init__(self) -> None:
        self._patches: tuple[str, ...] | None = None
        self._shared: dict[str, tuple[Any, Any]] | None = None

    def forget(self, *, share: bool) -> None:
        """Look for patches again; with `share`, only once until `forget` is called again."""
        self._patches, self._shared = None, {} if share else None

    def shared(self, key: str, held: Any, make: Callable[[], T]) -> T:
        """Return what `make` returns, the first time only while gates share.

        The object `held` is kept as long, so that no other object gets its id, which may be in `key`.
        """
        if self._shared is None:
            return make()
        if key not in self._shared:
            self._shared[key] = make(), held
        return self._shared[key][0]  # type: ignore[no-any-return]

    def with_cache_policy(self, model: Model, revision: str | None, key: str, held: Any = None) -> Model:
        """Add the session's code to a model: the revision that the user gave, or why nothing may be kept.

        The `key` identifies the model as long as measurements are shared; a model without content, in all sessions.
        """
        if self._patches is None or self._shared is None:
            self._patches = replaced_in_libraries()
        patched, reason = self._patches, model.not_kept
        if model.content is None and not reason:
            reason = "its engine gives no digest of the model"
        if not (patched or reason or revision is not None):
            return model
        added = {"patches": "; ".join(patched)} if patched else {}
        if revision is not None:
            # Two models of which nothing else is known, as two servers, may have the same revision.
            known = {"entry": key} if model.content is None else model.content
            return replace(model, content={**known, **added, "revision": revision}, not_kept="")
        # No other measurement has this address: a mark is never used again.
        mark = self.shared(f"model {key}", held, lambda: uuid.uuid4().hex)
        reason = reason or f"this session patched {summarize(patched)}"
        content = None if model.content is None else {**model.content, **added}
        return replace(model, content=content, runtime={**model.runtime, "session": mark}, not_kept=reason)


class Resolver:
    """Resolves a gate's arguments; a model whose files do not change is described once.

    Models from files run on the `cluster`, if there is one; this process asks servers itself.
    """

    def __init__(
        self,
        project: Project,
        options: Options,
        digests: FileDigests,
        users_backends: Mapping[str, Backend],
        cluster: Cluster | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._project, self._options, self._digests, self._users_backends = project, options, digests, users_backends
        self._cluster, self._note = cluster, note
        self._described: dict[str, Model] = {}
        self._datasets: dict[tuple[str, str, str], tuple[Snapshot, Any]] = {}
        self.workers = options.workers  # processes that will load a model, and share the processors
        self.names, self.code = Names(project), SessionCode()

    def for_project(self, project: Project) -> Resolver:
        """Return the resolver of another project in the same session."""
        other = Resolver(project, self._options, self._digests, self._users_backends, self._cluster, self._note)
        other.code = self.code
        return other

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def model(self, model: Any) -> Model:
        """Find a model: a name, a path, a hub id, a ``(model, tokenizer)`` pair or a pipeline."""
        revision = None
        if isinstance(model, RevisedModel):
            model, revision = model.model, model.revision
        if isinstance(model, str | Path):
            return self._from_files(*self.names.model_spec(model), revision)
        if hasattr(model, "model") and hasattr(model, "tokenizer") and not isinstance(model, tuple):
            model = model.model, model.tokenizer
        if not isinstance(model, tuple | list) or len(model) != 2:
            raise ConfigError(
                "model: expected a name of lmgate.yaml, a path, a hub id, a (model, tokenizer) pair or a pipeline, "
                f"got {type(model).__name__}"
            )
        from pytest_lmgate.engines.transformers import describe_in_memory

        pair, size = (model[0], model[1]), self._project.spec.defaults.batch_size
        found = describe_in_memory(pair, batch_size=size, workers=self.workers)
        return self.code.with_cache_policy(found, revision, f"{id(pair[0])} {id(pair[1])}", pair)

    def corpus(self, dataset: Any) -> Corpus:
        """Read a dataset: a name, a path, a hub id, or rows in memory."""
        if not isinstance(dataset, str | Path):
            name = f"in-memory {type(dataset).__name__}"
            return self.code.shared(
                f"texts {id(dataset)}",
                dataset,
                lambda: corpus_from_rows(rows_in_memory(dataset, of="texts"), name=name),
            )
        name, spec = self.names.dataset_spec(dataset)
        path = self._project.path(spec.path) if spec.path else None
        return self._read(
            "texts", name, spec, lambda: read_corpus(spec, path, name=name, offline=self._options.offline)
        )

    def rows(self, dataset: Any) -> DatasetRows:
        """Read a dataset's rows with all their columns, and those of its few-shot examples.

        Rows in memory have the columns ``source`` and ``references``, or ``question``, ``choices`` and ``answer``.
        """
        if not isinstance(dataset, str | Path):
            name = f"in-memory {type(dataset).__name__}"
            spec = DatasetSpec(
                path=name,
                source="source",
                references=["references"],
                question="question",
                choices="choices",
                answer="answer",
            )
            return self.code.shared(
                f"rows {id(dataset)}",
                dataset,
                lambda: DatasetRows(name, spec, mappings(rows_in_memory(dataset, of="rows"), name)),
            )
        name, spec = self.names.dataset_spec(dataset)
        return self._read("rows", name, spec, lambda: self._rows(name, spec))

    def _rows(self, name: str, spec: DatasetSpec) -> DatasetRows:
        path = self._project.path(spec.path) if spec.path else None
        found = read_rows(spec, path, name=name, offline=self._options.offline)
        examples: tuple[Mapping[str, Any], ...] = ()
        if spec.examples is not None:
            file, key = self._project.path(spec.examples), f"datasets.{name}.examples"
            shown = read_rows(DatasetSpec(path=spec.examples), file, name=f"{name} (examples)", key=key)
            examples = mappings(shown, f"{name} (examples)")
        rows = mappings(found, name)
        return DatasetRows(name, spec, rows, examples, read_tags(rows, spec.tag_columns, name))

    def _read(self, kind: str, name: str, spec: DatasetSpec, read: Callable[[], T]) -> T:
        """Read a dataset once a session, and again if its files changed."""
        key = (kind, name, repr(spec))
        if key in self._datasets and not self._datasets[key][0].moved:
            return self._datasets[key][1]  # type: ignore[no-any-return]
        files: list[Path] = []
        for path in (self._project.path(each) for each in (spec.path, spec.examples) if each):
            files += [path, *path.rglob("*")] if path.is_dir() else [path]
        snapshot, found = Snapshot.of(files), read()
        if snapshot.is_settled:
            self._datasets[key] = snapshot, found
        return found

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
                digest=_size if self._options.looks else self._digests.digest,
                device=device,
                dtype=spec.dtype or defaults.dtype,
                offline=self._options.offline,
                looks=self._options.looks,
                workers=self.workers,
                worker=self._options.worker,
                run=self._options.run,
                logs=logs_of(self._options.cache),
                note=self._note,
            )
            model = replace(described(backend, entry), batch_size=spec.batch_size or defaults.batch_size)
            model = replace(model, chat_template_kwargs=spec.chat_template_kwargs)
            if model.tokenizer is not None:
                model = replace(model, tokenizer=cache(model.tokenizer))
            # A server's address may be localhost, and its key is in this process's environment.
            if self._cluster is not None and spec.server is None:
                model = self._cluster.moved(model, backend, entry)
            self._described[key] = model
        if revision is None and spec.hub is None:
            revision = spec.revision
        # Without the password of a server's address.
        return self.code.with_cache_policy(model, revision, escape_controls(key))


def _size(path: Path) -> str:
    return str(path.stat().st_size)


def _relative(folder: Path, start: Path) -> str:
    try:
        return os.path.relpath(folder, start)
    except ValueError:  # on another drive of Windows
        return str(folder)
