"""Reading datasets: files, saved folders, hub ids and in-memory rows become a `Corpus`, the rows as they were written.

Text is never normalized: no newline translation, no stripping, and bytes that are not UTF-8 are an error.
"""

from __future__ import annotations

__all__ = ["Corpus", "corpus_from_rows", "looks_like_documents", "read_corpus", "read_rows"]

import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from pytest_lmgate.config.specs import TEXT_SUFFIXES, DatasetSpec
from pytest_lmgate.data.git_lfs import is_lfs_pointer, pull_hint
from pytest_lmgate.data.tags import Tags, read_tags
from pytest_lmgate.errors import DataError, OfflineError, nearest

# Of documents of their own: this many rows and more, shorter on average than this many characters.
_MANY_ROWS, _SHORT_ROW = 10, 2000
_HEADING = re.compile(r"\s*(=+ .* =+|#+ .*)\s*")
# What some programs put before the first character of a UTF-8 file; part of a text, but of no table.
_BOM = "\ufeff"


@dataclass(frozen=True)
class Corpus:
    """The rows of a dataset.

    Attributes:
        name: The dataset's name, for messages.
        rows: The texts, unchanged.
        join: What stands between rows when they are read as one text.
        is_one_text: Whether the source is one running text rather than rows.
        says_join: Whether the user said how rows are joined.
        tags: Tags of each row, which change no measurement.
    """

    name: str
    rows: tuple[str, ...]
    join: str = "\n\n"
    is_one_text: bool = False
    says_join: bool = False
    tags: Tags = field(default_factory=dict)

    @property
    def documents(self) -> list[int]:
        """Rows that are read where each is read on its own: those that are not blank."""
        return [index for index, row in enumerate(self.rows) if row.strip()]

    @property
    def digest(self) -> str:
        """SHA-256 over the rows and how they are joined; the same rows from any source have the same digest."""
        digest = hashlib.sha256(f"{len(self.rows)} {self.is_one_text} {self.join!r}\n".encode())
        for row in self.rows:
            data = row.encode()
            digest.update(b"%d\n" % len(data))
            digest.update(data)
        return digest.hexdigest()


def looks_like_documents(corpus: Corpus) -> bool:
    """Return whether the rows seem to be texts of their own rather than the lines of one text, as wikitext's are.

    Many short rows do, unless one is blank, ends in a line break or is a heading, or the dataset says how to join.
    """
    rows = corpus.rows
    if corpus.is_one_text or corpus.says_join or len(rows) < _MANY_ROWS:
        return False
    if sum(map(len, rows)) >= _SHORT_ROW * len(rows):
        return False
    return not any(not row.strip() or row.endswith("\n") or _HEADING.fullmatch(row) for row in rows)


def corpus_from_rows(rows: Iterable[Any], *, text: str, name: str, join: str = "\n\n") -> Corpus:
    """Make a corpus of in-memory rows: strings, or mappings with the column `text`.

    Raises:
        DataError: A row is neither, lacks the column, or there is no row.
    """
    return _finished(Corpus(name, tuple(_texts(rows, text, name)), join))


def read_corpus(spec: DatasetSpec, path: Path | None, *, name: str, offline: bool = False) -> Corpus:
    """Read a dataset.

    Args:
        spec: What to read.
        path: The resolved `spec.path`; None for a hub id.
        name: Name of the dataset, for messages.
        offline: Forbid the network.

    Raises:
        DataError: It does not exist, is not what its name says, lacks the column, or holds no text.
        OfflineError: A hub dataset is not in the local cache and `offline` is set.
    """
    _require_content(path, name)
    joined: dict[str, Any] = {} if isinstance(spec.join, msgspec.UnsetType) else {"join": spec.join, "says_join": True}
    if path is not None and path.is_file() and path.suffix in TEXT_SUFFIXES and not spec.lines:
        return _finished(Corpus(name, (_decoded(path, name),), is_one_text=True, **joined))
    rows: Iterable[Any] = read_rows(spec, path, name=name, offline=offline)
    if spec.tag_columns:
        rows = list(rows)
        joined["tags"] = read_tags(rows, spec.tag_columns, name)
    return _finished(Corpus(name, tuple(_texts(rows, spec.text, name)), **joined))


def read_rows(
    spec: DatasetSpec, path: Path | None, *, name: str, offline: bool = False, key: str | None = None
) -> Iterator[Any]:
    """Return a dataset's rows, mappings or (of a text file) lines, up to its limit.

    The arguments and errors are those of `read_corpus`; `key` says where in lmgate.yaml the path is written, if not in
    the dataset's entry.
    """
    rows: Iterable[Any]
    _require_content(path, name)
    if path is None:
        rows = _hub_rows(spec, name, offline)
    elif not path.exists():
        # A path in place of a name is in no entry.
        hint = "" if spec.path == name else f"; check {key or f'datasets.{name}.path'}"
        raise DataError(f"dataset {name!r}: no such file or folder: {path}{hint}")
    elif path.is_dir():
        rows = _saved_rows(spec, path, name)
    elif path.suffix in TEXT_SUFFIXES:
        rows = _decoded(path, name).removesuffix("\n").split("\n")
    elif path.suffix in _READERS:
        rows = _READERS[path.suffix](path, name)
    else:
        known = ", ".join([*TEXT_SUFFIXES, *_READERS])
        raise DataError(
            f"dataset {name!r}: expected a file ending in {known}, or a folder saved by datasets; got {path}"
        )
    return islice(rows, spec.limit)


