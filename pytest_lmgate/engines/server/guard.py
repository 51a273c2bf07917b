"""The program that starts a server for the session, and ends it when no process of the session needs it.

pytest may be killed at any moment, and so may a worker of xdist. So the server is the child of this program, in a
session of its own, and each process that uses the server holds a connection to this program, which the operating
system closes however the process ends. Without connections the server ends, and also where nobody measured with it for
a while. This program imports only the standard library, so that it starts in a few milliseconds. Programs of the engine
command run below it too.

``guard.py SOCKET HELLO IDLE COMMAND...``: the first connection is its standard input, and begins with a line of JSON,
the secrets that the server's log must not have; the log is the standard output. Each connection is sent HELLO, and
later a line of JSON with the exit status if the server ends by itself. If HELLO names two ``pipes``, they are the
standard input and output, and only the standard error goes to the log. A connection sends ``+`` before it measures,
which is answered by ``+``, and ``-`` after that; ``!`` means that it waits for the server's end. It closes its side to
leave, and sees the end of the connection once nothing is left of the server, or after ``.`` if others still use it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

# Seconds from SIGTERM to SIGKILL, and without a measurement before a server makes way for another.
_PATIENCE, _LINGER = 5.0, 2.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class ServerLog:
    """What a server prints, with secrets masked; a read may end within a secret."""

    def __init__(self, printed: int, secrets: list[str]) -> None:
        self._printed, self._held = printed, b""
        encoded = (secret.encode(errors="surrogateescape") for secret in secrets)
        longest_first = sorted(encoded, key=len, reverse=True)
        self._secrets = re.compile(b"|".join(map(re.escape, longest_first)) or b"(?!)")
        self._begins = {secret[:size] for secret in longest_first for size in range(1, len(secret))}
        self._longest = max(map(len, longest_first), default=0)
        os.set_blocking(printed, False)

    def pass_on(self, *, is_end: bool = False) -> bool:
        """Write the server's new output; return False once nobody can print any more."""
        chunk = None
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._printed, 2**16):
                self._write(self._masked(self._held + chunk))
        if is_end:
            self._write(self._secrets.sub(b"***", self._held))
            self._held = b""
        return chunk != b""

    def _masked(self, text: bytes) -> bytes:
        """Mask secrets, and hold back the end of a text if a secret may begin there."""
        done, cut, shown = 0, self._cut(text, 0), b""
        for secret in self._secrets.finditer(text):
            if secret.start() >= cut:
                break
            shown += text[done : secret.start()] + b"***"
            done = secret.end()
            cut = self._cut(text, done)
        self._held = text[cut:]
        return shown + text[done:cut]

    def _cut(self, text: bytes, begin: int) -> int:
        ends = range(max(begin, len(text) - self._longest), len(text))
        return next((at for at in ends if text[at:] in self._begins), len(text))

    @staticmethod
    def _write(text: bytes) -> None:
        with contextlib.suppress(OSError):  # the disk is full
            os.write(1, text)


