"""Any table: JSONL, CSV, TSV or parquet with a column for the row's id and one for its score."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path

from pytest_lmgate.data.corpus import READERS
from pytest_lmgate.data.results import rows
from pytest_lmgate.errors import ConfigError, DataError, nearest

_TEXTS = (("prompt", "question", "input"), ("reference", "target"), ("output", "prediction"))


def read(path: Path, columns: rows.Columns) -> rows.ResultRun | None:
    """Read a table; its columns ``task`` and ``metric`` are read where they are there."""
    reader, needed = READERS.get(path.suffix), [columns.id, columns.score]
    if reader is None or not path.is_file() or not any(needed):
        return None
    if not all(needed):
        raise ConfigError(f"{path}: expected the columns of ids and of scores ({rows.NAMED}), got one of them")
    rows.require_small(path)
    tasks: dict[str, rows.Collected] = defaultdict(rows.Collected)
    for at, row in enumerate(reader(path, path.stem)):
        where = f"{path}: row {at}"
        for column in filter(None, (*needed, columns.cluster)):
            if not isinstance(row, dict) or column not in row:
                known = [*row] if isinstance(row, dict) else []
                raise DataError(f"{where}: no column {column!r}{nearest(column, known)}; it has {', '.join(known)}")
            if column != columns.score and (not isinstance(row[column], str | int) or row[column] == ""):
                raise DataError(f"{where}: {column}: expected a text or a whole number, got {row[column]!r:.60}")
        prompt, reference, _ = _texts(row)
        made = rows.ResultRow(
            str(row[columns.id]),
            prompt=rows.digest(prompt, reference) if prompt or reference else "",
            cluster=str(row[columns.cluster or columns.id]),
            tags=rows.tags_of(row),
            texts=partial(_texts, row),
        )
        score = _of_text(row[columns.score]) if path.suffix in (".csv", ".tsv") else row[columns.score]
        tasks[str(row.get("task", "table"))].add(str(row.get("metric", columns.score)), "", score, made, where)
    series = tuple(each for task, collected in tasks.items() for each in collected.series(task))
    return rows.ResultRun(path=path, tool=f"table {path.suffix[1:]}", series=series)


def _of_text(cell: str) -> object:
    """Return the number or truth that a cell of CSV writes; the cell if it is none."""
    try:
        return float(cell)
    except ValueError:
        return {"true": True, "false": False}.get(cell.lower(), cell)


def _texts(row: rows.Json) -> rows.Texts:
    first = [next((str(row[name]) for name in names if row.get(name) is not None), "") for names in _TEXTS]
    return first[0], first[1], first[2]
