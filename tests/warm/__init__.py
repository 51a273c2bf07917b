"""A Python that starts warm: with torch, transformers and this package imported, in 0.1 s in place of 6 s.

`warm_python` returns the path of an executable that does what ``sys.executable`` does with ``-m``, ``-c`` or a script,
in a fork of one process in which these libraries are imported already. A fork is a process of its own, so nothing leaks
from one test to the next: no import, patched function, warning filter, variable, folder, cache or open file.

There are two more such processes. One has imported torch, but nothing of Hugging Face, so that its forks start in 1 s
(``Project.run(..., early=True)``):

- variables that these libraries read while they are imported: those of READ_BY_TRANSFORMERS;
- code of transformers that is replaced before this package imports it.

The other has imported pytest and what of this package needs no torch: its forks are small, for what measures with
dice or finds every measurement in the cache, and for what must import neither torch nor what is Hugging Face's
(``torch_free=True``).

And these still need a new interpreter (``Project.run(..., fresh=True)``, or `Project.start`):

- what is imported, and what an import does or warns of;
- variables that Python and torch read when they start: those of READ_BY_PYTHON, but PYTHONPATH, which a fork reads too;
- code that runs before pytest;
- terminals, and signals from outside: a fork ends a moment after what stands for it.

Where the system has no process descriptors (they are Linux's), every test gets a new interpreter.
"""

import contextlib
import marshal
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

Imported = Literal["transformers", "torch", "pytest"]
READ_BY_TRANSFORMERS = ("HF_", "TRANSFORMERS_")
READ_BY_PYTHON = ("HOME", "PYTHON", "TORCH", "XDG_")
"""Beginnings of the names of variables that are read once, while libraries are imported."""
_servers: list[subprocess.Popen[bytes]] = []  # held on to, since Python warns of a process that it forgets
HERE = Path(__file__).parent
SOCKET = "socket"
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex  # the same on all workers of a run


def warm_python(environment: Mapping[str, str], imported: Imported = "transformers") -> str:
    """Return the path of the executable.

    The server is started by the first that asks, with this environment; the workers of one run of xdist share it.

    Args:
        environment: The variables that the libraries read while the server imports them.
        imported: The last of pytest, torch and transformers that is imported already.
    """
    if not hasattr(os, "pidfd_open"):
        return sys.executable
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    folder = Path(tempfile.gettempdir()) / f"{imported}-{RUN}"  # the path of a socket has at most 107 bytes
    address, executable = folder / SOCKET, folder / "python"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        client = f'"{sys.executable}" -ISE "{HERE / "client.py"}" "{address}" "$0" "$@"'
        # An isolated Python needs none of these libraries.
        executable.write_text(f'#!/bin/sh\n[ "$1" = -I ] && exec "{sys.executable}" "$@"\nexec {client}\n')
        executable.chmod(0o755)
        command = [sys.executable, HERE / "server.py", address, str(owner), imported]
        _servers.append(
            subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        )
    end = time.monotonic() + 60
    while not address.exists():
        assert time.monotonic() < end, f"the server of tests/warm did not start: no {address}"
        time.sleep(0.01)
    return str(executable)


def run_warm(
    python: str, *arguments: str, folder: Path, environment: Mapping[str, str], typed: str = "", timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` to its end, and return its streams and its exit status as `subprocess.run` does.

    It asks the server itself: to start the program that stands in for the fork takes a tenth of what a fork takes.

    Args:
        python: What `warm_python` returned.
        arguments: ``-m``, ``-c`` or a script, with its arguments.
        folder: The current folder.
        environment: All variables.
        typed: What is there to read from the standard input.
        timeout: Seconds after which it is killed, with all that it started.
    """
    if python == sys.executable:
        return subprocess.run(
            [python, *arguments], cwd=folder, env=environment, input=typed, timeout=timeout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    address = str(Path(python).with_name(SOCKET))
    request = {"arguments": [address, python, *arguments], "folder": str(folder), "environment": dict(environment)}
    with contextlib.ExitStack() as opened:
        pipes = [os.pipe() for _ in range(3)]
        given, out, err = (
            [
                opened.enter_context(os.fdopen(end, mode, buffering=0))
                for end, mode in zip(pipe, ("rb", "wb"), strict=True)
            ]
            for pipe in pipes
        )
        server = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        server.connect(address)
        socket.send_fds(server, [marshal.dumps(request)], [given[0].fileno(), out[1].fileno(), err[1].fileno()])
        given[1].write(typed.encode())
        for stream in (*given, out[1], err[1]):
            stream.close()
        got = _read_to_the_end({"server": server, "out": out[0], "err": err[0]}, timeout)
    text_of = {name: b"".join(parts).decode().replace("\r\n", "\n") for name, parts in got.items() if name != "server"}
    if len(got["server"]) < 3:  # its id, its status, and the end
        raise AssertionError(f"{arguments} did not end in {timeout} s\n{text_of['out']}{text_of['err']}")
    return subprocess.CompletedProcess([python, *arguments], int(got["server"][1]), text_of["out"], text_of["err"])


def _read_to_the_end(streams: Mapping[str, Any], timeout: float) -> dict[str, list[bytes]]:
    """Return what each stream said, part by part; where it was read to the end the last part is empty."""
    got: dict[str, list[bytes]] = {name: [] for name in streams}
    end = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for name, stream in streams.items():
            selector.register(stream, selectors.EVENT_READ, name)
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                got[key.data].append(os.read(key.fd, 1 << 16))
                if not got[key.data][-1]:
                    selector.unregister(key.fileobj)
    return got
