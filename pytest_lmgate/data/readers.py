"""Rows of a dataset from where they are, one after another: text, JSON lines, CSV, parquet, saved folders, the hub.

Text is never normalized: no newline translation, no stripping, and bytes that are not UTF-8 are an error. The end of a
line, LF or CRLF, is no part of a row.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import msgspec

from pytest_lmgate.errors import DataError, OfflineError
from pytest_lmgate.settings.entries import DatasetSpec

_PLAIN = "utf-8"
# A byte-order mark is part of a text, but not of a table.
_TABLE = "utf-8-sig"
# Two cells of CSV that are one text, in a row that has lost another cell: 1,000 apples.
_CUT_NUMBER = re.compile(r"\d{1,3}"), re.compile(r"0\d\d [a-z]")


def read_text(path: Path, name: str) -> str:
    with _opened(path, name, _PLAIN, "") as file:
        return file.read()


def lines_of_text(path: Path, name: str) -> Iterator[str]:
    line = None
    with _opened(path, name, _PLAIN, "\n") as file:
        for line in file:
            yield line[:-2] if line.endswith("\r\n") else line.removesuffix("\n")
    if line is None:
        yield ""


def _jsonl_rows(path: Path, name: str) -> Iterator[Any]:
    with _opened(path, name, _TABLE, "\n") as file:
        is_first = True
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if is_first and line.lstrip().startswith("["):
                raise DataError(
                    f"dataset {name!r}: {path}:{number}: expected one row a line, got a JSON array; write its rows as "
                    f"lines, for example with jq -c '.[]' {path.name}"
                )
            is_first = False
            try:
                row = msgspec.json.decode(line.removesuffix("\n"))
                if isinstance(row, dict) and any(line.count(f'"{key}"') > 1 for key in row):
                    _require_keys_once(line, f"{path}:{number}", name)
                yield row
            except msgspec.DecodeError as error:
                raise DataError(f"dataset {name!r}: {path}:{number}: not JSON: {error}") from error
            except RecursionError:
                raise DataError(f"dataset {name!r}: {path}:{number}: nested too deeply to be read as JSON") from None


def _require_keys_once(line: str, where: str, name: str) -> None:
    """Refuse a row of JSON in which a key is twice, of which msgspec keeps the last; this takes longer."""
    json.loads(line, object_pairs_hook=lambda pairs: _require_different((key for key, _ in pairs), where, name))


def _csv_rows(path: Path, name: str, delimiter: str = ",") -> Iterator[Any]:
    kind = path.suffix[1:].upper()
    with _opened(path, name, _TABLE, "") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header: list[str] = []
        while True:
            begin = reader.line_num + 1
            limit = csv.field_size_limit(2**31 - 1)  # 128 KiB at first, less than a document can have
            try:
                cells = next(reader, None)
            except csv.Error as error:
                since = "" if reader.line_num == begin else f" in the row that begins in line {begin}"
                raise DataError(f"dataset {name!r}: {path}:{reader.line_num}: not {kind}: {error}{since}") from error
            finally:
                csv.field_size_limit(limit)
            if cells is None:
                return
            if not cells:  # a blank line
                continue
            if not header:
                header = cells
                if other := next((mark for mark in ";\t|" if mark in cells[0] and len(cells) == 1), None):
                    raise DataError(
                        f"dataset {name!r}: {path}:{begin}: expected {delimiter!r} between cells, got {other!r}: "
                        f"{cells[0]!r:.80}; write it with {delimiter!r}, and cells that have {delimiter!r} in quotes"
                    )
                _require_different(header, f"{path}:{begin}", name)
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"dataset {name!r}: {path}:{begin}: expected {len(header)} cells, as in the header, got "
                    f"{len(cells)}: {delimiter.join(cells)!r:.80}; put a cell with {delimiter!r}, a quote or a line "
                    "break in quotes"
                )
            for one, other in pairwise(cells) if delimiter == "," else ():
                if _CUT_NUMBER[1].match(other) and _CUT_NUMBER[0].fullmatch(one):
                    raise DataError(
                        f"dataset {name!r}: {path}:{begin}: two cells look like one number that was cut at its comma: "
                        f"{f'{one},{other}'!r:.80}; put a cell with ',' in quotes, or write rows in which they are two "
                        "as .jsonl"
                    )
            yield dict(zip(header, cells, strict=True))


def _require_different(columns: Iterable[Any], where: str, name: str) -> None:
    """Refuse two columns, or keys of a row, of one name. Columns without a name may be several."""
    (column, count), *_ = Counter(filter(None, columns)).most_common(1) or [("", 0)]
    if count > 1:
        raise DataError(f"dataset {name!r}: {where}: {count} columns are called {column!r}: give each its own name")


def _parquet_rows(path: Path, name: str) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _require_different(file.schema_arrow.names, str(path), name)
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"dataset {name!r}: {path}: not a parquet file: {error}") from error


_COMMIT = re.compile(r"[0-9a-f]{40}")

READERS: dict[str, Callable[[Path, str], Iterable[Any]]] = {
    ".jsonl": _jsonl_rows,
    ".csv": _csv_rows,
    ".tsv": partial(_csv_rows, delimiter="\t"),  # with quotes as in CSV, which is how spreadsheets write it
    ".parquet": _parquet_rows,
}
"""The reader of each kind of table, by its suffix: from path and the dataset's name to rows."""


