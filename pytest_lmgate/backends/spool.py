"""Hidden states on disk, for a model that does not fit in memory beside the one it is compared with.

The file has no name from the moment it is opened, so that the system removes it when the process ends, however it does
(POSIX; elsewhere it is removed when closed). Its size is bounded by whoever decides which windows go into it.
"""

from __future__ import annotations

__all__ = ["Spool", "room"]

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pytest_lmgate.errors import EngineError

# A file grows no larger than this, nor than half of what is free; a longer text is measured in several rounds.
_MOST_BYTES = 8 * 2**30


def room(folder: Path | None) -> int:
    """Return how many bytes may be spooled at a time to a folder; None is the system's for temporary files."""
    try:
        free = shutil.disk_usage(folder or tempfile.gettempdir()).free
    except OSError:
        return _MOST_BYTES
    return min(_MOST_BYTES, free // 2)


class Spool:
    """Rows of tensors of one width and dtype in a folder (None: the system's for temporary files), in blocks."""

    def __init__(self, folder: Path | None) -> None:
        with _disk_errors(folder):
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__
        self._folder = folder
        self._width, self._dtype = 0, torch.float32

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, row: int, states: Tensor) -> None:
        """Put rows, shape ``[rows, width]``, from number `row` on.

        Raises:
            EngineError: The disk is full, or fails.
        """
        self._width, self._dtype = states.shape[1], states.dtype
        with _disk_errors(self._folder):
            self._file.seek(row * self._row_bytes)
            self._file.write(states.contiguous().cpu().view(torch.uint8).numpy().data)

    def read(self, row: int, count: int) -> Tensor:
        """Return `count` rows from number `row` on, on the CPU.

        Raises:
            EngineError: The disk fails.
        """
        bytes_ = np.empty(count * self._row_bytes, dtype=np.uint8)
        with _disk_errors(self._folder):
            self._file.seek(row * self._row_bytes)
            if self._file.readinto(bytes_.data) != len(bytes_):
                raise OSError("the spool ends early")
        return torch.from_numpy(bytes_).view(self._dtype).view(count, self._width)

    @property
    def _row_bytes(self) -> int:
        return self._width * self._dtype.itemsize


@contextlib.contextmanager
def _disk_errors(folder: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EngineError(
            f"the reference's hidden states cannot be kept in {folder or tempfile.gettempdir()}: {error}; both models "
            "do not fit in memory at once: free some of the disk or of the memory, or use a shorter text"
        ) from error
