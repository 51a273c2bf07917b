"""A lock that one process holds at a time: the system's, or where the file system has none, a file that exists.

The system frees its lock when the process dies. A file that stands for a lock stays, so its holder touches it every
30 s. A process that waits removes it after five minutes without a change, by its own clock, since clocks of machines
differ. filelock removes it at once where it can tell that its process on this machine is dead. If the holder was only
suspended, two processes work at once; what they write is whole and the same.
"""

from __future__ import annotations

__all__ = ["hold"]

import contextlib
import errno
import functools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

_TOUCH_SECONDS, _STALE_SECONDS, _LOOK_SECONDS = 30.0, 300.0, 1.0
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextlib.contextmanager
def hold(
    path: Path, waiting: Callable[[], None] = lambda: None, remark: Callable[[str], None] = lambda _: None
) -> Iterator[None]:
    """Hold the lock of a path.

    Args:
        path: File of the lock; its folder is made.
        waiting: Called before a wait; what it raises ends the attempt.
        remark: Called with a sentence where the file system has no locks.

    Raises:
        OSError: There can be no lock, such as in a folder that cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if (why := _why_no_locks(path.parent)) is None:
        with _held(filelock.FileLock(path), waiting, lambda lock: lock.acquire()):
            yield
        return
    remark(
        f"the file system of {path.parent} has no locks ({why}): lock files stand in for them, and one that a "
        "killed process left is free after 5 minutes"
    )
    # Not the same file, which stays after a process that finds locks there.
    marker = path.with_suffix(".marker")
    with _held(filelock.SoftFileLock(marker), waiting, lambda lock: _outwait(lock, marker)), _touched(marker):
        yield


@contextlib.contextmanager
def _held(
    lock: filelock.BaseFileLock, waiting: Callable[[], None], wait: Callable[[filelock.BaseFileLock], object]
) -> Iterator[None]:
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        waiting()
        wait(lock)
    try:
        yield
    finally:
        lock.release()


@functools.cache
def _why_no_locks(folder: Path) -> str | None:
    """Return what the system says where it cannot lock the files of a folder; None where it can."""
    try:
        import fcntl
    except ImportError:  # Windows has locks
        return None
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:  # earlier filelocks would wait for ever
                raise
            return error.strerror
    return None


def _outwait(lock: filelock.BaseFileLock, marker: Path) -> None:
    """Acquire a lock once its holder releases it, or has not touched it for long."""
    seen, since = None, time.monotonic()
    while True:
        with contextlib.suppress(filelock.Timeout):
            lock.acquire(timeout=_LOOK_SECONDS, poll_interval=_LOOK_SECONDS / 4)
            return
        with contextlib.suppress(OSError):
            status = marker.stat()
            now = (status.st_ino, status.st_mtime_ns)
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > _STALE_SECONDS:
                marker.unlink()


@contextlib.contextmanager
def _touched(marker: Path) -> Iterator[None]:
    """Show that the holder of a lock is alive."""
    released = threading.Event()

    def touch() -> None:
        while not released.wait(_TOUCH_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(marker)

    threading.Thread(target=touch, daemon=True).start()
    try:
        yield
    finally:
        released.set()
