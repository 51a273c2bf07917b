"""Messages between a session and the process that vLLM runs in: MessagePack, each with its length before it."""

from __future__ import annotations

__all__ = ["receive", "send"]

import struct
from typing import IO, Any

import msgspec

_LENGTH = struct.Struct(">Q")


def send(stream: IO[bytes], message: Any) -> None:
    """Write a message.

    Raises:
        OSError: The other side is gone.
    """
    content = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Return the next message; None where the other side is gone."""
    length = stream.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return None
    content = stream.read(*_LENGTH.unpack(length))
    return msgspec.msgpack.decode(content) if len(content) == _LENGTH.unpack(length)[0] else None
