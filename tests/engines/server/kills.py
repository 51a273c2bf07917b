"""Kills sessions that start servers, and looks for what is left.

Each session gates a model behind `fake.py`, whose children ignore SIGTERM and of which one is in its own session.
At a random time pytest, the server or the program that guards it, also while it ends the server, gets a signal. Then
no process may be left and no port held, and the session may only be green if it has a verdict for every gate.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FAKE = Path(__file__).with_name("fake.py")
GATES = ("bpb_max: {model: served, dataset: other, limit: 999999}",)
GATES += tuple(f"ppl_max: {{model: served, dataset: text, limit: 999999, max_length: {length}}}" for length in (64, 96))
# What is killed, how, and the workers of xdist.
WAYS = (
    ("pytest", signal.SIGINT, 0), ("server", signal.SIGKILL, 0), ("guard", signal.SIGKILL, 0),
    ("pytest", signal.SIGKILL, 2), ("ending guard", signal.SIGKILL, 0),
)  # fmt: skip
LONGEST = 30.0  # seconds until nothing may be left
# A conftest: of the session stays a fork that keeps what it had open. Its output, which whoever reads it waits for,
# it closes: all of it with pytest's -s.
FORKS = """
import contextlib, os, pathlib, time

def is_output(fd):
    with contextlib.suppress(OSError):
        return os.path.sameopenfile(fd, 1) or os.path.sameopenfile(fd, 2)

def pytest_sessionfinish():
    if os.fork() == 0:
        pathlib.Path("fork.txt").write_text(str(os.getpid()))
        for fd in [fd for fd in range(100) if is_output(fd)]:
            os.close(fd)
        time.sleep(60)
        os._exit(0)
    while not os.path.exists("fork.txt"):
        time.sleep(0.01)
"""


def end_fork(folder: Path) -> None:
    """End what FORKS left, which has to be there still."""
    os.kill(int((folder / "fork.txt").read_text()), signal.SIGKILL)


def write_project(folder: Path, tokenizer: Path, entry: dict[str, Any] | None = None) -> None:
    """Write a project with two texts and a model, by default a served one."""
    words = ["the", "a", "cat", "dog", "sat", "on", "mat", "log", "and", "under", "river", "house", "green", "small"]
    drawn = random.Random(0)

    def text(count: int) -> str:
        return " ".join(drawn.choices(words, k=count))

    rows = [{"text": text(60)} for _ in range(2)]
    (folder / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "other.txt").write_text(text(90))
    server = {"command": f"{sys.executable} {FAKE} --port {{port}} --load 0.5 --children", "wait": 60}
    served = {"server": server, "model": "tiny", "tokenizer": str(tokenizer), "load": {"context": 642, "timeout": 20}}
    (folder / "conftest.py").write_text(
        "import os\nwith open('sessions.txt', 'a') as file:\n"
        "    file.write(f\"{os.environ.get('PYTEST_XDIST_WORKER', 'pytest')} {os.getpid()}\\n\")\n"
    )
    (folder / "lmgate.yaml").write_text(
        f"models:\n  served: {json.dumps(entry or served)}\n"
        "datasets:\n  text: {path: text.jsonl}\n  other: {path: other.txt}\n"
        "gates:\n" + "".join(f"  - {gate}\n" for gate in GATES)
    )


def command_of(process: int) -> str:
    """Return a process's command; empty if there is no such process, or only its exit status is left."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def noted(file: Path) -> list[list[str]]:
    with contextlib.suppress(OSError):
        return [line.split() for line in file.read_text().splitlines()]
    return []


def started(folder: Path) -> tuple[list[int], list[int]]:
    """Return the processes that servers of a project noted, and their ports."""
    lines = noted(folder / "starts.txt")
    return [int(line[0]) for line in lines], [int(line[1]) for line in lines if len(line) == 2]


def has_ended(folder: Path) -> bool:
    """Return whether a server has been ended, of which the children ignore SIGTERM for five seconds."""
    processes, ports = started(folder)
    return bool(ports) and not command_of(processes[0])


def guards_of(folder: Path) -> list[int]:
    found = []
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if "guard.py" in command_of(int(each.name)) and (each / "cwd").resolve() == folder.resolve():
                found.append(int(each.name))
    return found


def killed(python: str, folder: Path, way: tuple[str, signal.Signals, int], seconds: float) -> tuple[bool, str]:
    """Run a project and kill a part of it after some seconds; return whether it was killed, and what is wrong."""
    target, number, workers = way
    for name in ("starts.txt", "sessions.txt", "report.json"):
        (folder / name).unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "--lmgate-report", "json:report.json"]
    command += ["-n", str(workers)] if workers else ["-p", "no:xdist"]
    with (folder / "printed.txt").open("wb") as printed:
        session = subprocess.Popen(
            command, cwd=folder, stdout=printed, stderr=printed, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TMPDIR": str(folder)},
        )  # fmt: skip
    until, victims = time.monotonic() + seconds, list[int]()
    while session.poll() is None and not (victims and time.monotonic() > until):
        victims = {
            "pytest": [int(line[1]) for line in noted(folder / "sessions.txt") if line[0] == "pytest"],
            "guard": guards_of(folder),
            "ending guard": guards_of(folder) if has_ended(folder) else [],
            "server": started(folder)[0][:1],
        }[target]
        time.sleep(0.02)
    if victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(random.choice(victims), number)
    try:
        status = session.wait(180)
    except subprocess.TimeoutExpired:
        os.killpg(session.pid, signal.SIGKILL)
        return bool(victims), "the session hangs"
    until, left = time.monotonic() + LONGEST, ["?"]
    while left and time.monotonic() < until:
        processes, ports = started(folder)
        if "guard" in target and victims:  # nobody else sees what has left the server's group
            for apart in [int(line[0]) for line in noted(folder / "starts.txt") if line[-1] == "apart"]:
                processes.remove(apart)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(apart, signal.SIGKILL)
        left = [f"{each}: {command_of(each)}" for each in (*processes, *guards_of(folder)) if command_of(each)]
        for port in ports:
            with socket.socket() as tried:
                if not tried.connect_ex(("127.0.0.1", port)):
                    left.append(f"port {port}")
        time.sleep(0.05)
    if left:
        return bool(victims), f"left: {left}"
    if status == 0:
        gates = json.loads((folder / "report.json").read_text())["gates"]
        if len(gates) != len(GATES) or any(gate["verdict"] != "pass" for gate in gates):
            return bool(victims), f"green with {len(gates)} of {len(GATES)} gates"
    return bool(victims), ""
