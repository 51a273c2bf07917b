"""Results of another tool as a measurement: its scores are read, and no model runs.

From rows that the tool scored to scores, for gates and for ``lmgate judge``: the scale, the clusters, the signature and
what a comparison must share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec.structs import asdict

from pytest_lmgate.arrays import Floats
from pytest_lmgate.cache.store import Fingerprint, StoredResult
from pytest_lmgate.data.columns import Tags
from pytest_lmgate.data.results.pairs import ResultPair, paired
from pytest_lmgate.data.results.rows import ResultRow, Series, digest
from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.errors import ComparisonError, ConfigError, MetricInputError, ModelError
from pytest_lmgate.measure.measurement import Measurement, MeasurementContext
from pytest_lmgate.metrics.score import Score, ScoredRow
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.settings.metrics import Direction
from pytest_lmgate.stats.sample import ByRow, Sample, Scale, cluster_numbers
from pytest_lmgate.windows.tokens import TokenizerFacts

# Raise the number whenever the code that reads results may give other scores.
_KIND = "results/1"
_IN_SIGNATURE = ("task_version", "number_of_shots")
_SHORT = 200  # characters of a fact that a baseline keeps as it is
_TENFOLD = 10  # a percentage is larger than a share by as much, even if that is of a model ten times as bad


@dataclass(frozen=True)
class ResultsRequest:
    """Which rows of a task a gate reads, and which scores it takes to be better; None if it does not say."""

    variant: str = ""
    direction: Direction | None = None


@dataclass(frozen=True)
class ResultScores(Measurement[Floats]):
    """The scores of a task's rows; the address is the content of the files, and everything that they tell."""

    data: Series
    asked: ResultsRequest
    offers = ()  # no model runs

    def __post_init__(self) -> None:
        super().__post_init__()
        known, wanted = self.data.direction, self.asked.direction
        if wanted and known and wanted != known:
            end = "min" if known == "higher" else "max"
            raise ConfigError(f"{known} values of {self.metric!r} are better: use metric_{end}")

    @cached_property
    def fingerprint(self) -> Fingerprint:
        told = {**self.identity, "metric": str(self.signature), "scores": digest(values_of(self.data).tolist())}
        return Fingerprint.of(_KIND, {**self.model.ingredients, **told})

    @cached_property
    def identity(self) -> dict[str, str]:
        return identity_of_series(self.data)

    @property
    def signature(self) -> Signature:
        return signature_of(self.data)

    @property
    def remarks(self) -> list[str]:
        return list(self.data.remarks)

    def measure(self, context: MeasurementContext) -> Floats:
        return values_of(self.data)

    def tokens(self, tokenizer: TokenizerFacts) -> int:
        return 0

    def encode(self, statistics: Floats) -> StoredResult:
        return StoredResult({"scores": statistics}, {})

    def decode(self, entry: StoredResult) -> Floats:
        return entry.arrays["scores"]

    def score(self, statistics: Floats) -> Score:
        return next(scores_of(self.data))

    def paired_with(self, reference: ResultScores) -> tuple[ResultPair, Score, Score]:
        """Return both scores on the same rows in the same order; ComparisonError if they are other measurements."""
        names = f"{reference.model.name!r}", f"{self.model.name!r}"
        pair = paired(reference.data, self.data, "error", names)
        if pair.problem:
            raise ComparisonError(f"cannot be compared with the model {names[0]}: {pair.problem}")
        ours, theirs = scores_of(pair.new, pair.old)
        return pair, ours, theirs


def results_model(name: str, content: Mapping[str, str]) -> Model:
    """Return the model that measured results, as far as it is known: by the digests of their files."""

    def refuse() -> Runner:
        raise ModelError(f"model {name!r} is results, which are only read")

    return Model(name, refuse, content=content, offers=frozenset(), device="")


