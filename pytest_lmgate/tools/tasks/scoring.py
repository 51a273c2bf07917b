"""The metric ``task``: the score that a task's own code gives a text, a mean over rows.

The harness is asked when a gate is judged, with the documents that the dataset holds in its column ``doc``.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.errors import ConfigError, MetricInputError, nearest
from pytest_lmgate.metrics.texts import References, TextMetric
from pytest_lmgate.settings.entries import DatasetSpec

RAW = "raw"
"""The extraction that leaves a text as it is: the task's own code reads whole texts."""


def task_metric(name: str, dataset: str, spec: DatasetSpec, folder: Path) -> TextMetric:
    """Make the metric ``task``, or ``task.NAME`` for another metric of the task than its first."""
    if spec.task is None:
        raise ConfigError.of(
            "metric",
            f"{name}: the dataset {dataset!r} has no task:, which `lmgate import` writes for tasks with own code",
        )
    metrics = spec.task.metrics
    _, _, wanted = name.partition(".")
    metric = wanted or next(iter(metrics))
    if metric not in metrics:
        raise ConfigError.of(
            "metric",
            f"the task of {dataset!r} has no metric {metric!r}{nearest(metric, metrics)}; it has {', '.join(metrics)}",
        )
    file = spec.task.file

    def statistics(predictions: Sequence[str], references: References, rows: Sequence[Mapping[str, Any]]) -> Floats:
        statistics_of_rows = []
        for index, scored in enumerate(_scores(file, folder, predictions, rows)):
            value = scored.get(metric)
            if isinstance(value, bool | int | float | np.number | np.bool_):
                number = float(value)
            else:
                raise MetricInputError(
                    f"row {index}: expected a number as {name}, got {value!r:.80} of the task's code"
                )
            # The harness's nanmean leaves such a row out; its mean has none.
            statistics_of_rows.append([0.0, 0.0] if math.isnan(number) else [number, 1.0])
        return np.array(statistics_of_rows, dtype=np.float64)

    return TextMetric(
        name=name,
        direction=metrics[metric],
        signature=f"task|metric:{metric}|file:{file}",
        statistics=statistics,
        needs_references=False,
        extraction=RAW if spec.extract is not None else "",
    )


def _scores(file: str, folder: Path, texts: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    documents = []
    for index, row in enumerate(rows):
        if not isinstance(row.get("doc"), dict):
            raise MetricInputError(
                f"row {index}: expected the task's document in the column doc, as `lmgate import` writes it"
            )
        documents.append(row["doc"])
    return _kept_scores(file, folder, json.dumps([documents, list(texts)]))


@functools.lru_cache(maxsize=4)  # one run of the code serves all metrics of a dataset
def _kept_scores(file: str, folder: Path, shown: str) -> list[dict[str, Any]]:
    from pytest_lmgate.tools.tasks import harness

    documents, texts = json.loads(shown)
    return harness.scores(harness.offline_task(file, folder, documents[0]), documents, texts)
