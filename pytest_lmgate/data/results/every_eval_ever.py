"""Every Eval Ever: instance-level JSONL of schema 0.2 or 0.3, as its converters write it (every-eval-ever 0.3.0).

The aggregate file beside it has a checksum of the rows, their number, and how each metric was made. From 0.3 on a row
names its metric; before, a row has one score, which is called so. A sample that is there several times has repeats.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

from pytest_lmgate.data.results import rows
from pytest_lmgate.errors import DataError

_KEYS = ("schema_version", "evaluation_id", "model_id", "evaluation_name", "sample_id", "input", "evaluation")
_SEEN = (b'"schema_version"', b'"evaluation_name"', b'"sample_id"')


def read(path: Path, columns: rows.Columns) -> rows.ResultRun | None:
    """Read a file, or a folder with the files of one model."""
    tasks: dict[str, rows.Collected] = defaultdict(rows.Collected)
    told: dict[tuple[str, ...], rows.Json] = {}  # of each metric of a task
    seen: Counter[tuple[str, ...]] = Counter()
    runs: dict[tuple[str, ...], str] = {}  # of each sample
    models, versions = set(), set()
    for file in rows.files_of(path, "*.jsonl", *_SEEN):
        results = _aggregate(file)
        for where, text, _ in rows.lines_of(file):
            row = rows.json_object(text, where)
            if lacking := [key for key in _KEYS if key not in row]:
                raise DataError(f"{where}: expected a row of Every Eval Ever, got one without {', '.join(lacking)}")
            if failed := row.get("error"):
                raise DataError(f"{where}: the sample failed: {failed!s:.100}; a failed request is not a wrong answer")
            task, result = str(row["evaluation_name"]), str(row.get("evaluation_result_id") or "score")
            metric, _, filter_ = result.partition(":")
            sample = task, metric, filter_, str(row["sample_id"])
            seen[sample] += 1
            run = str(row["evaluation_id"])
            if (other := runs.setdefault(sample, run)) != run:
                raise DataError(f"{where}: expected one run, got {other} and {run} of one task: name the file of one")
            told[sample[:3]] = results.get(result, {})
            made = _row(row, where, seen[sample])
            tasks[task].add(metric, filter_, row["evaluation"].get("score"), made, where)
            models.add(str(row["model_id"]))
            versions.add(str(row["schema_version"]))
    if len(models) > 1:
        raise DataError(f"{path}: expected the rows of one model, got those of {', '.join(sorted(models)[:5])}")
    series = tuple(each for task in tasks for each in tasks[task].series(task, partial(_told, told, task)))
    tool = f"Every Eval Ever {', '.join(sorted(versions))}"
    return rows.ResultRun(path=path, tool=tool, model="".join(models), series=series) if series else None


def _aggregate(file: Path) -> dict[str, rows.Json]:
    """Return the results of the aggregate file by their ids, after a look whether the rows are those it speaks of."""
    beside = file.with_name(f"{file.stem.removesuffix('_samples')}.json")
    told = rows.read_json(beside) if beside.is_file() else {}
    detailed = told.get("detailed_evaluation_results") or {}
    is_hashed = detailed.get("hash_algorithm") == "sha256"
    if is_hashed and hashlib.sha256(file.read_bytes()).hexdigest() != detailed.get("checksum"):
        raise DataError(f"{file}: its rows are not those of the checksum in {beside.name}: rows were changed or cut")
    return {str(each.get("evaluation_result_id") or "score"): each for each in told.get("evaluation_results") or ()}


def _told(told: dict[tuple[str, ...], rows.Json], task: str, metric: str, filter_: str) -> rows.Told:
    said = told[task, metric, filter_]
    config, generation = said.get("metric_config") or {}, said.get("generation_config") or {}
    lower, shots = config.get("lower_is_better"), (generation.get("additional_details") or {}).get("num_fewshot")
    facts = rows.Facts(
        metric_definition=rows.canonical(config) if config else None,
        number_of_shots=None if shots is None else str(shots),
        generation_settings=rows.canonical(generation) if generation else None,
    )
    value, higher = (said.get("score_details") or {}).get("score"), not lower if isinstance(lower, bool) else None
    return rows.Told(facts=facts, value=value, higher=higher, complete=bool(said))


def _row(row: rows.Json, where: object, repeat: int) -> rows.ResultRow:
    asked, sample = row["input"], str(row["sample_id"])
    if not (isinstance(asked, dict) and isinstance(row["evaluation"], dict)):
        raise DataError(f"{where}: expected objects as input and evaluation")
    content = rows.digest(asked.get("raw"), asked.get("reference"), asked.get("choices"))
    return rows.ResultRow(
        sample if repeat == 1 else f"{sample} repeat {repeat}",
        document=str(row.get("sample_hash") or content),
        prompt=rows.digest(content, asked.get("formatted")),
        cluster=sample,
        tags=rows.tags_of(row.get("metadata")),
        texts=partial(_texts, row),
    )


def _texts(row: rows.Json) -> rows.Texts:
    asked, output = row["input"], (row.get("output") or {}).get("raw") or []
    if not output:  # of several turns, the last
        output = [str(message.get("content") or "") for message in (row.get("messages") or [])[-1:]]
    return str(asked.get("raw", "")), " | ".join(map(str, asked.get("reference") or ())), "\n".join(map(str, output))
