"""Rows that are too large for memory: in a file without a name, which goes with the process."""

from __future__ import annotations

__all__ = ["PIECE_CHARS", "RowsOnDisk", "keep_rows", "needs_room", "open_until_gone"]

import codecs
import contextlib
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import IO, overload

from pytest_lmgate.errors import DataError

MOST_CHARS = 64 * 2**20
"""Characters of a dataset beyond which its rows are kept on the disk."""
PIECE_CHARS = 2**20
"""Characters of the pieces in which a text is read; a text of no more is tokenized in one call."""
PART_BYTES = 2**20


class RowsOnDisk(Sequence[str]):
    """Rows in a file; a row is read when it is asked for.

    Args:
        what: What they are, for the message that they cannot be written; see `needs_room`.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        with needs_room(what):
            self._file = open_until_gone(self)
        self._ends, self._chars_before = array("q", [0]), array("q", [0])
        self._written = self._chars = 0

    def write(self, part: str) -> None:
        """Write a part of a row."""
        with needs_room(self._what):
            self._written += self._file.write(part.encode())
        self._chars += len(part)

    def end_row(self) -> None:
        """End a row."""
        self._ends.append(self._written)
        self._chars_before.append(self._chars)

    def flush(self) -> None:
        """Let what was written be read."""
        with needs_room(self._what):
            self._file.flush()

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self))))
        return "".join(self.parts(range(len(self))[index]))

    @property
    def lengths(self) -> list[int]:
        """Characters of each row."""
        return [end - begin for begin, end in pairwise(self._chars_before)]

    def bytes_of(self, row: int) -> int:
        """Return how many bytes a row has."""
        return self._ends[row + 1] - self._ends[row]

    def encoded(self, row: int) -> Iterator[bytes]:
        """Read a row's UTF-8 in parts of a mebibyte."""
        for begin in range(self._ends[row], self._ends[row + 1], PART_BYTES):
            self._file.seek(begin)
            yield self._file.read(min(PART_BYTES, self._ends[row + 1] - begin))

    def parts(self, row: int) -> Iterator[str]:
        """Read a row's text in parts of about a mebibyte."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        return map(decoder.decode, self.encoded(row))


def keep_rows(rows: Iterable[Iterable[str]], what: str) -> Sequence[str]:
    """Keep rows, each of which comes in parts: in memory, or on the disk where they are large together.

    Args:
        rows: The parts of each.
        what: What they are, for messages; see `needs_room`.

    Raises:
        DataError: The disk has no room for them.
    """
    held: list[str] = []
    chars, disk = 0, None
    for parts in rows:
        own: list[str] = []
        for part in parts:
            if disk is not None:
                disk.write(part)
                continue
            own.append(part)
            chars += len(part)
            if chars > MOST_CHARS:
                disk = RowsOnDisk(what)
                for row in held:
                    disk.write(row)
                    disk.end_row()
                disk.write("".join(own))
        if disk is None:
            held.append("".join(own))
        else:
            disk.end_row()
    if disk is None:
        return tuple(held)
    disk.flush()
    return disk


def open_until_gone(owner: object) -> IO[bytes]:
    """Open a file without a name, which is closed when its owner is gone."""
    file: IO[bytes] = tempfile.TemporaryFile(prefix="lmgate-")  # noqa: SIM115
    weakref.finalize(owner, _close, file)
    return file


def _close(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # what a full disk did not take was told when it was written
        file.close()


@contextlib.contextmanager
def needs_room(what: str) -> Iterator[None]:
    """Say of what cannot be written to the disk, as in ``dataset 'd': it is``, that it needs more room there.

    Raises:
        DataError: The disk is full, say.
    """
    try:
        yield
    except OSError as error:
        try:
            where = tempfile.gettempdir()
        except OSError:
            where = "any temporary folder"
        raise DataError(
            f"{what} too large for memory, and cannot be kept in {where}: {error.strerror}; set TMPDIR to a folder "
            "with more room"
        ) from error
