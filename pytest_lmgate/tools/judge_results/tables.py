"""Any table: JSONL, CSV, TSV or parquet with a column for the row's id and one for its score."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pytest_lmgate.data.readers import READERS
from pytest_lmgate.errors import ConfigError, DataError, nearest
from pytest_lmgate.tools.judge_results.rows import (
    ReadOptions,
    ResultRow,
    ResultRun,
    Series,
    Texts,
    digest,
    direction_of,
    number,
    require_small,
    tags_of,
)

_PROMPT, _REFERENCE, _OUTPUT = ("prompt", "question", "input"), ("reference", "target"), ("output", "prediction")


def read(path: Path, options: ReadOptions) -> ResultRun | None:
    """Read a table whose columns the options name; ``task`` and ``metric`` are read where they are there."""
    reader = READERS.get(path.suffix)
    if reader is None or path.is_dir() or not (options.id or options.score or options.format):
        return None
    if not (options.id and options.score):
        raise ConfigError(f"{path}: expected --id COLUMN and --score COLUMN, got one of them")
    require_small(path)
    series: dict[tuple[str, str], list[ResultRow]] = {}
    for at, row in enumerate(reader(path, path.stem)):
        where = f"{path}: row {at}"
        if not isinstance(row, Mapping):
            raise DataError(f"{where}: expected columns, got {type(row).__name__}")
        for column in filter(None, (options.id, options.score, options.cluster, *options.tags)):
            if column not in row:
                raise DataError(f"{where}: no column {column!r}{nearest(column, row)}; it has {', '.join(row)}")
        series.setdefault((str(row.get("task", "table")), str(row.get("metric", options.score))), []).append(
            _row(row, where, options, is_text=path.suffix in (".csv", ".tsv"))
        )
    found = [
        Series(task=task, metric=metric, rows=tuple(rows), direction=direction_of(metric, (row.score for row in rows)))
        for (task, metric), rows in series.items()
    ]
    return ResultRun(path=path, tool=f"table {path.suffix[1:]}", series=tuple(found))


def _row(row: Mapping[str, Any], where: str, options: ReadOptions, *, is_text: bool) -> ResultRow:
    for column in filter(None, (options.id, options.cluster)):
        if not isinstance(row[column], str | int) or row[column] == "":
            raise DataError(f"{where}: {column}: expected a text or a whole number, got {row[column]!r:.60}")
    texts = tuple(_first(row, names) for names in (_PROMPT, _REFERENCE, _OUTPUT))
    return ResultRow(
        id=str(row[options.id]),
        score=number(_of_text(row[options.score]) if is_text else row[options.score], where, options.score),
        prompt=digest(*texts[:2]) if any(texts[:2]) else "",
        cluster=str(row[options.cluster]) if options.cluster else str(row[options.id]),
        tags=tags_of(row, options),
        texts=partial(_texts, *texts),
    )


def _of_text(value: object) -> object:
    """Return the number or truth that a cell of CSV writes; the cell if it is none."""
    try:
        return float(str(value))
    except ValueError:
        return {"true": True, "false": False}.get(str(value).lower(), value)


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((str(row[name]) for name in names if row.get(name) is not None), "")


def _texts(prompt: str, reference: str, output: str) -> Texts:
    return prompt, reference, output
