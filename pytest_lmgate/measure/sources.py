"""What a gate is bound to: a model as its engine describes it, a dataset that is read once a session."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pytest_lmgate.cache.fingerprint import FileDigests
from pytest_lmgate.cache.store import logs_of
from pytest_lmgate.data.corpus import Corpus, corpus_from_rows, read_corpus, read_rows, rows_in_memory
from pytest_lmgate.data.results.rows import Columns, ResultRun, Series
from pytest_lmgate.data.results.rows import read as read_results
from pytest_lmgate.data.tags import read_tags
from pytest_lmgate.engines.base import Backend, Model, ModelEntry
from pytest_lmgate.engines.devices import device_ingredients
from pytest_lmgate.engines.registry import backend_called, described
from pytest_lmgate.errors import ConfigError, escape_controls
from pytest_lmgate.identity.code import replaced_in_libraries, summarize
from pytest_lmgate.identity.files import Snapshot
from pytest_lmgate.measure.binding import DataRef, ModelRef, Names
from pytest_lmgate.measure.results import ResultsRequest, results_model
from pytest_lmgate.measure.rows import DatasetRows, mappings
from pytest_lmgate.settings.entries import DatasetSpec, ModelSpec
from pytest_lmgate.settings.file import Project
from pytest_lmgate.settings.session import Options

if TYPE_CHECKING:
    from pytest_lmgate.measure.cluster import Cluster

T = TypeVar("T")


class CachePolicy:
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
        self._files_read: dict[tuple[str, str, str], tuple[Snapshot, Any]] = {}
        self.workers = options.workers  # processes that will load a model, and share the processors
        self.names, self.code = Names(project, users_backends), CachePolicy()

    def for_project(self, project: Project) -> Resolver:
        """Return the resolver of another project in the same session."""
        other = Resolver(project, self._options, self._digests, self._users_backends, self._cluster, self._note)
        other.code = self.code
        return other

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def model(self, given: Any) -> Model:
        """Describe a model, given as in a gate or already resolved."""
        ref = given if isinstance(given, ModelRef) else self.names.model(given)
        if ref.is_results:
            raise ConfigError(f"model: expected one that runs, but {ref.name!r} is results, which only gates read")
        if ref.spec is not None:
            return self._from_files(ref, ref.spec)
        if ref.pair is None:
            raise ConfigError(f"model: expected one that is described, got the {ref.name}")
        from pytest_lmgate.engines.transformers import describe_in_memory

        pair, size = ref.pair, self._project.spec.defaults.batch_size
        model = self._on_device(describe_in_memory(pair, batch_size=size, workers=self.workers))
        return self.code.with_cache_policy(model, ref.revision, f"{id(pair[0])} {id(pair[1])}", pair)

    def results(self, ref: ModelRef, task: str, metric: str, asked: ResultsRequest) -> tuple[Model, Series]:
        """Read a task's results; the model is what measured them, by the content of its files."""
        spec = None if ref.spec is None else ref.spec.results_spec
        assert spec is not None
        path, digest = self._project.path(spec.path), _size if self._options.looks else self._digests.digest

        def read() -> tuple[ResultRun, dict[str, str]]:
            run = read_results(path, Columns(spec.id, spec.score, spec.cluster))
            files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
            return run, {f"results/{file.relative_to(path).as_posix()}": digest(file) for file in files}

        run, content = self._read(("results", ref.name, repr(spec)), [path], read)
        series = run.find(task, metric, asked.variant)
        better = series.direction or spec.better or asked.direction
        return results_model(ref.name, content), msgspec.structs.replace(series, direction=better)

    def corpus(self, given: Any) -> Corpus:
        """Read a dataset's texts."""
        ref = given if isinstance(given, DataRef) else self.names.dataset(given)
        if not ref.is_entry:
            return self.code.shared(
                f"texts {id(ref.rows)}",
                ref.rows,
                lambda: corpus_from_rows(rows_in_memory(ref.rows, of="texts"), name=ref.name),
            )
        path = self._project.path(ref.spec.path) if ref.spec.path else None
        read = partial(read_corpus, ref.spec, path, name=ref.name, offline=self._options.offline)
        return self._read_entry("texts", ref, read)

    def rows(self, given: Any) -> DatasetRows:
        """Read a dataset's rows with all their columns, and those of its few-shot examples."""
        ref = given if isinstance(given, DataRef) else self.names.dataset(given)
        if not ref.is_entry:
            return self.code.shared(
                f"rows {id(ref.rows)}",
                ref.rows,
                lambda: DatasetRows(ref.name, ref.spec, mappings(rows_in_memory(ref.rows, of="rows"), ref.name)),
            )
        return self._read_entry("rows", ref, lambda: self._rows(ref.name, ref.spec))

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

    def _read_entry(self, kind: str, ref: DataRef, read: Callable[[], T]) -> T:
        paths = [self._project.path(each) for each in (ref.spec.path, ref.spec.examples) if each]
        return self._read((kind, ref.name, repr(ref.spec)), paths, read)

    def _read(self, key: tuple[str, str, str], paths: Iterable[Path], read: Callable[[], T]) -> T:
        """Read files once a session, and again if they changed."""
        if key in self._files_read and not self._files_read[key][0].moved:
            return self._files_read[key][1]  # type: ignore[no-any-return]
        files: list[Path] = []
        for path in paths:
            files += [path, *path.rglob("*")] if path.is_dir() else [path]
        snapshot, found = Snapshot.of(files), read()
        if snapshot.is_settled:
            self._files_read[key] = snapshot, found
        return found

    def _from_files(self, ref: ModelRef, spec: ModelSpec) -> Model:
        name, revision = ref.name, ref.revision
        # Paths in the entry are relative to the project's folder, which the cache's folder places on any machine.
        key = repr((_relative(self._project.folder, self._options.cache), name, spec))
        model = self._described.get(key)
        if model is None or model.files is None or not model.files.is_settled or model.files.moved:
            defaults, backend = self._project.spec.defaults, backend_called(ref.backend, self._users_backends)
            device = spec.device or self._options.device or defaults.device
            if device == "auto" and self._options.executor is not None:
                device = self._options.executor.device
            entry = ModelEntry(
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
            # A server's address may be localhost, and its key is in this process's environment; a program is this
            # machine's.
            if self._cluster is not None and spec.server is None and spec.command is None:
                model = self._cluster.moved(model, backend, entry)
            self._described[key] = model
        if revision is None and spec.hub is None:
            revision = spec.revision
        # Without the password of a server's address.
        return self.code.with_cache_policy(self._on_device(model), revision, escape_controls(key))

    def _on_device(self, model: Model) -> Model:
        """Add what the device that the model runs on adds to its address: the session may change it between gates."""
        added = device_ingredients(model.device, self._project.spec.devices)
        return replace(model, runtime={**model.runtime, **added}) if added else model


def _size(path: Path) -> str:
    return str(path.stat().st_size)


def _relative(folder: Path, start: Path) -> str:
    try:
        return os.path.relpath(folder, start)
    except ValueError:  # on another drive of Windows
        return str(folder)
