"""Every Eval Ever: instance-level JSONL of schema 0.2 or 0.3, as its converters write it (every-eval-ever 0.3.0).

The aggregate file beside it has a checksum of the rows, their number, and how each metric was made. From 0.3 on a row
names its metric; before, a row has one score, which is called so. A sample that is there several times has repeats.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pytest_lmgate.data.results import rows
from pytest_lmgate.data.results.rows import Columns, Facts, ResultRow, ResultRun, Told
from pytest_lmgate.errors import DataError

_KEYS = ("schema_version", "evaluation_id", "model_id", "evaluation_name", "sample_id", "input", "evaluation")
_SEEN = (b'"schema_version"', b'"evaluation_name"', b'"sample_id"')
_Json = Mapping[str, Any]


def read(path: Path, columns: Columns) -> ResultRun | None:
    """Read a file, or a folder with the files of one model."""
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path] if path.suffix == ".jsonl" else []
    files = [file for file in files if _is_instances(file)]
    if not files:
        return None
    tasks: dict[str, rows.Collected] = defaultdict(rows.Collected)
    told: dict[tuple[str, str], _Json] = {}
    seen: Counter[tuple[str, str, str]] = Counter()
    models, versions = set(), set()
    for file in files:
        results = _aggregate(file)
        for line in rows.lines_of(file):
            row = rows.json_object(line.text, line)
            if lacking := [key for key in _KEYS if key not in row]:
                raise DataError(f"{line}: expected a row of Every Eval Ever, got one without {', '.join(lacking)}")
            if row.get("error"):
                raise DataError(
                    f"{line}: the sample failed: {row['error']!s:.100}; a failed request is not a wrong answer"
                )
            task, result = str(row["evaluation_name"]), str(row.get("evaluation_result_id") or "score")
            seen[task, result, str(row["sample_id"])] += 1
            told[task, result] = results.get(result, {})
            made = _row(row, line, seen[task, result, str(row["sample_id"])])
            metric, _, filter_ = result.partition(":")
            tasks[task].add(metric, filter_, row["evaluation"].get("score"), made, line)
            models.add(str(row["model_id"]))
            versions.add(str(row["schema_version"]))
    if len(models) > 1:
        raise DataError(f"{path}: expected the rows of one model, got those of {', '.join(sorted(models)[:5])}")
    series = tuple(
        each
        for task, of_task in tasks.items()
        for each in of_task.series(task, partial(_told, told, task), complete=all(told.values()))
    )
    tool = f"Every Eval Ever {', '.join(sorted(versions))}"
    return ResultRun(path=path, tool=tool, model=models.pop() if models else "", series=series)


def _is_instances(file: Path) -> bool:
    with file.open("rb") as opened:
        begin = opened.read(8192)
    return all(key in begin for key in _SEEN)


def _aggregate(file: Path) -> dict[str, _Json]:
    """Return the results of the aggregate file by their ids, after a look whether the rows are those it speaks of."""
    beside = file.with_name(f"{file.stem.removesuffix('_samples')}.json")
    told = rows.read_json(beside) if beside.is_file() else {}
    detailed = told.get("detailed_evaluation_results") or {}
    rows.require_small(file)
    is_hashed = detailed.get("hash_algorithm") == "sha256"
    if is_hashed and hashlib.sha256(file.read_bytes()).hexdigest() != detailed.get("checksum"):
        raise DataError(
            f"{file}: its rows are not those that {beside.name} has a checksum of: rows were changed or cut"
        )
    return {str(each.get("evaluation_result_id") or "score"): each for each in told.get("evaluation_results") or ()}


def _told(told: Mapping[tuple[str, str], _Json], task: str, metric: str, filter_: str) -> Told:
    said = told[task, f"{metric}:{filter_}" if filter_ else metric]
    config, generation = said.get("metric_config") or {}, said.get("generation_config") or {}
    lower = config.get("lower_is_better")
    facts = Facts(
        metric_definition=rows.canonical(config) if config else None,
        number_of_shots=(generation.get("additional_details") or {}).get("num_fewshot"),
        generation_settings=rows.canonical(generation) if generation else None,
    )
    value = (said.get("score_details") or {}).get("score")
    return Told(facts=facts, value=value, higher=not lower if isinstance(lower, bool) else None)


def _row(row: _Json, where: object, repeat: int) -> ResultRow:
    asked, sample = row["input"], str(row["sample_id"])
    if not (isinstance(asked, dict) and isinstance(row["evaluation"], dict)):
        raise DataError(f"{where}: expected objects as input and evaluation")
    content = rows.digest(asked.get("raw"), asked.get("reference"), asked.get("choices"))
    return ResultRow(
        sample if repeat == 1 else f"{sample} repeat {repeat}",
        document=str(row.get("sample_hash") or content),
        prompt=rows.digest(content, asked.get("formatted")),
        cluster=sample,
        tags=rows.tags_of(row.get("metadata")),
        texts=partial(_texts, row),
    )


def _texts(row: _Json) -> rows.Texts:
    asked, output = row["input"], (row.get("output") or {}).get("raw") or []
    if not output:  # of several turns, the last
        output = [str(message.get("content") or "") for message in (row.get("messages") or [])[-1:]]
    return str(asked.get("raw", "")), " | ".join(map(str, asked.get("reference") or ())), "\n".join(map(str, output))
