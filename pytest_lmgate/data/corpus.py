"""Datasets: files, saved folders, hub ids and in-memory rows become a `Corpus`, the rows as they were written."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappush, heappushpop
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from pytest_lmgate.data.prompts import bare, utf8
from pytest_lmgate.data.readers import (
    READERS,
    hub_rows,
    is_lfs_pointer,
    lines_of_text,
    pull_hint,
    read_text,
    saved_rows,
)
from pytest_lmgate.data.tags import Tags, columns_of, row_tags, tags_by_column
from pytest_lmgate.errors import ConfigError, DataError, nearest
from pytest_lmgate.settings.entries import TEXT_SUFFIXES, DatasetSpec, Sample

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


@dataclass(frozen=True)
class TextSizes:
    r"""The size of a text."""

    words: int  # pieces of ``re.split(r"\s+", text)``, as lm-evaluation-harness counts them
    chars: int  # unicode code points
    utf8_bytes: int  # bytes

    @classmethod
    def of(cls, text: str) -> TextSizes:
        return cls(len(re.split(r"\s+", text)), len(text), len(text.encode("utf-8", "surrogatepass")))


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


def drawn(rows: Iterable[Any], sample: Sample, name: str) -> list[Any]:
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
