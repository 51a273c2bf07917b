"""Stands in for ``python``: lets the server run the arguments with this process's streams, folder and environment.

Run as a script: ``python -IS client.py SOCKET EXECUTABLE ARGUMENTS``, by the small shell script that `tests.warm`
writes, which is EXECUTABLE. It ends as the fork ends: with its exit status, or by the same signal.
"""

import json
import os
import signal
import socket
import sys

arguments = sys.argv[1:]
folder = os.getcwd()  # noqa: PTH109 - pathlib takes longer to import than all the rest
request = json.dumps({"arguments": arguments, "folder": folder, "environment": dict(os.environ)}).encode()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(arguments[0])
    socket.send_fds(server, [request], [0, 1, 2])
    pid = int(server.recv(64))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, _: os.kill(pid, caught))
    status = int(server.recv(64))
if status < 0:
    if status != -signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
