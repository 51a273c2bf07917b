"""`Evaluator`: from a gate that is bound to its score: open the measurement, get or measure it, score it.

What a gate is bound to comes first, from a `Resolver`: a model as its engine describes it, and a dataset, which is read
once a session.
"""

from __future__ import annotations

import contextlib
import copy
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import yaml

from pytest_lmgate.cache.store import FileDigests, logs_of, open_store
from pytest_lmgate.data.columns import columns_of, read_tags
from pytest_lmgate.data.corpus import (
    Corpus,
    corpus_from_rows,
    read_corpus,
    read_rows,
    rows_in_memory,
)
from pytest_lmgate.data.results.rows import Columns, ResultRun, Series
from pytest_lmgate.data.results.rows import read as read_results
from pytest_lmgate.engines.base import Backend, Model, ModelEntry
from pytest_lmgate.engines.devices import device_ingredients
from pytest_lmgate.engines.registry import backend_called, described
from pytest_lmgate.errors import ConfigError, escape_controls
from pytest_lmgate.identity import Snapshot, replaced_in_libraries, summarize
from pytest_lmgate.measure.binding import Bound, BoundGate, DataRef, ModelRef, Names, bind, bind_gate
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.likelihoods import ConditionalLikelihoods
from pytest_lmgate.measure.lookup import Measurements
from pytest_lmgate.measure.loop import Log
from pytest_lmgate.measure.measurement import CausalLikelihoods, Measurement
from pytest_lmgate.measure.results import ResultScores, ResultsRequest, results_model
from pytest_lmgate.measure.rows import DatasetRows, mappings
from pytest_lmgate.measure.texts import TextFunction, identity_of_texts, score_function
from pytest_lmgate.metrics.divergence import Divergence, divergence
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.metrics.texts import TextMetric, text_score
from pytest_lmgate.settings.entries import DatasetSpec, ModelSpec, Project
from pytest_lmgate.settings.gate_options import TextRequest
from pytest_lmgate.settings.gates import EvaluationSpec, Gate
from pytest_lmgate.settings.session import Options
from pytest_lmgate.windows.tokens import DatedChats

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
        """Add what may be kept to a model: the revision that the user gave, or why nothing may be kept.

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
    """Describes the models and reads the data that gates name; a model whose files do not change is described once.

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
        if ref.spec is not None and ref.spec.results is not None:
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

        def read() -> Corpus:
            corpus = read_corpus(ref.spec, path, name=ref.name, offline=self._options.offline)
            return replace(corpus, has_entry=ref.name in self._project.spec.datasets)

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
        return DatasetRows(name, spec, rows, examples, read_tags(rows, columns_of(spec.tags), name))

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


Expect = Callable[[Mapping[str, str], str], None]
"""Is called with a sample's identity and the device before a model runs; raises where a comparison needs another."""


def _represented(dumper: yaml.representer.SafeRepresenter, score: Score) -> yaml.Node:
    return dumper.represent_float(float(score))


yaml.representer.SafeRepresenter.add_representer(Score, _represented)  # for yaml.safe_dump


