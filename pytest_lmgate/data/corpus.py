"""Datasets: files, saved folders, hub ids and in-memory rows become a `Corpus`, the rows as they were written.

Text is never normalized: no newline translation, no stripping, and bytes that are not UTF-8 are an error. The end of a
line, LF or CRLF, is no part of a row.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import re
import stat
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from heapq import heappush, heappushpop
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any

import msgspec

from pytest_lmgate.data.columns import Tags, bare, columns_of, row_tags, tags_by_column, utf8
from pytest_lmgate.errors import ConfigError, DataError, OfflineError, nearest
from pytest_lmgate.settings.entries import TEXT_SUFFIXES, DatasetSpec, RowSample

# Rows from where they are, one after another: text, JSON lines, CSV, parquet, saved folders, the hub.


_PLAIN = "utf-8"
# A byte-order mark is part of a text, but not of a table.
_TABLE = "utf-8-sig"
# An escape of JSON for half of a surrogate pair.
_HALF = re.compile(r"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]..")
# What Windows writes and nobody sees.
_HIDDEN = {"\r": "carriage returns (CRLF)", "\ufeff": "byte-order marks"}
# Two cells of CSV that are one text, in a row that has lost another cell: 1,000 apples.
_CUT_NUMBER = re.compile(r"[^\w\s]?\d{1,3}"), re.compile(r"0\d\d [a-z]")


def read_text(path: Path, name: str) -> str:
    with _opened(path, name, _PLAIN, "") as file:
        return file.read()


def lines_of_text(path: Path, name: str) -> Iterator[str]:
    line = None
    with _opened(path, name, _TABLE, "\n") as file:
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
                half = _HALF.search(line)
                why = f"{half[0]} is half of a surrogate pair, which is not valid UTF-8" if half else error
                raise DataError(f"dataset {name!r}: {path}:{number}: not JSON: {why}") from error
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
        names: list[str] = []
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
                names = list(map(_bare, header))
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"dataset {name!r}: {path}:{begin}: expected {len(header)} cells, as in the header, got "
                    f"{len(cells)}: {delimiter.join(cells)!r:.80}; put a cell with {delimiter!r}, a quote or a line "
                    "break in quotes"
                )
            is_wide = len(cells) > 1 or cells[0].startswith("\ufeff")
            if is_wide and _bare(cells[0]) == names[0] and list(map(_bare, cells)) == names:
                raise DataError(
                    f"dataset {name!r}: {path}:{begin}: expected a row, got the header again: was the file joined of "
                    "several? Remove this line"
                )
            for one, other in pairwise(cells) if delimiter == "," else ():
                if _CUT_NUMBER[1].match(other) and _CUT_NUMBER[0].fullmatch(one):
                    raise DataError(
                        f"dataset {name!r}: {path}:{begin}: two cells look like one number that was cut at its comma: "
                        f"{f'{one},{other}'!r:.80}; put a cell with ',' in quotes, or write rows in which they are two "
                        "as .jsonl"
                    )
            yield dict(zip(header, cells, strict=True))


def _bare(column: str) -> str:
    """Return a column's name as it is in every file that was joined, which may have a byte-order mark."""
    return column.strip('\ufeff "').casefold()


def _require_different(columns: Iterable[Any], where: str, name: str) -> None:
    """Refuse two columns, or keys of a row, of one name. Columns without a name may be several."""
    (column, count), *_ = Counter(str(each).strip() for each in columns if each).most_common(1) or [("", 0)]
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


# A corpus: all rows of a dataset, or a sample of them.


MOST_BYTES = 10**9
"""The most UTF-8 bytes of a dataset's text."""

# Rows look like documents if there are at least this many, and they are shorter on average than this.
_MANY_ROWS, _SHORT_ROW = 10, 2000
_HEADING = re.compile(r"\s*(=+ .* =+|#+ .*)\s*")