def scores_of(new: Series, old: Series | None = None) -> Iterator[Score]:
    """Yield the scores of one series, or of a pair on the same rows, which then have one scale."""
    if new.direction is None:
        raise MetricInputError(
            f"neither the files nor its name tell which scores of {new.metric!r} are better: add --better higher or "
            "--better lower; for a gate, better: higher or better: lower under results: of the model"
        )
    sides = [new] if old is None else [new, old]
    known = np.array(list(map(values_of, sides)))
    # If every row is right or wrong, or higher is better and no score is above 1, that is the end of the scale.
    rights, lowest = bool(((known == 0) | (known == 1)).all()), 0.0 if known.min() >= 0 else -math.inf
    ends = rights or (new.direction == "higher" and lowest == 0 and known.max() <= 1)
    scale = Scale(new.direction, lowest=lowest, highest=1.0 if ends else math.inf, of_rows=True)
    if old is not None:
        require_one_scale(new.direction, *known)
    signature, identity = signature_of(new), identity_of_series(new)
    groups = [part.task for part in new.parts for _ in part.rows] if new.weights == "task" else None
    clusters = cluster_numbers([row.unit for row in new.rows], len(new.rows))  # of a pair the same on both sides
    for series, values in zip(sides, known, strict=True):
        by_row = ByRow(values[:, None], np.ones(len(values), dtype=np.int64), clusters)
        sample = Sample.of_means(by_row, scale, right_or_wrong=rights, groups=groups)
        noise = sample.noise()
        yield Score(
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


def require_one_scale(direction: Direction, now: Floats, then: Floats) -> None:
    """Refuse scores of rows of which one side is written as percent, so that the candidate looks better than it is.

    Lower scores may be below 1 by themselves, but mean and maximum are not a tenth of what they were.
    """
    is_percent = now.min() >= 0 and then.min() >= 0
    if direction == "higher":
        is_percent &= then.max() <= 1 < now.max()
    else:
        is_percent &= 0 < now.mean() <= 1 < then.max()
        is_percent &= all(
            _TENFOLD * one <= other for one, other in ((now.mean(), then.mean()), (now.max(), then.max()))
        )
    if is_percent:
        raise ComparisonError(
            f"the reference's scores are up to {then.max():g}, the candidate's up to {now.max():g}: was one of the two "
            "written as percent, or by another metric of this name?"
        )


def signature_of(series: Series) -> Signature:
    fields = {"filter": series.filter or "none", "task_version": series.facts.task_version, "version": series.tool}
    fields |= {"shots": series.facts.number_of_shots, "weights": series.weights}
    return Signature([(series.metric, None), *((name, value) for name, value in fields.items() if value)])


def identity_of_series(series: Series) -> dict[str, str]:
    """Return what a comparison must share besides the signature: the rows, and the facts that the files tell."""
    told = {name.replace("_", " "): fact for name, fact in asdict(series.facts).items() if name not in _IN_SIGNATURE}
    kept = {name: fact if len(fact) <= _SHORT else digest(fact)[:12] for name, fact in told.items() if fact}
    data = digest([(row.document or row.id, row.prompt, row.unit) for row in series.rows])
    return {"data": data, "better": series.direction or "", **kept}


def tags_of_rows(rows: Sequence[ResultRow]) -> Tags:
    """Return the tags of rows by column, of columns that tell rows apart."""
    columns = dict.fromkeys(name for row in rows for name in row.tags)
    tags = {name: tuple(row.tags.get(name, "") for row in rows) for name in columns}
    return {name: values for name, values in tags.items() if len(set(values)) > 1}


def values_of(series: Series) -> Floats:
    return np.array([row.score for row in series.rows], dtype=np.float64)


def _shown(row: ResultRow, at: int) -> ScoredRow:
    try:
        prompt, reference, output = row.texts()
    except (AttributeError, LookupError, TypeError, ValueError):  # the file has something else in place of a text
        prompt, reference, output = "", "", ""
    prompt += f" [{row.tags['task']}]" if "task" in row.tags else ""
    return ScoredRow(int(row.id) if row.id.isdecimal() else at, row.score, output, (reference,), prompt)
