"""inspect_ai: a log as ``.eval`` (an archive) or JSON, tested with 0.3.285; epochs of a sample are one cluster.

An archive is read in memory, a member at a time. Its members are compressed by Zstandard, which Python reads from 3.14
on and pyarrow, which is imported for that alone, before.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pytest_lmgate.errors import DataError
from pytest_lmgate.tools.judge_results.rows import (
    MOST_BYTES,
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
    number,
    read_bytes,
    tags_of,
)

_VALUES = {"C": 1.0, "I": 0.0, "N": 0.0, "P": 0.5}  # `value_to_float`: correct, incorrect, no answer, partial
_ZSTD = 93
_MEANS = ("accuracy", "mean")
_GENERATION = ("temperature", "top_p", "top_k", "max_tokens", "seed", "stop_seqs", "system_message", "num_choices",
               "frequency_penalty", "presence_penalty", "reasoning_effort", "reasoning_tokens")  # fmt: skip


def read(path: Path, options: ReadOptions) -> ResultRun | None:
    """Read a log, or a folder of logs with one of each task."""
    if path.is_dir():
        files = sorted(path.rglob("*.eval")) or [file for file in sorted(path.rglob("*.json")) if _is_log(file)]
    else:
        files = [path] if path.suffix == ".eval" or (path.suffix == ".json" and _is_log(path)) else []
    if not files:
        return None
    tool, model = "", ""
    series: dict[str, tuple[Path, list[Series]]] = {}
    for file in files:
        header, samples = _log(file)
        task, tool, model, found = _series(file, header, samples, options)
        if task in series:
            raise DataError(
                f"{path}: two logs of the task {task!r}, {series[task][0].name} and {file.name}: name one of them"
            )
        series[task] = file, found
    every = tuple(each for _, found in series.values() for each in found)
    return ResultRun(path=path, tool=tool, model=model, series=every)


def _is_log(file: Path) -> bool:
    with file.open("rb") as opened:
        begin = opened.read(4096)
    return b'"status"' in begin and b'"eval"' in begin and b'"version"' in begin


def _log(file: Path) -> tuple[dict[str, Any], Iterator[tuple[str, dict[str, Any]]]]:
    """Return what a log says of the run, and its samples."""
    if file.suffix == ".json":
        log = json_object(read_bytes(file), file)
        samples = log.get("samples") or []
        return log, ((f"{file}: sample {at}", sample) for at, sample in enumerate(samples))
    members = dict(_members(file))
    if "header.json" not in members:
        raise DataError(f"{file}: expected a whole log, got one without header.json: the run was stopped")
    names = [name for name in members if name.startswith("samples/")]
    header = json_object(members["header.json"], f"{file}: header.json")
    return header, ((f"{file}: {name}", json_object(members[name], f"{file}: {name}")) for name in names)


def _members(file: Path) -> Iterator[tuple[str, bytes]]:
    """Return the JSON files of an archive, unpacked in memory; together they have a limit."""
    try:
        data = read_bytes(file)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = [info for info in archive.infolist() if info.filename.endswith(".json")]
            left = MOST_BYTES
            for info in infos:
                if (left := left - info.file_size) < 0:
                    raise DataError(f"{file}: expected at most {MOST_BYTES:,} bytes when unpacked, got more")
                if info.filename.startswith("_journal/") or info.filename == "reductions.json":
                    continue
                yield info.filename, _unpacked(archive, info, data)
    except (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise DataError(f"{file}: not an archive that can be read: {error}; was the file cut?") from None


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo, data: bytes) -> bytes:
    if info.compress_type != _ZSTD or hasattr(zipfile, "ZIP_ZSTANDARD"):
        with archive.open(info) as member:
            return member.read(info.file_size)  # no more than the archive says; a wrong size fails its checksum
    import pyarrow

    name, extra = struct.unpack("<HH", data[info.header_offset + 26 : info.header_offset + 30])
    begin = info.header_offset + 30 + name + extra
    packed = pyarrow.py_buffer(data[begin : begin + info.compress_size])
    try:
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(packed), "zstd") as stream:
            text: bytes = stream.read(info.file_size + 1)
    except (pyarrow.ArrowException, OSError) as error:
        raise zipfile.BadZipFile(f"{info.filename}: {error}") from None
    if len(text) != info.file_size or zlib.crc32(text) != info.CRC:
        raise zipfile.BadZipFile(f"{info.filename} is not what the archive says it is")
    return text


def _series(
    file: Path, log: Mapping[str, Any], samples: Iterator[tuple[str, dict[str, Any]]], options: ReadOptions
) -> tuple[str, str, str, list[Series]]:
    """Return the task, the tool, the model, and the rows of each scorer."""
    run = log.get("eval")
    if not isinstance(run, dict) or not isinstance(run.get("task"), str):
        raise DataError(f"{file}: expected a log of inspect_ai, got one without eval.task")
    if log.get("status") != "success" or log.get("invalidated"):
        status = "invalidated" if log.get("invalidated") else log.get("status")
        raise DataError(f"{file}: expected a run with the status success, got {status!r}: it is not whole")
    rows: dict[str, list[ResultRow]] = defaultdict(list)
    refused: dict[str, str] = {}
    count = 0
    for where, sample in samples:
        count += 1
        if sample.get("error") or not sample.get("scores"):
            raise DataError(f"{where}: the sample failed or has no score; a failed request is not a wrong answer")
        document = digest(sample.get("input"), sample.get("choices"), sample.get("target"))
        for scorer, score in sample["scores"].items():
            value = score.get("value") if isinstance(score, dict) else None
            if isinstance(value, list | dict):
                refused[scorer] = "each row has several values, of which this tool reads none"
                continue
            row = ResultRow(
                id=f"{sample.get('id')} epoch {sample.get('epoch', 1)}",
                score=number(_VALUES.get(value, value) if isinstance(value, str) else value, where, scorer),
                document=document,
                prompt=digest(_read_by_model(sample)),
                cluster=str(sample.get("id")),
                tags=tags_of(sample.get("metadata"), options),
                texts=partial(_texts, sample.get("input"), sample.get("target"), _output(sample)),
            )
            rows[scorer].append(row)
    results = log.get("results") or {}
    if (done := results.get("completed_samples", count)) != count or results.get("total_samples", count) != count:
        total = results.get("total_samples")
        raise DataError(f"{file}: expected {total} samples, got {count}, of which {done} are complete: it is not whole")
    epochs = (run.get("config") or {}).get("epochs") or 1
    found = [
        Series(
            task=run["task"],
            metric=scorer,
            rows=tuple(rows.get(scorer, ())),
            direction=direction_of(_metric(scorer, results), (row.score for row in rows.get(scorer, ()))),
            facts=_facts(run, log, scorer, results, epochs),
            refused=refused.get(scorer) or _no_mean(scorer, rows[scorer], results),
            complete=bool(results),
        )
        for scorer in dict.fromkeys([*rows, *refused])
    ]
    version = (run.get("packages") or {}).get("inspect_ai", "")
    return run["task"], f"inspect_ai {version}".strip(), str(run.get("model", "")), found


def _scores(scorer: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the log says of a scorer: its parameters and metrics."""
    return next((each for each in results.get("scores") or () if each.get("name") == scorer), {})


