"""Every Eval Ever: instance-level JSONL of schema 0.2 or 0.3, as its converters write it (every-eval-ever 0.3.0).

The aggregate file beside it has a checksum of the rows, their number, and how each metric was made. From 0.3 on a row
names its metric; before, a row has one score, which is called so. A sample that is there several times has repeats.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pytest_lmgate.errors import DataError
from pytest_lmgate.tools.judge_results.rows import (
    Facts,
    ReadOptions,
    ResultRow,
    ResultRun,
    Series,
    Texts,
    canonical,
    digest,
    direction_of,
    json_object,
    lines_of,
    number,
    read_bytes,
    tags_of,
)

_Key = tuple[str, str]  # evaluation and metric
_KEYS = ("schema_version", "evaluation_id", "model_id", "evaluation_name", "sample_id", "input", "evaluation")


def read(path: Path, options: ReadOptions) -> ResultRun | None:
    """Read a file, or a folder with the files of one model."""
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path] if path.suffix == ".jsonl" else []
    files = [file for file in files if _is_instances(file)]
    if not files:
        return None
    rows: dict[_Key, list[ResultRow]] = defaultdict(list)
    told: dict[_Key, dict[str, Any]] = {}
    seen: Counter[tuple[_Key, str]] = Counter()
    models: dict[str, Path] = {}
    version = ""
    for file in files:
        results = _aggregate(file)
        for line in lines_of(file):
            row = json_object(line.text, line)
            if lacking := [key for key in _KEYS if key not in row]:
                raise DataError(f"{line}: expected a row of Every Eval Ever, got one without {', '.join(lacking)}")
            result, version = row.get("evaluation_result_id"), str(row["schema_version"])
            key = str(row["evaluation_name"]), str(result or "score")
            told.setdefault(key, results.get(key[1], {}))
            models.setdefault(str(row["model_id"]), file)
            seen[key, str(row["sample_id"])] += 1
            rows[key].append(_row(row, line, seen[key, str(row["sample_id"])], options))
    if len(models) > 1:
        raise DataError(f"{path}: expected the rows of one model, got those of {', '.join(sorted(models)[:5])}")
    series = tuple(_series(key, tuple(of_key), told[key]) for key, of_key in rows.items())
    return ResultRun(path=path, tool=f"Every Eval Ever {version}", model=next(iter(models), ""), series=series)


def _aggregate(file: Path) -> dict[str, dict[str, Any]]:
    """Return the results of the aggregate file by their ids, after a look whether the rows are those it speaks of."""
    beside = file.with_name(f"{file.stem.removesuffix('_samples')}.json")
    if beside == file or not beside.is_file():
        return {}
    told = json_object(read_bytes(beside), beside)
    detailed = told.get("detailed_evaluation_results") or {}
    checksum = detailed.get("checksum") if detailed.get("hash_algorithm") == "sha256" else None
    if checksum and hashlib.sha256(read_bytes(file)).hexdigest() != checksum:
        raise DataError(
            f"{file}: its rows are not those that {beside.name} has a checksum of: rows were changed or cut"
        )
    return {str(each.get("evaluation_result_id") or "score"): each for each in told.get("evaluation_results") or ()}


def _series(key: _Key, rows: tuple[ResultRow, ...], told: Mapping[str, Any]) -> Series:
    task, (metric, _, name) = key[0], key[1].partition(":")
    config, value = told.get("metric_config") or {}, (told.get("score_details") or {}).get("score")
    lower = config.get("lower_is_better")
    mean = math.fsum(row.score for row in rows) / len(rows)
    is_mean = value is None or math.isclose(value, mean, rel_tol=1e-6, abs_tol=1e-9)
    generation = told.get("generation_config")
    shots = ((generation or {}).get("additional_details") or {}).get("num_fewshot")
    return Series(
        task=task,
        metric=metric,
        filter=name,
        rows=rows,
        direction=direction_of(metric, (row.score for row in rows), not lower if isinstance(lower, bool) else None),
        facts=Facts(
            metric_definition=canonical(config) if config else None,
            number_of_shots=shots,
            generation_settings=canonical(generation) if generation else None,
        ),
        refused=""
        if is_mean
        else f"its value is {value:.6g}, the mean of its rows {mean:.6g}: it is not a mean over rows",
        complete=bool(told),
    )


def _is_instances(file: Path) -> bool:
    with file.open("rb") as opened:
        begin = opened.read(8192)
    return b'"schema_version"' in begin and b'"evaluation_name"' in begin and b'"sample_id"' in begin


def _row(row: Mapping[str, Any], where: object, repeat: int, options: ReadOptions) -> ResultRow:
    asked, evaluation = row["input"], row["evaluation"]
    if not (isinstance(asked, dict) and isinstance(evaluation, dict)):
        raise DataError(f"{where}: expected objects as input and evaluation")
    if row.get("error"):
        raise DataError(f"{where}: the sample failed: {row['error']!s:.100}; a failed request is not a wrong answer")
    sample, content = str(row["sample_id"]), digest(asked.get("raw"), asked.get("reference"), asked.get("choices"))
    return ResultRow(
        id=sample if repeat == 1 else f"{sample} repeat {repeat}",
        score=number(evaluation.get("score"), where, "evaluation.score"),
        document=str(row.get("sample_hash") or content),
        prompt=digest(content, asked.get("formatted")),
        cluster=sample,
        tags=tags_of(row.get("metadata"), options),
        texts=partial(_texts, row),
    )


def _texts(row: Mapping[str, Any]) -> Texts:
    asked, output = row["input"], (row.get("output") or {}).get("raw") or []
    if not output:  # of several turns, the last
        output = [str(message.get("content") or "") for message in (row.get("messages") or [])[-1:]]
    return str(asked.get("raw", "")), " | ".join(map(str, asked.get("reference") or ())), "\n".join(map(str, output))
