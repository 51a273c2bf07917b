"""Results of another tool as a measurement: its scores are read, and no model runs.

`scores_of` is the way from rows to scores, for gates and for ``lmgate judge``: the scale, the clusters, the signature
and what a comparison must share.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.store import StoredResult
from pytest_lmgate.data.results.pairs import Pair, paired
from pytest_lmgate.data.results.rows import ResultRow, ResultRun, Series, digest
from pytest_lmgate.data.tags import Tags
from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.errors import ComparisonError, ConfigError, MetricInputError, ModelError
from pytest_lmgate.measure.measurement import Measurement, MeasurementContext
from pytest_lmgate.metrics.score import Score, ScoredRow
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.settings.metrics import Direction
from pytest_lmgate.stats.sample import ByRow, Sample, Scale, cluster_numbers
from pytest_lmgate.windows.tokens import TokenizerFacts

Weights = Literal["size", "task"]
# Raise the number whenever the code that reads results may give other scores.
_KIND = "results/1"
_IN_SIGNATURE = ("task_version", "number_of_shots")
_SHORT = 200  # characters of a fact that a baseline keeps as it is


@dataclass(frozen=True)
class ResultsRequest:
    """Which rows of a task a gate reads, and which scores it takes to be better; None if it does not say."""

    variant: str = ""
    direction: Direction | None = None


@dataclass(frozen=True)
class TaskResults:
    """The rows of a task, read from files."""

    name: str
    series: Series
    run: ResultRun

    @property
    def tags(self) -> Tags:
        return tags_of_rows(self.series.rows)


@dataclass(frozen=True)
class ResultScores(Measurement[Floats]):
    """The scores of a task's rows; the address is the content of the files, and everything that they tell."""

    data: TaskResults
    asked: ResultsRequest

    def __post_init__(self) -> None:
        known, wanted = self.data.series.direction, self.asked.direction
        if wanted and known and wanted != known:
            end = "min" if known == "higher" else "max"
            raise ConfigError(f"{known} values of {self.metric!r} are better: use metric_{end}")

    @property
    def series(self) -> Series:
        series = self.data.series
        return dataclasses.replace(series, direction=series.direction or self.asked.direction)

    @cached_property
    def fingerprint(self) -> Fingerprint:
        told = {**self.identity, "metric": str(self.signature), "scores": digest(self.values.tolist())}
        return Fingerprint.of(_KIND, {**self.model.ingredients, **told})

    @cached_property
    def values(self) -> Floats:
        """The scores of the rows, shape ``[rows]``."""
        return _values(self.series)

    @cached_property
    def identity(self) -> dict[str, str]:
        return identity_of_series(self.series)

    @property
    def signature(self) -> Signature:
        return signature_of(self.series, self.data.run.tool)

    def measure(self, context: MeasurementContext) -> Floats:
        return self.values

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        return 0

    def encode(self, statistics: Floats) -> StoredResult:
        return StoredResult({"scores": statistics}, {})

    def decode(self, entry: StoredResult) -> Floats:
        if not np.array_equal(entry.arrays["scores"], self.values):
            raise ValueError("expected the scores of the files")
        return self.values

    def score(self, statistics: Floats) -> Score:
        return scores_of(self.series, tool=self.data.run.tool)[0]

    def paired_with(self, reference: ResultScores) -> tuple[Pair, Score, Score]:
        """Return both scores on the same rows in the same order; ComparisonError if they are other measurements."""
        names = f"{reference.model.name!r}", f"{self.model.name!r}"
        pair = paired(reference.series, self.series, "error", names)
        if pair.problem:
            raise ComparisonError(f"cannot be compared with the model {names[0]}: {pair.problem}")
        ours, theirs = scores_of(pair.new, pair.old, tool=self.data.run.tool)
        return pair, ours, theirs


def results_model(name: str, content: Mapping[str, str]) -> Model:
    """Return the model that measured results, as far as it is known: by the digests of their files."""

    def refuse() -> Runner:
        raise ModelError(f"model {name!r} is results, which are only read")

    return Model(name, refuse, content=content, offers=frozenset(), device="")


