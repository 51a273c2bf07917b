"""Durable files: written to a temporary name, fsynced, renamed; a reader sees the old file or the new one, whole.

A sealed file carries the SHA-256 of its body, so that truncation and flipped bits are seen. With a key it also carries
a signature, without which nobody who has the key believes it. No pickle anywhere.
"""

from __future__ import annotations

__all__ = [
    "is_newer",
    "mark_ignored",
    "read_head",
    "read_sealed",
    "remove_leftovers",
    "sync",
    "write_durably",
    "write_sealed",
]

import contextlib
import hashlib
import os
import re
import stat
import uuid
from pathlib import Path

from pytest_lmgate.config.cache_key import CacheKey
from pytest_lmgate.errors import CacheError, NewerError, UnsignedError

_SEAL = re.compile(rb"LMGATE1\n([0-9a-f]{64})(?: ([0-9a-f]{64}))?\n")  # checksum of the body, and a signature
_LONGEST_SEAL = 256
_FORMAT = re.compile(rb"LMGATE([1-9][0-9]{0,8})\n")


def write_durably(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file, given in parts, so that a crash at any moment leaves the old one or the new one.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Made by open(), not by tempfile: the file gets the permissions that the user's umask gives any other.
    temporary = path.with_name(_temporary_name(path, uuid.uuid4().hex))
    try:
        with temporary.open("xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):  # what was there keeps the permissions it had
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync(path.parent)


def mark_ignored(folder: Path) -> None:
    """Keep a folder out of version control."""
    marker = folder / ".gitignore"
    if not marker.exists():
        write_durably(marker, b"# made by pytest-lmgate\n*\n")


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left of a file that they were writing; nobody else may be writing it now."""
    before, after = map(re.escape, _temporary_name(path, "\0").split("\0"))
    pattern = re.compile(f"{before}[0-9a-f]{{32}}{after}")
    with contextlib.suppress(OSError):
        for other in path.parent.iterdir():
            if pattern.fullmatch(other.name):
                other.unlink(missing_ok=True)


def write_sealed(path: Path, *body: bytes | memoryview, key: CacheKey | None = None) -> None:
    """Write a body, given in parts, durably with its checksum, and with a key also with its signature."""
    signature = b"" if key is None else b" " + key.signature(path.name, *body)
    write_durably(path, b"LMGATE1\n" + _checksum(*body) + signature + b"\n", *body)


def read_sealed(path: Path, key: CacheKey | None = None) -> bytes:
    """Return the body of a sealed file. Without a key the checksum is enough.

    Raises:
        FileNotFoundError: There is none.
        CacheError: It is truncated, altered, or not a sealed file at all, but a folder, a pipe or a device; or the key
            does not fit its signature.
        NewerError: A later version of this package wrote it.
        UnsignedError: There is a key, and the file has no signature.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would never end, nor would some devices
        raise CacheError(f"{path}: not a file")
    with path.open("rb", buffering=0) as file:  # a buffer would be joined with the rest, which copies it
        seal = _seal(path, file.read(_LONGEST_SEAL))
        file.seek(seal.end())
        body = file.readall()
    checksum, signature = seal.groups()
    if checksum != _checksum(body):
        raise CacheError(f"{path}: its checksum does not match ({len(body):,} bytes): truncated or altered")
    if key is not None:
        if signature is None:
            raise UnsignedError(f"{path}: it has no signature")
        if not key.fits(signature, path.name, body):
            raise CacheError(f"{path}: its signature does not fit LMGATE_CACHE_KEY: another key, or a forged file")
    return body


def read_head(path: Path) -> bytes:
    """Return the beginning of the body of a sealed safetensors file, with all of its head; nothing is checked.

    Raises:
        CacheError: It is not such a file.
        NewerError: A later version of this package wrote it.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise CacheError(f"{path}: not a file")
    with path.open("rb") as file:
        seal = _seal(path, file.read(_LONGEST_SEAL))
        file.seek(seal.end())
        length = file.read(8)
        return length + file.read(min(int.from_bytes(length, "little"), path.stat().st_size))


def is_newer(path: Path) -> bool:
    """Return whether a later version of this package wrote a sealed file, in a format that this one cannot read."""
    try:
        read_head(path)
    except NewerError:
        return True
    except (OSError, CacheError):
        pass
    return False


def _seal(path: Path, data: bytes) -> re.Match[bytes]:
    if (seal := _SEAL.match(data)) is not None:
        return seal
    newer = _FORMAT.match(data)
    if newer is not None and int(newer[1]) > 1:
        raise NewerError(f"{path}: a later version of pytest-lmgate wrote it")
    raise CacheError(f"{path}: not a cache entry of this format")


def _temporary_name(path: Path, unique: str) -> str:
    return f".{path.name[:96]}-{unique}.tmp"


def _checksum(*body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for part in body:
        digest.update(part)
    return digest.hexdigest().encode()


def sync(path: Path) -> None:
    """Have the system write a file's changed pages to the disk, or a folder's renames where it can be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
