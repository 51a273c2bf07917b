"""Rows of a dataset from where they are, one after another: text, JSON lines, CSV, parquet, saved folders, the hub.

Text is never normalized: no newline translation, no stripping, and bytes that are not UTF-8 are an error.
"""

from __future__ import annotations

__all__ = ["READERS", "hub_rows", "lines_of_text", "saved_rows", "text_in_parts"]

import codecs
import contextlib
import csv
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec

from pytest_lmgate.config.specs import DatasetSpec
from pytest_lmgate.errors import DataError, OfflineError

_PART_BYTES = 2**20
_PLAIN = "utf-8"
# Some programs put a byte-order mark before the first character; it is part of a text, but of no table.
_TABLE = "utf-8-sig"


def text_in_parts(path: Path, name: str) -> Iterator[str]:
    """Read a text, about a mebibyte at a time.

    Raises:
        DataError: It cannot be read, or is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0
    with _readable(path, name), path.open("rb") as file:
        while True:
            part = file.read(_PART_BYTES)
            held = len(decoder.getstate()[0])  # bytes of a character that the part before did not end
            try:
                yield decoder.decode(part, final=not part)
            except UnicodeDecodeError as error:
                at = position - held + error.start
                raise DataError(
                    f"dataset {name!r}: {path}: not UTF-8 at byte {at:,} ({error.object[error.start]:#04x}); "
                    "convert the file, for example with iconv -t UTF-8"
                ) from error
            if not part:
                return
            position += len(part)


def lines_of_text(path: Path, name: str) -> Iterator[str]:
    """Read the lines of a text, without their line feeds; the last may lack one.

    Raises:
        DataError: It cannot be read, or is not UTF-8.
    """
    line = None
    with _opened(path, name, _PLAIN, "\n") as file:
        for line in file:
            yield line.removesuffix("\n")
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
                yield msgspec.json.decode(line.removesuffix("\n"))
            except msgspec.DecodeError as error:
                raise DataError(f"dataset {name!r}: {path}:{number}: not JSON: {error}") from error
            except RecursionError:
                raise DataError(f"dataset {name!r}: {path}:{number}: nested too deeply to be read as JSON") from None


def _csv_rows(path: Path, name: str, delimiter: str = ",") -> Iterator[Any]:
    with _opened(path, name, _TABLE, "") as file:
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        while True:
            limit = csv.field_size_limit(2**31 - 1)  # 128 KiB at first, less than a document can have
            try:
                row = next(reader, None)
            except csv.Error as error:
                raise DataError(
                    f"dataset {name!r}: {path}:{reader.line_num}: not {path.suffix[1:].upper()}: {error}"
                ) from error
            finally:
                csv.field_size_limit(limit)
            if row is None:
                return
            yield row


def _parquet_rows(path: Path, name: str) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"dataset {name!r}: {path}: not a parquet file: {error}") from error


READERS: dict[str, Callable[[Path, str], Iterable[Any]]] = {
    ".jsonl": _jsonl_rows,
    ".csv": _csv_rows,
    ".tsv": partial(_csv_rows, delimiter="\t"),  # with quotes as in CSV, which is how spreadsheets write it
    ".parquet": _parquet_rows,
}
"""The reader of each kind of table, by its suffix: from path and the dataset's name to rows."""


def saved_rows(spec: DatasetSpec, path: Path, name: str) -> Iterable[Any]:
    """Return the rows of a folder that datasets saved."""
    import datasets

    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:
        raise DataError(f"dataset {name!r}: {path}: not a folder saved by datasets: {error}") from error
    return _split(saved, spec, name)


def hub_rows(spec: DatasetSpec, name: str, offline: bool) -> Iterable[Any]:
    """Return the rows of a dataset on the hub."""
    import datasets

    # What was written in place of a name as `org/name` may have been meant as a path.
    either = f"; there is no file or folder {name} either (write ./{name}, or name it in lmgate.yaml)"
    either = either if name == spec.hub else ""
    where = "hub:" + "/".join(filter(None, (spec.hub, spec.name, spec.split)))
    mode = datasets.DownloadMode.REUSE_DATASET_IF_EXISTS
    config = datasets.DownloadConfig(local_files_only=offline)
    before = datasets.config.HF_HUB_OFFLINE
    try:
        datasets.config.HF_HUB_OFFLINE = offline or before
        found = datasets.load_dataset(
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
    return _split(found, spec, name)


def _split(found: Any, spec: DatasetSpec, name: str) -> Iterable[Any]:
    """Pick the split; a dataset with several needs to be told which."""
    if not hasattr(found, "keys"):
        if spec.hub is None and spec.split not in (None, str(found.split)):
            raise DataError(f"dataset {name!r}: split: expected none, as {spec.path} is one split, got {spec.split!r}")
        return found  # type: ignore[no-any-return]
    splits = list(found.keys())
    chosen = splits[0] if spec.split is None and len(splits) == 1 else spec.split
    if chosen in splits:
        return found[chosen]  # type: ignore[no-any-return]
    raise DataError(f"dataset {name!r}: say split: one of {', '.join(splits)}; got {spec.split!r}")


@contextlib.contextmanager
def _opened(path: Path, name: str, encoding: str, newline: str) -> Iterator[IO[str]]:
    try:
        with _readable(path, name), path.open(encoding=encoding, newline=newline) as file:
            yield file
    except UnicodeDecodeError:
        for _ in text_in_parts(path, name):
            """Read up to the byte that is not UTF-8, which it tells."""
        raise


@contextlib.contextmanager
def _readable(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"dataset {name!r}: {path}: cannot be read: {error.strerror}") from error
