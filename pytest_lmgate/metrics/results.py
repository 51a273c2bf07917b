"""From rows that another tool scored to scores, for gates and for ``lmgate judge``.

The scale, the clusters, the signature and what a comparison must share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import asdict

from pytest_lmgate.arrays import Floats
from pytest_lmgate.data.columns import Tags
from pytest_lmgate.data.results.rows import ResultRow, Series, digest
from pytest_lmgate.errors import ComparisonError, MetricInputError
from pytest_lmgate.metrics.score import Score, ScoredRow
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.settings.metrics import Direction
from pytest_lmgate.stats.sample import ByRow, Sample, Scale, cluster_numbers

_IN_SIGNATURE = ("task_version", "number_of_shots")
_SHORT = 200  # characters of a fact that a baseline keeps as it is
_TENFOLD = 10  # a percentage is larger than a share by as much, even if that is of a model ten times as bad


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
