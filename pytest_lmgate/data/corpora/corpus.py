"""Datasets: files, saved folders, hub ids and in-memory rows become a `Corpus`, the rows as they were written.

A dataset is read row by row, and what is large is kept on the disk, so that no text need fit in memory.
"""

from __future__ import annotations

__all__ = ["Corpus", "corpus_from_rows", "looks_like_documents", "read_corpus", "read_rows"]

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from pytest_lmgate.config.specs import TEXT_SUFFIXES, DatasetSpec
from pytest_lmgate.data.corpora.git_lfs import is_lfs_pointer, pull_hint
from pytest_lmgate.data.corpora.on_disk import PIECE_CHARS, RowsOnDisk, keep_rows
from pytest_lmgate.data.corpora.readers import READERS, hub_rows, lines_of_text, saved_rows, text_in_parts
from pytest_lmgate.data.corpora.tags import Tags, row_tags, tags_by_column
from pytest_lmgate.errors import DataError, nearest

# Rows look like documents of their own if they are this many or more, and shorter on average than so many characters.
_MANY_ROWS, _SHORT_ROW = 10, 2000
_HEADING = re.compile(r"\s*(=+ .* =+|#+ .*)\s*")


@dataclass(frozen=True)
class Corpus:
    """The rows of a dataset.

    Attributes:
        name: The dataset's name, for messages.
        rows: The texts, unchanged; a tuple, or on the disk where they are large.
        join: What stands between rows when they are read as one text.
        is_one_text: Whether the source is one running text rather than rows.
        says_join: Whether the user said how rows are joined.
        tags: Tags of each row, which change no measurement.
    """

    name: str
    rows: Sequence[str]
    join: str = "\n\n"
    is_one_text: bool = False
    says_join: bool = False
    tags: Tags = field(default_factory=dict)

    @property
    def documents(self) -> list[int]:
        """Rows that are read where each is read on its own: those that are not blank."""
        return [index for index, row in enumerate(self.rows) if row.strip()]

    @property
    def is_on_disk(self) -> bool:
        """Whether the rows are too large for memory."""
        return isinstance(self.rows, RowsOnDisk)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the rows and how they are joined; the same rows from any source have the same digest."""
        digest = hashlib.sha256(f"{len(self.rows)} {self.is_one_text} {self.join!r}\n".encode())
        for index in range(len(self.rows)):
            size, parts = self._encoded(index)
            digest.update(b"%d\n" % size)
            for part in parts:
                digest.update(part)
        return digest.hexdigest()

    @property
    def lengths(self) -> list[int]:
        """Characters of each row."""
        return self.rows.lengths if isinstance(self.rows, RowsOnDisk) else list(map(len, self.rows))

    def pieces(self, join: str) -> Iterator[str]:
        """Join the rows to one text, which comes in pieces of `PIECE_CHARS` characters or a little more."""
        held: list[str] = []
        chars = 0
        for part in self._joined(join):
            held.append(part)
            chars += len(part)
            if chars >= PIECE_CHARS:
                yield "".join(held)
                held, chars = [], 0
        if held:
            yield "".join(held)

    def _joined(self, join: str) -> Iterator[str]:
        for index in range(len(self.rows)):
            if index:
                yield join
            yield from self.parts(index)

    def parts(self, index: int) -> Iterator[str]:
        """Read a row in parts of about a mebibyte."""
        if isinstance(self.rows, RowsOnDisk):
            return self.rows.parts(index)
        row = self.rows[index]
        return (row[begin : begin + PIECE_CHARS] for begin in range(0, len(row), PIECE_CHARS))

    def _encoded(self, index: int) -> tuple[int, Iterable[bytes]]:
        if isinstance(self.rows, RowsOnDisk):
            return self.rows.bytes_of(index), self.rows.encoded(index)
        data = self.rows[index].encode()
        return len(data), [data]


def looks_like_documents(corpus: Corpus) -> bool:
    """Return whether the rows seem to be texts of their own rather than the lines of one text, as wikitext's are.

    Many short rows do, unless one is blank, ends in a line break or is a heading, or the dataset says how to join.
    """
    rows = corpus.rows
    if corpus.is_one_text or corpus.says_join or len(rows) < _MANY_ROWS:
        return False
    if sum(corpus.lengths) >= _SHORT_ROW * len(rows):
        return False
    return not any(not row.strip() or row.endswith("\n") or _HEADING.fullmatch(row) for row in rows)


def corpus_from_rows(rows: Iterable[Any], *, name: str) -> Corpus:
    """Make a corpus of in-memory rows: strings, or mappings with the column ``text``.

    Raises:
        DataError: A row is neither, lacks the column, or there is no row.
    """
    return Corpus(name, _kept(((each,) for each in _texts(rows, "text", name)), name))


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
        return Corpus(name, _kept([text_in_parts(path, name)], name), is_one_text=True, **joined)
    rows: Iterable[Any] = read_rows(spec, path, name=name, offline=offline)
    tags: list[tuple[Any, ...]] = []

    def tagged() -> Iterator[Any]:
        for index, row in enumerate(rows):
            tags.append(row_tags(row, spec.tag_columns, name, index))
            yield row

    texts = _texts(tagged() if spec.tag_columns else rows, spec.text, name)
    kept = _kept(((each,) for each in texts), name)
    return Corpus(name, kept, tags=tags_by_column(tags, spec.tag_columns), **joined)


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
        rows = hub_rows(spec, name, offline)
    elif not path.exists():
        # A path in place of a name is in no entry.
        hint = "" if spec.path == name else f"; check {key or f'datasets.{name}.path'}"
        raise DataError(f"dataset {name!r}: no such file or folder: {path}{hint}")
    elif path.is_dir():
        rows = saved_rows(spec, path, name)
    elif path.suffix in TEXT_SUFFIXES:
        rows = lines_of_text(path, name)
    elif path.suffix in READERS:
        rows = READERS[path.suffix](path, name)
    else:
        known = ", ".join([*TEXT_SUFFIXES, *READERS])
        raise DataError(
            f"dataset {name!r}: expected a file ending in {known}, or a folder saved by datasets; got {path}"
        )
    return islice(rows, spec.limit)


def _require_content(path: Path | None, name: str) -> None:
    """Refuse a Git LFS pointer, or a folder saved by datasets with such a pointer in it."""
    files: Iterable[Path] = [] if path is None else path.rglob("*.arrow") if path.is_dir() else [path]
    for pointer in filter(is_lfs_pointer, files):
        raise DataError(f"dataset {name!r}: {pull_hint(pointer)}")


def _kept(rows: Iterable[Iterable[str]], name: str) -> Sequence[str]:
    """Keep rows, each of which comes in parts; refuse what is no text, and rows that hold nothing but white space."""
    is_blank = True

    def checked(index: int, parts: Iterable[str]) -> Iterator[str]:
        nonlocal is_blank
        before = 0
        for part in parts:
            try:
                part.encode()
            except UnicodeEncodeError as error:
                raise DataError(
                    f"dataset {name!r}: row {index}: {part[error.start]!r} at character {before + error.start:,} is "
                    "half of a surrogate pair, which no UTF-8 text holds; repair the row where it was made"
                ) from error
            before += len(part)
            is_blank = is_blank and not part.strip()
            yield part

    kept = keep_rows((checked(index, parts) for index, parts in enumerate(rows)), f"dataset {name!r}: it is")
    if is_blank:
        raise DataError(f"dataset {name!r}: expected text, got none ({len(kept)} rows, all blank)")
    return kept


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