def scores_of(
    new: Series, old: Series | None = None, *, tool: str, tasks: Sequence[str] = (), weights: Weights = "size"
) -> list[Score]:
    """Return the scores of one series, or of a pair on the same rows, which then have one scale.

    Of a group of tasks, `tasks` has the task of each row; by `weights` each row counts alike, or each task.
    """
    if new.direction is None:
        raise MetricInputError(
            f"neither the files nor its name tell which scores of {new.metric!r} are better: add --better higher or "
            "--better lower; for a gate, better: higher or better: lower under results: of the model"
        )
    sides = [new] if old is None else [new, old]
    known = np.array(list(map(_values, sides)))
    # If every row is right or wrong, or higher is better and no score is above 1, that is the end of the scale.
    rights, lowest = bool(np.isin(known, (0, 1)).all()), 0.0 if known.min() >= 0 else -math.inf
    ends = rights or (new.direction == "higher" and lowest == 0 and known.max() <= 1)
    scale = Scale(new.direction, lowest=lowest, highest=1.0 if ends else math.inf, of_rows=True)
    signature, identity = signature_of(new, tool, weights if tasks else None), identity_of_series(new)
    scores = []
    for series, values in zip(sides, known, strict=True):
        clusters = cluster_numbers([_cluster(row) for row in series.rows], len(series.rows))
        by_row = ByRow(values[:, None], np.ones(len(values), dtype=np.int64), clusters)
        groups = tasks if tasks and weights == "task" else None
        sample = Sample.of_means(by_row, scale, right_or_wrong=rights, groups=groups)
        noise = sample.noise()
        score = Score(
            noise.mean,
            metric=new.metric,
            unit="row",
            direction=new.direction,
            n=len(values),
            stderr=noise.stderr,
            interval=sample.interval,
            signature=signature,
            fingerprint=digest(identity["data"], values.tolist()),
            cached=True,
            sample=sample.identified(signature=signature, **identity),
            show_row=lambda at, rows=series.rows: _shown(rows[at], at),  # type: ignore[misc]  # bound to this side
        )
        scores.append(score)
    return scores


def signature_of(series: Series, tool: str, weights: Weights | None = None) -> Signature:
    facts = series.facts
    fields = {"filter": series.filter or "none", "task_version": facts.task_version, "version": tool}
    fields |= {"shots": facts.number_of_shots, "weights": weights}
    return Signature([(series.metric, None), *((name, value) for name, value in fields.items() if value)])


def identity_of_series(series: Series) -> dict[str, str]:
    """Return what a comparison must share besides the signature: the rows, and the facts that the files tell."""
    told = {name: value for name, value in vars(series.facts).items() if value and name not in _IN_SIGNATURE}
    data = digest([(row.document or row.id, row.prompt, _cluster(row)) for row in series.rows])
    known = {name.replace("_", " "): _kept(value) for name, value in told.items()}
    return {"data": data, "better": series.direction or "", **known}


def tags_of_rows(rows: Sequence[ResultRow]) -> Tags:
    """Return the tags of rows by column, of columns that tell rows apart."""
    columns = dict.fromkeys(name for row in rows for name in row.tags)
    tags = {name: tuple(row.tags.get(name, "") for row in rows) for name in columns}
    return {name: values for name, values in tags.items() if len(set(values)) > 1}


def _values(series: Series) -> Floats:
    return np.array([row.score for row in series.rows], dtype=np.float64)


def _cluster(row: ResultRow) -> str:
    return row.cluster or row.document or row.id


def _kept(fact: str) -> str:
    return fact if len(fact) <= _SHORT else digest(fact)[:12]


def _shown(row: ResultRow, at: int) -> ScoredRow:
    prompt, reference, output = row.texts()
    return ScoredRow(int(row.id) if row.id.isdecimal() else at, row.score, output, (reference,), prompt)