def _library(name: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"dataset {name!r}: {error}: pip install datasets, or give a file by path:") from error
    return datasets


def saved_rows(spec: DatasetSpec, path: Path, name: str) -> Iterable[Any]:
    datasets = _library(name)
    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:
        raise DataError(f"dataset {name!r}: {path}: not a folder saved by datasets: {error}") from error
    return _split(saved, spec, name)


def hub_rows(spec: DatasetSpec, name: str, offline: bool) -> Iterable[Any]:
    datasets = _library(name)
    # The user may have meant `org/name` as a path.
    either = f"; there is no file or folder {name} either (write ./{name}, or name it in lmgate.yaml)"
    either = either if name == spec.hub else ""
    where = "hub:" + "/".join(filter(None, (spec.hub, spec.name, spec.split)))
    mode = datasets.DownloadMode.REUSE_DATASET_IF_EXISTS
    config = datasets.DownloadConfig(local_files_only=offline)
    before = datasets.config.HF_HUB_OFFLINE
    try:
        datasets.config.HF_HUB_OFFLINE = offline or before
        loaded = datasets.load_dataset(
            spec.hub, spec.name, split=spec.split, revision=spec.revision, download_mode=mode, download_config=config
        )
    except Exception as error:
        if offline:
            raise OfflineError(
                f"dataset {name!r}: {where} is not in the local hub cache, and --lmgate-offline forbids fetching "
                f"it; run once without it, or give a local path ({type(error).__name__}: {error}){either}"
            ) from error
        raise DataError(
            f"dataset {name!r}: {where}: cannot be loaded from the hub: {str(error).rstrip('.')}{either}"
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = before
    split = _split(loaded, spec, name)
    # Offline the library takes the newest commit that it has, whatever was asked for.
    files = [Path(file["filename"]) for file in getattr(split, "cache_files", ())]
    commits = {file.parent.name for file in files if _COMMIT.fullmatch(file.parent.name)}
    if spec.revision and _COMMIT.fullmatch(spec.revision) and commits - {spec.revision}:
        raise DataError(
            f"dataset {name!r}: {where}: expected the revision {spec.revision}, got {', '.join(sorted(commits))}, "
            "which the local cache has: run once without --lmgate-offline and HF_HUB_OFFLINE"
        )
    return split


def _split(loaded: Any, spec: DatasetSpec, name: str) -> Iterable[Any]:
    if not hasattr(loaded, "keys"):
        if spec.hub is None and spec.split not in (None, str(loaded.split)):
            raise DataError(f"dataset {name!r}: split: expected none, as {spec.path} is one split, got {spec.split!r}")
        return loaded  # type: ignore[no-any-return]
    splits = list(loaded.keys())
    chosen = splits[0] if spec.split is None and len(splits) == 1 else spec.split
    if chosen in splits:
        return loaded[chosen]  # type: ignore[no-any-return]
    raise DataError(f"dataset {name!r}: set split: to one of {', '.join(splits)}; got {spec.split!r}")


@contextlib.contextmanager
def _opened(path: Path, name: str, encoding: str, newline: str) -> Iterator[IO[str]]:
    try:
        with _readable(path, name), path.open(encoding=encoding, newline=newline) as file:
            yield file
    except UnicodeDecodeError:
        with path.open("rb") as lines:
            before = 0
            for line in lines:
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    likely = "WINDOWS-1252" if before + error.start else "UTF-16"  # which begins with 0xff or 0xfe
                    raise DataError(
                        f"dataset {name!r}: {path}: not UTF-8 at byte {before + error.start:,} "
                        f"({line[error.start]:#04x}); convert the file, for example with iconv -f {likely} -t UTF-8"
                    ) from error
                before += len(line)
        raise


@contextlib.contextmanager
def _readable(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"dataset {name!r}: {path}: cannot be read: {error.strerror}") from error


# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md; its first versions wrote the second host.
_POINTER = re.compile(rb"version https://(git-lfs\.github\.com/spec|hawser\.github\.com/spec)/v\d+\r?\n(.*\n)*oid \w+:")
_LARGEST = 1024


def is_lfs_pointer(path: Path) -> bool:
    """Return whether a file is a Git LFS pointer, the few lines that ``git lfs pull`` replaces by the file."""
    with contextlib.suppress(OSError):
        status = path.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST:
            return _POINTER.match(path.read_bytes()) is not None
    return False


def pull_hint(path: Path) -> str:
    return f"{path} is a Git LFS pointer, not the file itself: run git lfs pull (in CI, check out with LFS)"
