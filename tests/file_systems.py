"""What the file system under the tests does, tried out."""

import mmap
import os
import time
from pathlib import Path


def notes_writes_by_mapping(folder: Path) -> bool:
    """Return whether a write through a memory mapping, after the last one is on the disk, sets a new change time."""
    path = folder / "mapped"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0:1] = b"a"
        os.fsync(file.fileno())
        before = path.stat().st_ctime_ns
        time.sleep(0.05)
        mapped[1:2] = b"a"
        return path.stat().st_ctime_ns != before
