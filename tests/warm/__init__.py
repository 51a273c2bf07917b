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
- variables that Python and torch read when they start: those of READ_BY_PYTHON;
- code that runs before pytest;
- terminals, and signals from outside: a fork ends a moment after what stands for it.

Where the system has no process descriptors (they are Linux's), every test gets a new interpreter.
"""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

Imported = Literal["transformers", "torch", "pytest"]
READ_BY_TRANSFORMERS = ("HF_", "TRANSFORMERS_")
READ_BY_PYTHON = ("HOME", "PYTHON", "TORCH", "XDG_")
"""Beginnings of the names of variables that are read once, while libraries are imported."""
_servers: list[subprocess.Popen[bytes]] = []  # held on to, since Python warns of a process that it forgets
HERE = Path(__file__).parent
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
    socket, executable = folder / "socket", folder / "python"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        client = f'"{sys.executable}" -ISE "{HERE / "client.py"}" "{socket}" "$0" "$@"'
        # An isolated Python needs none of these libraries.
        executable.write_text(f'#!/bin/sh\n[ "$1" = -I ] && exec "{sys.executable}" "$@"\nexec {client}\n')
        executable.chmod(0o755)
        command = [sys.executable, HERE / "server.py", socket, str(owner), imported]
        _servers.append(
            subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        )
    end = time.monotonic() + 60
    while not socket.exists():
        assert time.monotonic() < end, f"the server of tests/warm did not start: no {socket}"
        time.sleep(0.01)
    return str(executable)