def _metric(scorer: str, results: Mapping[str, Any]) -> str:
    """Return a name that tells the direction: accuracy, if that is what the scorer's rows are for."""
    return "accuracy" if "accuracy" in _scores(scorer, results).get("metrics", {}) else scorer


def _no_mean(scorer: str, rows: list[ResultRow], results: Mapping[str, Any]) -> str:
    """Say why the log's own value is not the mean of the rows; empty if it is, or not known."""
    metrics = _scores(scorer, results).get("metrics", {})
    value = next((metrics[name].get("value") for name in _MEANS if name in metrics), None)
    mean = sum(row.score for row in rows) / len(rows)
    if value is None or abs(value - mean) <= 1e-6 * max(1, abs(mean)):
        return ""
    return f"the log's value is {value:.6g}, the mean of its rows {mean:.6g}: it is not a mean over rows"


def _facts(
    run: Mapping[str, Any], log: Mapping[str, Any], scorer: str, results: Mapping[str, Any], epochs: object
) -> Facts:
    config = {**(run.get("model_generate_config") or {}), **((log.get("plan") or {}).get("config") or {})}
    said = _scores(scorer, results)
    steps = [[step.get("solver"), step.get("params")] for step in (log.get("plan") or {}).get("steps") or ()]
    return Facts(
        task_version=str(run.get("task_version")),
        metric_definition=canonical([said.get("scorer"), said.get("params"), sorted(said.get("metrics", {}))]),
        filter_or_solver=canonical([steps, run.get("task_args")]),
        generation_settings=canonical({name: config[name] for name in _GENERATION if config.get(name) is not None}),
        repeats=str(epochs),
    )


def _read_by_model(sample: Mapping[str, Any]) -> list[Any]:
    """Return the messages up to the model's first, which templates and solvers make of the input."""
    found = []
    for message in sample.get("messages") or ():
        if message.get("role") == "assistant":
            break
        found.append([message.get("role"), message.get("content")])
    return found


def _output(sample: Mapping[str, Any]) -> str:
    output = sample.get("output") or {}
    return str(output.get("completion") or "")


def _texts(asked: object, target: object, output: str) -> Texts:
    if isinstance(asked, list):  # messages
        asked = "\n".join(str(message.get("content", "")) for message in asked if isinstance(message, dict))
    return str(asked), " | ".join(map(str, target)) if isinstance(target, list) else str(target), output