@dataclass(frozen=True)
class Corpus:
    """The rows of a dataset."""

    name: str  # the dataset's name, for messages
    rows: tuple[str, ...]  # the texts, unchanged
    join: str = "\n\n"  # text between rows when they are read as one text
    is_one_text: bool = False  # whether the source is one running text rather than rows
    has_entry: bool = False  # whether lmgate.yaml has an entry of it
    says_join: bool = False  # whether the user set `join`
    # texts whose words, characters and bytes are counted instead of the rows'; empty for the rows' own
    counted: tuple[str, ...] = ()
    tags: Tags = field(default_factory=dict)  # tags of each row, which change no measurement
    tokens: int | None = None  # number of the model's tokens after which one running text ends; None for all of it

    @property
    def documents(self) -> list[int]:
        """Indexes of the rows that are not blank."""
        return [index for index, row in enumerate(self.rows) if row.strip()]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the rows and how they are joined; the same rows from any source have the same digest.

        Where `tokens` ends the text is up to the model's tokenizer, so the whole text and the number are its identity.
        """
        ends = "" if self.tokens is None else f" {self.tokens} tokens"
        digest = hashlib.sha256(f"{len(self.rows)} {self.is_one_text} {self.join!r}{ends}\n".encode())
        for row in (*self.rows, *self.counted):
            data = row.encode()
            digest.update(b"%d\n" % len(data))
            digest.update(data)
        return digest.hexdigest()

    @cached_property
    def hidden(self) -> str:
        """What Windows may have put into the rows, in words."""
        return hidden_in(self.rows)


@dataclass(frozen=True)
class TextSizes:
    r"""The size of a text."""

    words: int  # pieces of ``re.split(r"\s+", text)``, as lm-evaluation-harness counts them
    chars: int  # unicode code points
    utf8_bytes: int  # bytes

    @classmethod
    def of(cls, text: str) -> TextSizes:
        return cls(len(re.split(r"\s+", text)), len(text), len(text.encode("utf-8", "surrogatepass")))


def hidden_in(cells: Iterable[Any]) -> str:
    """Name what Windows may have put into texts, cells of a table among them; empty if there is none of it."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    return " and ".join(words for mark, words in _HIDDEN.items() if any(mark in text for text in texts))


def looks_like_documents(corpus: Corpus) -> bool:
    """Return whether the rows look like separate texts rather than the lines of one text, as wikitext's are.

    Many short rows do, unless one is blank, ends in a line break or is a heading, or the dataset sets `join`.
    """
    rows = corpus.rows
    if corpus.is_one_text or corpus.says_join or len(rows) < _MANY_ROWS:
        return False
    if sum(map(len, rows)) >= _SHORT_ROW * len(rows):
        return False
    return not any(not row.strip() or row.endswith("\n") or _HEADING.fullmatch(row) for row in rows)


def corpus_from_rows(rows: Iterable[Any], *, name: str) -> Corpus:
    """Make a corpus of in-memory rows: strings, or mappings with the column ``text``."""
    return Corpus(name, _kept(_texts(rows, "text", name), name))


def read_corpus(spec: DatasetSpec, path: Path | None, *, name: str, offline: bool = False) -> Corpus:
    """Read a dataset; `path` is the resolved `spec.path`, None for a hub id."""
    _require_content(path, name)
    joined: dict[str, Any] = {} if isinstance(spec.join, msgspec.UnsetType) else {"join": spec.join, "says_join": True}
    if path is not None and path.is_file() and path.suffix in TEXT_SUFFIXES and not spec.lines:
        _require_size(path.stat().st_size, name)
        return Corpus(name, _kept([read_text(path, name)], name), is_one_text=True, tokens=spec.tokens, **joined)
    rows: Iterable[Any] = read_rows(spec, path, name=name, offline=offline)
    columns, tags = columns_of(spec.tags), list[tuple[Any, ...]]()
    counted: list[str] = []

    def seen() -> Iterator[Any]:
        for index, row in enumerate(rows):
            if columns:
                tags.append(row_tags(row, columns, name, index))
            if spec.counted is not None:
                counted.append(_text(row, index, spec.counted, name, key="counted"))
            yield row

    kept = _kept(_texts(seen(), spec.text, name), name)  # before what comes with the rows
    return Corpus(name, kept, counted=tuple(counted), tags=tags_by_column(tags, columns), **joined)


