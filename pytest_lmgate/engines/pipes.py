"""Lines to and from a program, which may answer before it has read everything: neither side waits at a full pipe."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Iterator

_CHUNK, _LONGEST = 2**16, 2**26  # bytes at a time, and of a line


class Pipes:
    """Pipes for a program's standard input and output."""

    def __init__(self) -> None:
        (self._stdin, self._writes), (self._reads, self._stdout) = os.pipe(), os.pipe()
        os.set_blocking(self._writes, False)
        self._heard, self._todo = bytearray(), memoryview(b"")

    @contextlib.contextmanager
    def handed_over(self) -> Iterator[tuple[int, int]]:
        """Yield the program's ends, which it inherits meanwhile; all is closed if it cannot be started."""
        try:
            yield self._stdin, self._stdout
        except BaseException:
            self.close()
            raise
        finally:
            os.close(self._stdin)
            os.close(self._stdout)

    def send(self, text: str) -> None:
        """Have a text written while `line` waits."""
        self._todo = memoryview(text.encode())

    def line(self, seconds: float, ending: int) -> bytes:
        """Return the program's next line; of one that does not end, its beginning.

        The file descriptor `ending` can be read when the program has ended, whose children may hold its output open.

        Raises:
            TimeoutError: The program has printed none for so many seconds.
            EOFError: It cannot print any more.
        """
        until, searched = time.monotonic() + seconds, 0
        with selectors.PollSelector() as ready:
            ready.register(self._reads, selectors.EVENT_READ)
            ready.register(ending, selectors.EVENT_READ)
            if self._todo:
                ready.register(self._writes, selectors.EVENT_WRITE)
            while self._heard.find(b"\n", searched) < 0 and len(self._heard) <= _LONGEST:
                searched = len(self._heard)
                events = ready.select(max(0.0, until - time.monotonic()))
                if not events:
                    raise TimeoutError
                if [key.fd for key, _ in events] == [ending]:
                    raise EOFError
                for key, _ in events:
                    if key.fd == self._writes:
                        try:
                            self._todo = self._todo[os.write(self._writes, self._todo[:_CHUNK]) :]
                        except BrokenPipeError:  # its output ends too, or answers are missing
                            self._todo = self._todo[:0]
                        if not self._todo:
                            ready.unregister(self._writes)
                    elif key.fd == self._reads:
                        if not (heard := os.read(self._reads, _CHUNK)):
                            raise EOFError
                        self._heard += heard
        line, _, self._heard = self._heard.partition(b"\n")
        return bytes(line)

    def close(self) -> None:
        os.close(self._writes)
        os.close(self._reads)