class Guard:
    """A running server, and the connections of those who use it."""

    def __init__(
        self, listener: socket.socket, first: socket.socket, hello: str, idle: float, secrets: list[str]
    ) -> None:
        self._hello, self._idle, self._secrets = hello.encode(), idle, secrets
        self._busy: dict[socket.socket, bool] = {}  # whether each user measures
        self._leaving: list[socket.socket] = []  # they wait for the end
        self._makes_way = self._is_told = False
        self._ended: int | None = None
        self._since = time.monotonic()  # nobody measures
        woken, wakes = socket.socketpair()
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._tell)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the loop
        self._woken, self._wakes, self._listener = woken, wakes, listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(woken, selectors.EVENT_READ)
        self._welcome(first)

    def run(self, command: list[str]) -> None:
        """Start the server, and return when nothing is left of it."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # children that a server leaves behind become ours
        printed, prints = os.pipe()
        hello = json.loads(self._hello)
        pipes: list[int] = hello.pop("pipes", [])
        stdin, stdout = pipes or (subprocess.DEVNULL, prints)
        server = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=prints,
            start_new_session=True,
            preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # should this program be killed
        )
        for handle in (prints, *pipes):
            os.close(handle)
        self._pid, self._log = server.pid, ServerLog(printed, self._secrets)
        self._selector.register(printed, selectors.EVENT_READ)
        self._hello = json.dumps({**hello, "pid": server.pid, "guard": os.getpid()}).encode() + b"\n"
        for user in self._busy:
            self._send(user, self._hello)
        while not self._should_end():
            limit = _LINGER if self._makes_way else self._idle
            wait = None if any(self._busy.values()) else max(0.0, self._since + limit - time.monotonic())
            for key, _ in self._selector.select(wait):
                self._hear(key.fileobj)  # type: ignore[arg-type]
        server.returncode = self._ended  # reaped here
        self._log.pass_on(is_end=True)  # whoever hears of the end reads the log
        if self._ended is not None:
            for user in self._busy:
                self._send(user, json.dumps({"status": self._ended}).encode() + b"\n")
        self._stop()
        self._log.pass_on(is_end=True)

    def _tell(self, *_: object) -> None:
        self._is_told = True

    def _should_end(self) -> bool:
        self._reap()
        if self._ended is not None or self._is_told or not self._busy:
            return True
        idle = time.monotonic() - self._since
        return not any(self._busy.values()) and idle >= (_LINGER if self._makes_way else self._idle)

    def _hear(self, connection: socket.socket | int) -> None:
        if isinstance(connection, int):  # the server prints
            if not self._log.pass_on():
                self._selector.unregister(connection)
            return
        if connection is self._listener:
            self._welcome(connection.accept()[0])
            return
        try:
            heard = connection.recv(64)
        except OSError:
            heard = b""
        if connection is self._woken:
            return
        for order in heard.decode("ascii", "replace"):
            if order == "!":
                self._busy.pop(connection, None)
                self._leaving.append(connection)
                self._makes_way = True
            elif connection in self._busy:
                self._busy[connection] = order == "+"
                self._since = time.monotonic()
                if order == "+":
                    self._send(connection, b"+")
        if not heard:
            self._selector.unregister(connection)
            if connection in self._leaving:
                self._leaving.remove(connection)
                self._makes_way = bool(self._leaving)
            self._busy.pop(connection, None)
            self._since = time.monotonic()
            if self._busy or self._ended is not None:
                self._send(connection, b".")
                connection.close()
            else:
                self._leaving.append(connection)

    def _welcome(self, user: socket.socket) -> None:
        self._busy[user] = False
        self._selector.register(user, selectors.EVENT_READ)
        if self._hello.endswith(b"\n"):
            self._send(user, self._hello)

    def _send(self, user: socket.socket, content: bytes) -> None:
        with contextlib.suppress(OSError):
            user.sendall(content)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._pid:
                    self._ended = os.waitstatus_to_exitcode(ended[1])

    def _stop(self) -> None:
        """End the server's process group, and the processes that left it."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            until = time.monotonic() + _PATIENCE
            while time.monotonic() < until:
                self._reap()
                self._log.pass_on()  # a server whose output nobody reads stops at a full pipe
                if not self._signal(0):
                    return
                if number == signal.SIGKILL:
                    self._signal(number)
                time.sleep(0.02)

    def _signal(self, number: int) -> bool:
        """Send a signal to all processes of the server; return whether there are any."""
        signalled = False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, number)
            signalled = True
        children: list[str] = []
        with contextlib.suppress(OSError):  # Linux has the file
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
        for child in map(int, children):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(child) != self._pid:
                    os.kill(child, number)
                    signalled = True
        return signalled


def main() -> None:
    path, hello, idle, *command = sys.argv[1:]
    first = socket.socket(fileno=os.dup(0))
    with first.makefile("rb", buffering=0) as begin:
        secrets = json.loads(begin.readline())
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    guard = Guard(listener, first, hello, float(idle), secrets)
    try:
        guard.run(command)
    except OSError as error:  # there is no such program
        with contextlib.suppress(OSError):
            first.sendall(json.dumps({"cannot": str(error)}).encode() + b"\n")
    finally:
        Path(path).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there are other servers, or another is about to start
            folder = os.open(Path(path).parent, os.O_RDONLY)
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Path(path).parent.rmdir()


if __name__ == "__main__":
    main()