def read_rows(
    spec: DatasetSpec, path: Path | None, *, name: str, offline: bool = False, key: str | None = None
) -> Iterator[Any]:
    """Return a dataset's rows, mappings or (of a text file) lines: those of its sample, or up to its limit.

    The `key` says where in lmgate.yaml the path is written, if not in the dataset's entry.
    """
    rows: Iterable[Any]
    _require_content(path, name)
    if path is None:
        rows = hub_rows(spec, name, offline)
    elif not path.exists():
        # A path instead of a name is in no entry.
        hint = "" if spec.path == name else f"; check {key or f'datasets.{name}.path'}"
        raise DataError(f"dataset {name!r}: no such file or folder: {path}{hint}")
    elif path.is_dir():
        rows = saved_rows(spec, path, name)
    elif path.suffix in TEXT_SUFFIXES:
        rows = lines_of_text(path, name)
    elif path.suffix in READERS:
        rows = READERS[path.suffix](path, name)
    else:
        suffixes = ", ".join([*TEXT_SUFFIXES, *READERS])
        raise DataError(
            f"dataset {name!r}: expected a file ending in {suffixes}, or a folder saved by datasets; got {path}"
        )
    return islice(rows, spec.limit) if spec.sample is None else iter(drawn(rows, spec.sample, name))


def drawn(rows: Iterable[Any], sample: RowSample, name: str) -> list[Any]:
    """Return a sample of rows in their order.

    Rows are ordered by the SHA-256 of ``"SEED INDEX"``, with the row's index in the file from 0, and the first are
    drawn: the same on each machine and under each Python, and a larger sample holds a smaller one. With ``by``, so are
    each stratum's.
    """
    counts: Counter[Hashable] = Counter()
    kept: dict[Hashable, list[tuple[int, int, Any]]] = {}  # a heap for each stratum, its last row on top
    for index, row in enumerate(rows):
        stratum = None if sample.by is None else _stratum(row, sample.by, name, index)
        counts[stratum] += 1
        hashed = hashlib.sha256(f"{sample.seed} {index}".encode()).digest()
        heap, one = kept.setdefault(stratum, []), (-int.from_bytes(hashed, "big"), index, row)
        if len(heap) < sample.rows:
            heappush(heap, one)
        else:
            heappushpop(heap, one)
    total = counts.total()
    if sample.rows > total:
        raise DataError(f"dataset {name!r}: sample: expected at most {total:,} rows, as there are, got {sample.rows:,}")
    if sample.by is not None and total > 1 and len(counts) == total:
        raise DataError(
            f"dataset {name!r}: sample: by: expected a column of strata, got {sample.by!r}, which is different in each "
            f"of the {total:,} rows; leave out by:"
        )
    if sample.rows < len(counts):
        raise DataError(
            f"dataset {name!r}: sample: by: expected rows={len(counts):,} or more, one for each value of "
            f"{sample.by!r}, got {sample.rows:,}; draw more rows, or leave out by:"
        )
    drawn_rows = []
    for label, count in _shares(counts, sample.rows).items():
        drawn_rows += sorted(kept[label], key=lambda one: -one[0])[:count]
    return [row for _, _, row in sorted(drawn_rows, key=lambda one: one[1])]


def _stratum(row: Any, column: str, name: str, index: int) -> str:
    if not isinstance(row, Mapping):
        raise DataError(
            f"dataset {name!r}: row {index}: sample: by: expected a row with columns, got {type(row).__name__}"
        )
    return bare(column, row, name, index, what="sample: by")


def _shares(sizes: Mapping[Hashable, int], rows: int) -> dict[Hashable, int]:
    """Share out rows by the sizes of strata, by largest remainder; each gets at least one.

    Strata whose share is less than one row get one, and the rest is shared out among the others. Of equal remainders,
    the stratum that comes first in the file is preferred.
    """
    shares: dict[Hashable, int] = {}
    left = dict(sizes)
    while small := [stratum for stratum, size in left.items() if size * (rows - len(shares)) < sum(left.values())]:
        for stratum in small:
            shares[stratum] = 1
            del left[stratum]
    total, room = sum(left.values()), rows - len(shares)
    quotas = {stratum: divmod(size * room, total) for stratum, size in left.items()}
    extra = room - sum(whole for whole, _ in quotas.values())
    by_remainder = sorted(quotas, key=lambda stratum: -quotas[stratum][1])
    return shares | {stratum: quotas[stratum][0] + (place < extra) for place, stratum in enumerate(by_remainder)}