def _require_content(path: Path | None, name: str) -> None:
    """Refuse a Git LFS pointer, or a folder saved by datasets with such a pointer in it."""
    files: Iterable[Path] = [] if path is None else path.rglob("*.arrow") if path.is_dir() else [path]
    for pointer in filter(is_lfs_pointer, files):
        raise DataError(f"dataset {name!r}: {pull_hint(pointer)}")


def _finished(corpus: Corpus) -> Corpus:
    if not any(corpus.rows):
        raise DataError(f"dataset {corpus.name!r}: expected text, got none ({len(corpus.rows)} rows, all empty)")
    for index, row in enumerate(corpus.rows):
        try:
            row.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"dataset {corpus.name!r}: row {index}: {row[error.start]!r} at character {error.start:,} is half of a "
                "surrogate pair, which no UTF-8 text holds; repair the row where it was made"
            ) from error
    return corpus


def _texts(rows: Iterable[Any], column: str, name: str) -> Iterator[str]:
    for index, row in enumerate(rows):
        if isinstance(row, str):
            yield row
            continue
        if not isinstance(row, Mapping):
            raise DataError(f"dataset {name!r}: row {index}: expected text or a mapping, got {type(row).__name__}")
        if column not in row:
            raise DataError(
                f"dataset {name!r}: row {index}: no column {column!r}{nearest(column, map(str, row))}; "
                f"it has {', '.join(map(str, row)) or 'none'}; say text: COLUMN in the dataset's entry"
            )
        if not isinstance(row[column], str):
            kind = type(row[column]).__name__
            raise DataError(f"dataset {name!r}: row {index}: column {column!r}: expected text, got {kind}")
        yield row[column]


def _decoded(path: Path, name: str) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"dataset {name!r}: {path}: not UTF-8 at byte {error.start:,} ({error.object[error.start]:#04x}); "
            "convert the file, for example with iconv -t UTF-8"
        ) from error
    except OSError as error:
        raise DataError(f"dataset {name!r}: {path}: cannot be read: {error.strerror}") from error


def _jsonl_rows(path: Path, name: str) -> Iterator[Any]:
    for number, line in enumerate(_decoded(path, name).removeprefix(_BOM).split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise DataError(f"dataset {name!r}: {path}:{number}: not JSON: {error}") from error
        except RecursionError:
            raise DataError(f"dataset {name!r}: {path}:{number}: nested too deeply to be read as JSON") from None


def _csv_rows(path: Path, name: str, delimiter: str = ",") -> Iterable[Any]:
    text = io.StringIO(_decoded(path, name).removeprefix(_BOM), newline="")
    reader = csv.DictReader(text, delimiter=delimiter, strict=True)
    limit = csv.field_size_limit(2**31 - 1)  # 128 KiB at first, less than a document can have
    try:
        return list(reader)
    except csv.Error as error:
        raise DataError(
            f"dataset {name!r}: {path}:{reader.line_num}: not {path.suffix[1:].upper()}: {error}"
        ) from error
    finally:
        csv.field_size_limit(limit)


def _parquet_rows(path: Path, name: str) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"dataset {name!r}: {path}: not a parquet file: {error}") from error


_READERS: dict[str, Callable[[Path, str], Iterable[Any]]] = {
    ".jsonl": _jsonl_rows,
    ".csv": _csv_rows,
    ".tsv": partial(_csv_rows, delimiter="\t"),  # with quotes as in CSV, which is how spreadsheets write it
    ".parquet": _parquet_rows,
}


def _saved_rows(spec: DatasetSpec, path: Path, name: str) -> Iterable[Any]:
    import datasets

    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:
        raise DataError(f"dataset {name!r}: {path}: not a folder saved by datasets: {error}") from error
    return _split(saved, spec, name)


def _hub_rows(spec: DatasetSpec, name: str, offline: bool) -> Iterable[Any]:
    import datasets

    # What was written in place of a name as `org/name` may have been meant as a path.
    either = f"; there is no file or folder {name} either (write ./{name}, or name it in lmgate.yaml)"
    either = either if name == spec.hub else ""
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
                f"dataset {name!r}: {spec.where} is not in the local hub cache, and --lmgate-offline forbids fetching "
                f"it; run once without it, or give a local path ({type(error).__name__}: {error}){either}"
            ) from error
        raise DataError(
            f"dataset {name!r}: {spec.where}: cannot be loaded from the hub: {str(error).rstrip('.')}{either}"
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = before
    return _split(found, spec, name)


def _split(found: Any, spec: DatasetSpec, name: str) -> Iterable[Any]:
    """Pick the split; a dataset with several needs to be told which."""
    if not hasattr(found, "keys"):
        return found  # type: ignore[no-any-return]
    splits = list(found.keys())
    chosen = splits[0] if spec.split is None and len(splits) == 1 else spec.split
    if chosen in splits:
        return found[chosen]  # type: ignore[no-any-return]
    raise DataError(f"dataset {name!r}: say split: one of {', '.join(splits)}; got {spec.split!r}")