@dataclass
class Evaluator:
    """Evaluates gates and fixtures; each measurement is made once.

    Users registered `users_metrics`, which are metrics of texts, and `users_backends`, which are engines.
    """

    project: Project
    options: Options
    log: Log = field(default_factory=Log)
    users_metrics: Mapping[str, TextMetric] = field(default_factory=dict)
    users_backends: Mapping[str, Backend] = field(default_factory=dict)

    def __post_init__(self) -> None:
        store = open_store(self.options, self.log.warn, self.log.remark)
        self.measurements = Measurements(store, self.options, self.log)
        cluster = None
        if self.options.executor is not None:
            from pytest_lmgate.measure.cluster import Cluster

            cluster = Cluster(self.options.executor, self.log)
        self.resolver = Resolver(self.project, self.options, store.digests, self.users_backends, cluster, self.log.note)
        # The texts of functions by their ids and the digest of the prompts, where gates share them.
        self._written: dict[int, dict[str, list[str]]] | None = None
        self._dated = DatedChats()

    def for_project(self, project: Project) -> Evaluator:
        """Return the evaluator of another project, which shares cache, models in memory and measurements with this."""
        other = copy.copy(self)
        other.project, other._written, other.resolver = project, None, self.resolver.for_project(project)
        return other

    def close(self) -> None:
        """End what this process started: servers and the cluster."""
        self.measurements.close()
        self.resolver.close()

    @contextlib.contextmanager
    def sharing(self) -> Iterator[None]:
        """Share the texts of functions between the gates of one test.

        A function may answer differently the next time and has no content to hash, so nothing is kept longer.
        """
        self._written = {}
        try:
            yield
        finally:
            self._written = None

    def forget(self, *, share: bool = False) -> None:
        """Forget uncacheable measurements: the user's code may have run since.

        With `share`, the next evaluations share them, until `forget` is called again.
        """
        self.resolver.code.forget(share=share)
        self.measurements.forget()

    def bind(self, what: EvaluationSpec | Bound) -> Bound:
        """Resolve what an evaluation names, unless that was done."""
        return what if isinstance(what, Bound) else bind(what, self.resolver.names, self.users_metrics)

    def bind_gate(self, gate: Gate, resolve: Callable[[Any], Any] = lambda given: given) -> BoundGate:
        """Resolve what a gate names; `resolve` replaces a fixture reference by the fixture's value."""
        return bind_gate(gate, self.resolver.names, self.users_metrics, resolve)

    def evaluate(self, what: EvaluationSpec | Bound, expect: Expect = lambda *_: None) -> Score:
        """Measure for a gate or a fixture; for encoder-decoder models, perplexity is that of the first reference."""
        started, bound = time.monotonic(), self.bind(what)
        if bound.measurement is None:
            score, remarks = self._of_texts(bound, expect, started), list[str]()
        else:
            ready = partial(self._ready, bound, expect)
            made = self.measurements.get_or_measure(ready(), ready)
            measurement = made.measurement
            self._dated.add(measurement.chats)
            remarks = [*measurement.remarks, *measurement.doubts(made.statistics)]
            score = measurement.scored(made.statistics).placed(
                model=measurement.model.name,
                dataset=measurement.data.name,
                fingerprint=made.address,
                cached=made.cached,
                seconds=time.monotonic() - started,
            )
            score.hardware = made.hardware
        if hint := score.details.get("hint"):
            remarks.append(f"{score.dataset or 'the given texts'}: {hint}")
        for remark in remarks:
            self.log.remark(remark)
        return score

    def compare(self, what: EvaluationSpec | Bound) -> Divergence:
        """Measure all figures of a model and its reference."""
        started, bound = time.monotonic(), self.bind(what)
        made = self.measurements.get_or_measure(self.open(bound), partial(self.open, bound))
        measurement = made.measurement
        self._dated.add(measurement.chats)
        assert isinstance(measurement, Divergences)
        for remark in (*measurement.remarks, *measurement.doubts(made.statistics)):
            self.log.remark(remark)
        signature = measurement.signature.plus(*measurement.named_settings)
        return divergence(made.statistics, signature=signature).placed(
            model=measurement.model.name,
            reference=measurement.reference.name,
            dataset=measurement.data.name,
            fingerprint=made.address,
            cached=made.cached,
            seconds=time.monotonic() - started,
        )

    def evaluate_beside(self, what: Bound, other: Bound, score: Score) -> tuple[Score, Score]:
        """Measure what a score of `what` is compared with; two results are then on the same rows, by one scale."""
        reference = self.evaluate(other)
        if what.measurement is not ResultScores:
            return score, reference
        ours, theirs = self.open(what), self.open(other)
        assert isinstance(ours, ResultScores)
        assert isinstance(theirs, ResultScores)
        pair, *scores = ours.paired_with(theirs)
        tools, where = [each.data.tool for each in (ours, theirs)], f"{ours.words} against {theirs.model.name}"
        if pair.unchecked:
            self.log.remark(f"{where}: not checked, as the files do not tell: {', '.join(pair.unchecked)}")
        if tools[0] != tools[1]:
            self.log.remark(f"{where}: measured by {tools[0]} and {tools[1]}")
        first, second = (made.placed_as(each) for made, each in zip(scores, (score, reference), strict=True))
        return first, second

    def cached_statistics(self, what: EvaluationSpec | Bound) -> tuple[Measurement[Any], Any]:
        """Return the measurement of an evaluation, and its statistics if this session has them, else None."""
        measurement = self.open(self.bind(what))
        return measurement, self.measurements.known(measurement)

    def open(self, bound: Bound) -> Measurement[Any]:
        """Describe the models and read the data that a gate is bound to; no model runs."""
        what, kind, find = bound.what, bound.measurement, self.resolver
        assert kind is not None
        assert bound.model is not None
        if kind is ResultScores:
            read = find.results(bound.model, what.dataset, what.metric, bound.asked)
            return ResultScores(what.metric, *read, bound.asked)
        assert bound.data is not None
        model = self._model(bound.model, bound.data)
        others = [self._model(bound.reference, bound.data)] if bound.reference else []
        if kind is CausalLikelihoods and model.kind == "encoder-decoder":
            rows = find.rows(bound.data)
            try:
                _ = rows.task
            except ConfigError as error:
                raise ConfigError(
                    f"{what.metric} of the encoder-decoder model {model.name!r} measures a reference given its source: "
                    f"{error}"
                ) from error
            return ConditionalLikelihoods(what.metric, model, rows, bound.asked)
        scorers = [bound.scorer] if bound.scorer else []
        data = find.rows(bound.data) if bound.by_rows else find.corpus(bound.data)
        return kind(what.metric, model, data, bound.asked, *others, *scorers)

    def _model(self, ref: ModelRef, data: DataRef) -> Model:
        """Describe a model; where chats are part of an address, it gives its tokenizer, loading itself if need be."""
        model = self.resolver.model(ref)
        if model.tokenizer is None and data.spec.is_chat:
            return replace(model, tokenizer=lambda: self.measurements.runner(model).tokenizer)
        return model

    def _ready(self, bound: Bound, expect: Expect) -> Measurement[Any]:
        """Return what to measure, unless a comparison needs something else."""
        measurement = self.open(bound)
        expect(measurement.shared, measurement.model.device)
        return measurement

    def _of_texts(self, bound: Bound, expect: Expect, started: float) -> Score:
        """Score texts that are given, or that a function writes."""
        how, metric = bound.what.how, bound.scorer
        assert isinstance(how, TextRequest)
        assert metric is not None
        if how.predictions is not None:
            return text_score(metric, how.predictions, how.references)
        assert bound.model is not None
        assert bound.model.function is not None
        assert bound.data is not None
        source, rows = bound.model.function, self.resolver.rows(bound.data)
        expect(identity_of_texts(rows, how, metric), "")
        written = {} if self._written is None else self._written.setdefault(id(source), {})
        score = score_function(TextFunction(bound.model.name, source, written), rows, how, metric)
        return score.placed(
            model=bound.model.name,
            dataset=rows.name,
            fingerprint="",
            cached=False,
            seconds=time.monotonic() - started,
        )
