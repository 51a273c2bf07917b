"""Stands in for ``python``: lets the server run the arguments with this process's streams, folder and environment.

Run as a script: ``python -ISE client.py SOCKET EXECUTABLE ARGUMENTS``, by the small shell script that `tests.warm`
writes, which is EXECUTABLE. It ends as the fork ends: with its exit status, or by the same signal. It imports only what
is in the interpreter already, since the libraries around these take longer to import than all the rest: 15 ms.
"""

import _signal as signal
import _socket as socket
import marshal
import os
import sys

arguments = sys.argv[1:]
folder = os.getcwd()  # noqa: PTH109 - pathlib takes long to import as well
request = marshal.dumps({"arguments": arguments, "folder": folder, "environment": dict(os.environ)})
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect(arguments[0])
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
server.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
pid = int(server.recv(64))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda caught, _: os.kill(pid, caught))
status = int(server.recv(64))
if status < 0:
    if status != -signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