def _require_content(path: Path | None, name: str) -> None:
    """Refuse a Git LFS pointer, or a folder saved by datasets with such a pointer in it."""
    files: Iterable[Path] = [] if path is None else path.rglob("*.arrow") if path.is_dir() else [path]
    for pointer in filter(is_lfs_pointer, files):
        raise DataError(f"dataset {name!r}: {pull_hint(pointer)}")


def _kept(rows: Iterable[str], name: str) -> tuple[str, ...]:
    """Read rows into memory; refuse values that are not text, more than 1 GB, and rows with white space alone."""
    kept: list[str] = []
    size = 0
    for index, row in enumerate(rows):
        size += len(utf8(row, f"dataset {name!r}: row {index}"))
        _require_size(size, name)
        kept.append(row)
    if not any(map(str.strip, kept)):
        raise DataError(f"dataset {name!r}: expected text, got none ({len(kept)} rows, all blank)")
    return tuple(kept)


def _require_size(size: int, name: str) -> None:
    if size > MOST_BYTES:
        raise DataError(
            f"dataset {name!r}: expected at most {MOST_BYTES:,} bytes of text, which is read into memory, got more; "
            "take fewer rows, for example with sample: {rows: ROWS} (and lines: true for a text file)"
        )


def _texts(rows: Iterable[Any], column: str, name: str) -> Iterator[str]:
    for index, row in enumerate(rows):
        yield row if isinstance(row, str) else _text(row, index, column, name)


def _text(row: Any, index: int, column: str, name: str, *, key: str = "text") -> str:
    if not isinstance(row, Mapping):
        raise DataError(f"dataset {name!r}: row {index}: expected text or a mapping, got {type(row).__name__}")
    if column not in row:
        raise DataError(
            f"dataset {name!r}: row {index}: no column {column!r}{nearest(column, map(str, row))}; "
            f"it has {', '.join(map(str, row)) or 'none'}; set {key}: COLUMN in the dataset's entry"
        )
    if not isinstance(row[column], str):
        kind = type(row[column]).__name__
        raise DataError(f"dataset {name!r}: row {index}: column {column!r}: expected text, got {kind}")
    text: str = row[column]
    return text


def rows_in_memory(dataset: Any, *, of: str) -> Iterable[Any]:
    """Return the rows of a list, a ``datasets.Dataset``, a DataFrame or any other object with rows in an order.

    A DataFrame is recognized by its methods, so that no library of tables is imported. `of` names the rows in messages.
    """
    if hasattr(dataset, "columns") and hasattr(dataset, "to_dict") and not isinstance(dataset, type):
        return _rows_of_frame(dataset)
    hint = _refused(dataset)
    if hint is not None:
        raise ConfigError(
            f"dataset: expected a name of lmgate.yaml, a path, a hub id or a list of {of}, "
            f"got {type(dataset).__name__}{hint}"
        )
    return dataset  # type: ignore[no-any-return]


def _refused(dataset: Any) -> str | None:
    """Return a hint, perhaps empty, if an object's elements cannot be rows; None if they can."""
    if isinstance(dataset, Mapping):
        return "; give one of its splits, or a list of rows"
    if isinstance(dataset, Set):
        return ", whose order changes: put its elements in a list"
    if isinstance(dataset, bytes | bytearray | memoryview):
        return "; decode it, and put the text in a list"
    return None if hasattr(dataset, "__iter__") and not isinstance(dataset, type) else ""


def _rows_of_frame(frame: Any) -> list[dict[Any, Any]]:
    kind = type(frame).__name__
    columns = list(frame.columns)
    if len(set(columns)) < len(columns):
        raise DataError(f"dataset 'in-memory {kind}': expected columns of different names, got {columns}")
    try:
        rows = frame.to_dict("records")
    except TypeError as error:
        raise ConfigError(f"dataset: cannot take the rows of a {kind}: {error}; give a list of mappings") from error
    # NaN means a missing value.
    return [
        {key: None if isinstance(cell, float) and cell != cell else cell for key, cell in row.items()} for row in rows
    ]


def shortened(corpus: Corpus, characters: int) -> Corpus:
    """Return the beginning of a corpus: whole rows, and a part of the last one."""
    rows: list[str] = []
    for row in corpus.rows:
        if characters <= 0:
            break
        rows.append(row[:characters])
        characters -= len(row)
    return replace(corpus, rows=tuple(rows))
