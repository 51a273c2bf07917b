"""inspect_ai: a log as ``.eval`` (an archive) or JSON, tested with 0.3.285; epochs of a sample are one cluster.

An archive is read in memory, a member at a time. Its members are compressed by Zstandard, which Python reads from 3.14
on; before, pyarrow does, which is imported for that alone.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

from msgspec.structs import replace

from pytest_lmgate.data.results import rows
from pytest_lmgate.errors import DataError

_VALUES = {"C": 1.0, "I": 0.0, "N": 0.0, "P": 0.5}  # correct, incorrect, no answer, partial, as its metrics read them
_ZSTD = 93
_GENERATION = ("temperature", "top_p", "top_k", "max_tokens", "seed", "stop_seqs", "system_message", "num_choices",
               "frequency_penalty", "presence_penalty", "reasoning_effort", "reasoning_tokens")  # fmt: skip
_Samples = list[tuple[str, Any]]


def read(path: Path, columns: rows.Columns) -> rows.ResultRun | None:
    """Read a log, or a folder of logs with one of each task."""
    files = rows.files_of(path, rows.FILES["inspect_ai"]) or rows.files_of(
        path, "*.json", b'"status"', b'"eval"', b'"version"'
    )
    tool, model, series = "", "", []
    tasks: dict[str, Path] = {}
    for file in files:
        log, samples = _log(file)
        run = log.get("eval")
        if not isinstance(run, dict) or not isinstance(task := run.get("task"), str):
            raise DataError(f"{file}: expected a log of inspect_ai, got one without eval.task")
        if (other := tasks.setdefault(task, file)) is not file:
            raise DataError(f"{path}: two logs of the task {task!r}, {other.name} and {file.name}: name one of them")
        series += _series(file, log, run, samples)
        tool, model = f"inspect_ai {(run.get('packages') or {}).get('inspect_ai', '')}", str(run.get("model", ""))
    return rows.ResultRun(path=path, tool=tool.strip(), model=model, series=tuple(series)) if files else None


def _log(file: Path) -> tuple[rows.Json, _Samples]:
    """Return what a log says of the run, and its samples."""
    if file.suffix == ".json":
        log = rows.read_json(file)
        return log, [(f"{file}: sample {at}", sample) for at, sample in enumerate(log.get("samples") or [])]
    members = {name: rows.json_object(text, f"{file}: {name}") for name, text in _members(file)}
    header = members.pop("header.json", None)
    if header is None:
        raise DataError(f"{file}: expected a whole log, got one without header.json: the run was stopped")
    return header, [(f"{file}: {name}", sample) for name, sample in members.items()]


def _members(file: Path) -> Iterator[tuple[str, bytes]]:
    """Return the header and the samples of an archive, unpacked in memory; together they have a limit."""
    rows.require_small(file)
    try:
        with file.open("rb") as opened, zipfile.ZipFile(opened) as archive:
            wanted = [each for each in archive.infolist() if each.filename.startswith(("header.json", "samples/"))]
            if sum(info.file_size for info in wanted) > rows.MOST_BYTES:
                raise DataError(f"{file}: expected at most {rows.MOST_BYTES:,} bytes when unpacked, got more")
            for info in wanted:
                yield info.filename, _unpacked(archive, info, opened)
    except (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, EOFError) as error:
        raise DataError(f"{file}: not an archive that can be read: {error}; was the file cut?") from None


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo, opened: IO[bytes]) -> bytes:
    if info.compress_type != _ZSTD or hasattr(zipfile, "ZIP_ZSTANDARD"):
        with archive.open(info) as member:
            return member.read(info.file_size)  # no more than the archive says; a wrong size fails its checksum
    import pyarrow

    opened.seek(info.header_offset + 26)
    opened.seek(sum(struct.unpack("<HH", opened.read(4))), 1)  # the member's name, and more of its header
    try:
        text: bytes = pyarrow.decompress(opened.read(info.compress_size), info.file_size, "zstd", asbytes=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise zipfile.BadZipFile(f"{info.filename}: {error}") from None
    if zlib.crc32(text) != info.CRC:
        raise zipfile.BadZipFile(f"{info.filename} is not what the archive says it is")
    return text


def _series(file: Path, log: rows.Json, run: rows.Json, samples: _Samples) -> list[rows.Series]:
    """Return the rows of each scorer."""
    status = "invalidated" if log.get("invalidated") else log.get("status")
    if status != "success":
        raise DataError(f"{file}: expected a run with the status success, got {status!r}: it is not whole")
    collected, count = rows.Collected(), len(samples)
    for where, sample in samples:
        if sample.get("error") or not sample.get("scores"):
            raise DataError(f"{where}: the sample failed or has no score; a failed request is not a wrong answer")
        messages = ((each.get("role"), each.get("content")) for each in sample.get("messages") or ())
        row = rows.ResultRow(
            f"{sample.get('id')} epoch {sample.get('epoch', 1)}",
            document=rows.digest(sample.get("input"), sample.get("choices"), sample.get("target")),
            # The messages up to the model's first, which templates and solvers make of the input.
            prompt=rows.digest(list(takewhile(lambda message: message[0] != "assistant", messages))),
            cluster=str(sample.get("id")),
            tags=rows.tags_of(sample.get("metadata")),
            texts=partial(_texts, sample),
        )
        for scorer, score in sample["scores"].items():
            value = score.get("value")
            collected.add(scorer, "", _VALUES.get(value, value) if isinstance(value, str) else value, row, where)
    results = log.get("results") or {}
    total, done = results.get("total_samples", count), results.get("completed_samples", count)
    if not total == done == count:
        raise DataError(f"{file}: expected {total} samples, got {count}, of which {done} are complete: it is not whole")
    found = collected.series(run["task"], partial(_told, log, run, results))
    return [replace(each, run=str(run.get("eval_id") or "")) for each in found]


def _told(log: rows.Json, run: rows.Json, results: rows.Json, scorer: str, _: str) -> rows.Told:
    said: rows.Json = next((each for each in results.get("scores") or () if each.get("name") == scorer), {})
    plan, metrics = log.get("plan") or {}, said.get("metrics") or {}
    config = {**(run.get("model_generate_config") or {}), **(plan.get("config") or {})}
    generation = {name: config[name] for name in _GENERATION if config.get(name) is not None}
    steps = [[step.get("solver"), step.get("params")] for step in plan.get("steps") or ()]
    facts = rows.Facts(
        task_version=str(run.get("task_version")),
        metric_definition=rows.canonical([said.get("scorer"), said.get("params"), sorted(metrics)]),
        filter_or_solver=rows.canonical([steps, run.get("task_args")]),
        generation_settings=rows.canonical(generation),
        repeats=str((run.get("config") or {}).get("epochs") or 1),
    )
    value = next((metrics[name].get("value") for name in ("accuracy", "mean") if name in metrics), None)
    return rows.Told(facts=facts, value=value, higher="accuracy" in metrics or None, complete=bool(results))


def _texts(sample: rows.Json) -> rows.Texts:
    asked, target, output = (sample.get(part) for part in ("input", "target", "output"))
    if isinstance(asked, list):  # messages
        asked = "\n".join(str(message.get("content", "")) for message in asked)
    target = " | ".join(map(str, target)) if isinstance(target, list) else str(target)
    return str(asked), target, str(output.get("completion") or "") if isinstance(output, dict) else ""
