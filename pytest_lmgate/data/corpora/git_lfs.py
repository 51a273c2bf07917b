"""Git LFS pointers: the few lines that stand for a large file until ``git lfs pull`` fetches it."""

from __future__ import annotations

__all__ = ["is_lfs_pointer", "pull_hint"]

import contextlib
import re
import stat
from pathlib import Path

# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md; the second host is that of its first versions.
_POINTER = re.compile(rb"version https://(git-lfs\.github\.com/spec|hawser\.github\.com/spec)/v\d+\r?\n(.*\n)*oid \w+:")
_LARGEST = 1024


def is_lfs_pointer(path: Path) -> bool:
    """Return whether a file is a pointer; a file that cannot be read is none."""
    with contextlib.suppress(OSError):
        status = path.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST:
            return _POINTER.match(path.read_bytes()) is not None
    return False


def pull_hint(path: Path) -> str:
    """Return what a message says of a pointer."""
    return f"{path} is a Git LFS pointer, not the file itself: run git lfs pull (in CI, check out with LFS)"
