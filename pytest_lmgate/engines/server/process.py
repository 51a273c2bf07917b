"""A server that the session starts: its command, the one that all workers share, its log, and its end.

`guard.py` is the program that starts and ends it; `launched` also starts programs of the engine command. Sockets of the
session's guards are in a folder of the system's temporary files that is named by the run, which all workers share.
Windows has no process groups, so it is left out.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import random
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_lmgate.engines.base import ModelEntry
from pytest_lmgate.engines.devices import cuda_devices, device_ingredients
from pytest_lmgate.engines.server.client import Client, ServerSettings, hide
from pytest_lmgate.errors import ConfigError, EngineError, ModelError, RequirementError, UnreliableError
from pytest_lmgate.identity import versions
from pytest_lmgate.settings.entries import ServerSpec

_GUARD = Path(__file__).with_name("guard.py")
# Seconds without a measurement after which a server ends, between two lines of progress, that an answer may take, and
# from a lost connection to the news that the server has ended.
IDLE, _SAY, _ANSWER, DYING = 60.0, 30.0, 5.0, 2.0
_LINES, _LONGEST_LINE, _READ = 20, 300, 2**16
# Linux gives ports above these to whoever does not choose, as clients do while a server loads.
_PORTS = range(20_000, 32_000)
# Names of variables and options whose value is taken for a secret, as MY_KEY_2, --api-key and HF_TOKEN.
_SECRET = re.compile(
    r"(key|token|secret|passw(or)?d|passphrase|credential|auth|_(pwd|pass|pat))s?($|[^a-z])", re.IGNORECASE
)
# What is one in any value: the password of an address, and what a header of HTTP has.
_INSIDE = re.compile(r"://[^/\s:@]*:([^/\s@]+)@|\b(?:Bearer|Basic)\s+([^\s'\"]+)")
# A shorter text, or a number such as a count of tokens, may be anywhere in a log.
_SHORTEST_SECRET, _COUNT = 4, re.compile(r"\d{1,7}")
_LONGEST_SOCKET = 100  # characters of its path
# Linux's tables of sockets, and their word for one that listens.
_TABLES, _LISTENS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6")), "0A"
# Which GPUs are visible and where libraries lie decides no number.
_OF_KERNELS = re.compile(
    r"(VLLM|CUDA|HIP|ROCM|HSA)_(?!.*(LOG|CACHE|HOST|PORT|KEY|TOKEN|STATS|TIMEOUT|VISIBLE|HOME|PATH|ROOT))"
)
# The servers of this process; one may have to end before another starts.
_running: weakref.WeakSet[ServerProcess] = weakref.WeakSet()


@dataclass(frozen=True)
class Command:
    """How to start a server, or a program of the engine command, checked."""

    model: str  # the model's name in lmgate.yaml, for messages
    spec: ServerSpec  # the entry
    arguments: tuple[str, ...]  # the command's words, with ``{port}``
    folder: Path  # where it runs, the folder of lmgate.yaml
    within: str = "server."  # where the entry has its keys
    noun: str = "server"

    @classmethod
    def of(cls, entry: ModelEntry, spec: ServerSpec) -> Command:
        """Read a server's entry; a `ConfigError` if its command cannot be split, or has no ``{port}``."""
        where = f"models.{entry.name}.server.command"
        arguments = split_command(spec.command, where)
        if not any("{port}" in argument for argument in (*arguments[1:], *map(str, spec.env.values()))):
            raise ConfigError(
                f"{where}: expected {{port}} where the server's port belongs, as in `vllm serve models/int8 --port "
                "{port}`, because a free port is chosen at each start"
            )
        return cls(entry.name, spec, arguments, entry.path("."))

    @property
    def where(self) -> str:
        """What comes before a key in messages, as in ``models.int8.server.``."""
        return f"models.{self.model}.{self.within}"

    def failed(self, why: str, log: Path) -> ModelError:
        """Return an error about the server, with the end of its log."""
        return ModelError(f"model {self.model!r}: its {self.noun} {why}{end_of(log)}")

    @property
    def content(self) -> dict[str, str]:
        """What it adds to the address of a measurement: words and variables, secrets as digests."""
        words, is_secret = [], False
        for word in self.arguments:
            name, equals, value = word.partition("=")
            if equals and _SECRET.search(name):
                word = f"{name}={_digest(value)}"
            words.append(_digest(word) if is_secret else word)
            is_secret = word.startswith("-") and not equals and bool(_SECRET.search(word))
        env = {name: _digest(value) if _SECRET.search(name) else value for name, value in self._variables.items()}
        # Within words too, as of sh -c "...".
        masked = partial(hide, secrets=self._secrets_of(self._variables), mask=_digest)
        shown = {name: masked(value) for name, value in env.items()}
        facts = {"command": json.dumps([*map(masked, words)]), "env": json.dumps(shown, sort_keys=True)}
        if self.spec.image is not None:
            facts["image"] = self.spec.image
        for package, version in versions(self.spec.versions).items():
            if version == "absent":
                raise ConfigError(
                    f"{self.where}versions: {package} is not installed in pytest's environment; remove it, and name "
                    f"the files of the {self.noun}'s own environment that decide its numbers in content:"
                )
            facts[f"version {package}"] = version
        return facts

    @property
    def runtime(self) -> dict[str, str]:
        """What else can change its numbers: the GPUs that it sees, and variables of pytest's that choose kernels."""
        variables = {name: value for name, value in os.environ.items() if _OF_KERNELS.match(name)}
        inherited = {name: value for name, value in sorted(variables.items()) if name not in self.spec.env}
        seen = device_ingredients("cuda") if cuda_devices() else {}
        return seen | ({"inherited": json.dumps(inherited)} if inherited else {})

    @property
    def files(self) -> dict[str, Path]:
        """The files of ``content:`` by name; a folder counts with everything below it."""
        files: dict[str, Path] = {}
        for given in self.spec.content:
            path = self.folder / Path(given).expanduser()
            if not path.exists():
                raise ModelError(f"{self.where}content: {path} does not exist; check the path")
            below = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
            files |= {f"content {given} {file.relative_to(path).as_posix()}": file for file in below}
        return files

    def environment(self, port: int) -> dict[str, str]:
        """Return the server's environment: pytest's own with ``env:``, and the programs next to its Python first."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        given_variables = {name: str(value).replace("{port}", str(port)) for name, value in self.spec.env.items()}
        environment = {**os.environ, "PATH": path, **given_variables}
        environment.pop("LMGATE_CACHE_KEY", None)  # it signs the cache
        return environment

    @property
    def secrets(self) -> set[str]:
        """Values of its variables and words that look like secrets, line by line."""
        return self._secrets_of({**os.environ, **self._variables})

    @property
    def _variables(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.spec.env.items()}

    def _secrets_of(self, variables: Mapping[str, str]) -> set[str]:
        values = {value for name, value in variables.items() if _SECRET.search(name)} | _secrets_in(self.arguments)
        for text in (*variables.values(), *self.arguments):
            values.update(*_INSIDE.findall(text))
        lines = {line.strip() for value in values for line in value.splitlines()}
        return {line for line in lines if len(line) >= _SHORTEST_SECRET and not _COUNT.fullmatch(line)}

    def require(self) -> None:
        """Raise `RequirementError` where the machine lacks what the entry requires."""
        wanted, where = self.spec.requires, f"{self.where}requires"
        if wanted is None:
            return
        if wanted.gpus and (gpus := cuda_devices()) < wanted.gpus:
            raise RequirementError(f"{where}: expected {wanted.gpus} GPUs on this machine, found {gpus}")
        if wanted.command is not None and shutil.which(wanted.command) is None:
            raise RequirementError(f"{where}: expected the program {wanted.command!r} in PATH, found none")


def split_command(command: str, where: str) -> tuple[str, ...]:
    """Split a command; a `ConfigError` if that cannot be done."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise ConfigError(f"{where}: expected words as for a shell, got {command!r}: {error}") from error
    if not words:
        raise ConfigError(f"{where}: expected words as for a shell, got {command!r}")
    return words


def _secrets_in(words: Sequence[str]) -> set[str]:
    """Return the values of options and assignments that look like secrets, also those inside of ``sh -c "..."``."""
    secrets: set[str] = set()
    for before, word in zip(("", *words), words, strict=False):
        name, equals, value = word.partition("=")
        if equals and _SECRET.search(name):
            secrets.add(value)
        if before.startswith("-") and "=" not in before and _SECRET.search(before):
            secrets.add(word)
        if any(letter.isspace() for letter in word):
            nested = shlex.shlex(word, posix=True, punctuation_chars=True)
            nested.whitespace_split = True
            with contextlib.suppress(ValueError):  # a quotation mark without its second: it is no command
                secrets |= _secrets_in(list(nested))
    return secrets


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


class Lease:
    """A connection to the guard of a running server, which runs at least as long as the connection exists."""

    def __init__(self, connection: socket.socket, hello: Mapping[str, Any]) -> None:
        self._connection, self._pid, self._guard = connection, int(hello["pid"]), int(hello["guard"])
        self.port, self.log = int(hello["port"]), Path(hello["log"])
        self._said, self._how, self._lock = b"", "", threading.Lock()
        self.guard: subprocess.Popen[bytes] | None = None  # if this process started it
        # A fork of this process must not keep the server.
        os.register_at_fork(after_in_child=_closing(connection))

    @classmethod
    def over(cls, connection: socket.socket) -> Lease | dict[str, Any]:
        """Return a lease once the guard has said hello, else its message; an empty mapping if it is gone."""
        hello, rest = _line(connection)
        if "pid" in hello:
            lease = cls(connection, hello)
            lease._said = rest  # a program that ends at once says so in the same breath
            return lease
        connection.close()
        return hello

    def begin(self) -> bool:
        """Tell the guard that a measurement begins; return False if the server has ended."""
        with contextlib.suppress(OSError):
            self._connection.sendall(b"+")
            heard = self._connection.recv(1)
            if heard == b"+":
                return True
            self._said += heard
        self.status()
        return False

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(b"-")

    def fileno(self) -> int:
        """Return a file descriptor that can be read when the server has ended."""
        return self._connection.fileno()

    def has_ended(self, wait: float = 0.0) -> bool:
        """Return whether the server has ended, or ends within some seconds."""
        return self._connection.fileno() < 0 or bool(select.select([self._connection], [], [], wait)[0])

    def problem(self) -> str:
        """Say why answers may be another program's, as what follows "it"; empty if they are the server's."""
        if self.has_ended():
            return self.status()
        if _listens_alone(self.port, self._guard):
            return ""
        return (
            f"does not listen at port {self.port} alone (a container's port is the container engine's: start it "
            "yourself, and give its address under server:)"
        )

    def status(self) -> str:
        """Say how the server ended, as what follows "it"; several threads may ask."""
        with self._lock:
            self._how = self._how or self._heard()
        return self._how

    def _heard(self) -> str:
        with contextlib.suppress(OSError):
            message, _ = _line(self._connection, self._said)
            if (status := message.get("status")) is not None:
                hint = " (probably the OOM killer)" if status == -signal.SIGKILL else ""
                return (
                    f"was killed by {signal.Signals(-status).name}{hint}"
                    if status < 0
                    else f"ended with status {status}"
                )
        self._kill()
        return "was ended, because the program that guards it ended"

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._pid, signal.SIGKILL)

    def release(self) -> None:
        """Give the server up, and wait until it has ended if nobody else uses it."""
        if self.has_ended():
            self.status()
        heard = b""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            while more := self._connection.recv(4096):
                heard = more
        if not heard.endswith(b"."):
            self._kill()  # nothing is left, unless the guard was killed while it ended the server
        self._connection.close()
        if self.guard is not None:
            try:
                self.guard.wait(1.0)
            except subprocess.TimeoutExpired:
                self.guard.returncode = 0  # others use the server, and the guard outlives this process


def _closing(connection: socket.socket) -> Callable[[], None]:
    reference = weakref.ref(connection)

    def close() -> None:
        if (alive := reference()) is not None:
            alive.close()

    return close


def _line(connection: socket.socket, begin: bytes = b"") -> tuple[dict[str, Any], bytes]:
    """Read a line of JSON, and what came with it; an empty mapping if the other side is gone."""
    with contextlib.suppress(ConnectionError):
        while b"\n" not in begin:
            if not (more := connection.recv(4096)):
                return {}, b""
            begin += more
        line, _, rest = begin.partition(b"\n")
        return json.loads(line.lstrip(b"+")), rest
    return {}, b""


class ServerProcess:
    """The server of a model, which is started when it is needed and not running."""

    def __init__(self, command: Command, entry: ModelEntry, settings: ServerSettings) -> None:
        self._command, self._settings, self._entry, self._note = command, settings, entry, entry.note
        self.name, self.together = entry.name, command.spec.together
        self._secrets = command.secrets | ({settings.key} if settings.key else set())
        self._folder = session_folder(entry.run)
        identity = json.dumps([command.arguments, dict(command.spec.env), str(command.folder)], default=str)
        self._key = _digest(identity)[7:17] + (".together" if self.together else ".alone")
        self._lease: Lease | None = None
        self._client: Client | None = None
        self._measures = 0

    @contextlib.contextmanager
    def use(self) -> Iterator[Client]:
        """Yield a client of the server, which is started first if it does not run."""
        if self._lease is None or not self._lease.begin():
            self.close()
            self._give_way()
            self._lease = self._acquired()
            _running.add(self)
        self._measures += 1
        try:
            if self._client is None:
                self._client = self._answering(self._lease)
            yield self._client
        finally:
            self._measures -= 1
            if self._lease is not None and not self._measures:
                self._lease.end()

    def close(self) -> None:
        """Give the server up; it ends if nobody else uses it."""
        _running.discard(self)
        if self._client is not None:
            self._client.close()
        lease, self._lease, self._client = self._lease, None, None
        if lease is not None:
            lease.release()
        if (self._folder / self._key).exists():  # others use the server, or its guard was killed
            with _locked(self._folder):
                if (running := _connected(self._folder / self._key)) is not None:
                    running.close()

    def require_own_answers(self) -> None:
        """Raise `UnreliableError` if another program at the server's port may have given the answers so far."""
        assert self._lease is not None
        if problem := self._lease.problem():
            tail = end_of(self._lease.log)
            self.close()  # the next measurement starts it again, at another port
            raise UnreliableError(
                f"model {self.name!r}: its server {problem}, so another program may have answered, and nothing of "
                f"this measurement is kept: run it again{tail}"
            )

    @property
    def has_ended(self) -> bool:
        return self._lease is None or self._lease.has_ended()

    def why(self) -> str:
        """Say how the server ended or that it runs, with the end of its log."""
        lease = self._lease
        assert lease is not None
        return f"it {lease.status() if lease.has_ended(DYING) else 'still runs'}{end_of(lease.log)}"

    def _give_way(self) -> None:
        """Give up other servers of this process that may not run at the same time as this one."""
        for other in list(_running):
            if other._key == self._key or (self.together and other.together):
                continue
            if other._measures:
                raise ConfigError(
                    f"model {self.name!r}: its server is needed while {other.name!r} is measured: set together: true "
                    "in both entries if both servers fit on this machine"
                )
            other.close()

    def _acquired(self) -> Lease:
        """Return a lease on the session's server, which starts first if it does not run."""
        has_waited = False
        while True:
            with _locked(self._folder):
                if (running := _connected(self._folder / self._key)) is not None:
                    lease = Lease.over(running)
                    if isinstance(lease, Lease) and lease.begin():
                        return lease
                    continue
                others = [
                    connection
                    for path in self._folder.iterdir()
                    if not (self.together and path.suffix == ".together")
                    and (connection := _connected(path)) is not None
                ]
                if not others:
                    return self._started()
            if not has_waited:
                self._note(f"the server of {self.name} waits until that of another model is not used")
            has_waited = True
            for connection in others:
                with contextlib.suppress(OSError):
                    connection.sendall(b"!")
                    while connection.recv(4096):
                        pass
                connection.close()

    def _started(self) -> Lease:
        port = _free_port()
        return launched(self._command, self._entry, self._secrets, place=self._folder / self._key, port=port)

    def _answering(self, lease: Lease) -> Client:
        """Wait until the server answers, and return a client of it."""
        began = last_note = time.monotonic()
        spec, root = self._command.spec, f"http://127.0.0.1:{lease.port}"
        client = Client(self.name, replace(self._settings, url=f"{root}/v1"), self)
        try:
            while problem := client.problem_at(root + spec.health, _ANSWER):
                now = time.monotonic()
                if lease.has_ended(0.2):
                    raise self._command.failed(f"{lease.status()} before it answered", lease.log)
                if now - began > spec.wait:
                    raise self._command.failed(
                        f"did not answer at {spec.health} within {spec.wait} s ({problem}); raise wait: if it needs "
                        "more time, or set health: to a path that it answers when it is ready",
                        lease.log,
                    )
                if now - last_note > _SAY:
                    last = next(iter(_last_lines(lease.log)[-1:]), "")
                    self._note(f"the server of {self.name} has been loading for {now - began:.0f} s: {last}")
                    last_note = now
            self.require_own_answers()
        except BaseException:
            client.close()
            self.close()
            raise
        self._note(f"the server of {self.name} answers after {time.monotonic() - began:.0f} s")
        return client

    def hidden(self, text: str) -> str:
        return hide(text, self._secrets)


def launched(
    command: Command,
    entry: ModelEntry,
    secrets: Iterable[str],
    *,
    place: Path | None = None,
    port: int = 0,
    pipes: tuple[int, ...] = (),
) -> Lease:
    """Start a command below a guard, and return a lease that has begun.

    Args:
        command: The command.
        entry: The model's entry, which has the folder of the log.
        secrets: What the log must not have.
        place: Where the guard's socket is to be, by which other processes find it; None where none has to.
        port: What ``{port}`` stands for.
        pipes: Standard input and output; without them the command has no input, and its output goes to the log.
    """
    if place is None:
        place = session_folder(uuid.uuid4().hex) / "alone"
        place.parent.mkdir(mode=0o700)  # the guard removes it
    if entry.logs is not None:
        entry.logs.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]", "-", command.model)
    printed, path = tempfile.mkstemp(".log", f"{name}-", entry.logs)
    log = Path(path)
    words = [word.replace("{port}", str(port)) for word in command.arguments]
    ours, theirs = socket.socketpair()
    hello = json.dumps({"port": port, "log": path, "pipes": pipes})
    # Isolated and without site, so that variables for the server do not concern the guard.
    guard = [sys.executable, "-I", "-S", str(_GUARD), str(place), hello, str(IDLE), *words]
    with os.fdopen(printed, "wb"), theirs:
        process = subprocess.Popen(
            guard,
            stdin=theirs.fileno(),
            stdout=printed,
            stderr=printed,
            cwd=command.folder,
            env=command.environment(port),
            start_new_session=True,
            pass_fds=pipes,
        )
    with contextlib.suppress(OSError):  # it has ended already
        ours.sendall(json.dumps(sorted(secrets)).encode() + b"\n")
    on_port = f" on port {port}" if port else ""
    entry.note(f"starts the {command.noun} of {entry.name}{on_port}; its log is {log}")
    lease = Lease.over(ours)
    if isinstance(lease, Lease):
        lease.guard = process
        if lease.begin() or pipes:  # a program may have printed something before it ended
            return lease
        lease.release()
        why = lease.status()
    else:
        process.wait()
        why = lease.get("cannot", "the program that guards it ended")
    raise command.failed(f"cannot be started: {why}; check {command.within}command", log)


def end_of(log: Path) -> str:
    """Return the last lines of a log, as the end of a message."""
    lines = _last_lines(log)
    shown = "\n".join(f"  {line}" for line in lines)
    return f"; the end of its log, which is {log}:\n{shown}" if lines else f"; its log, {log}, is empty"


def _last_lines(log: Path) -> list[str]:
    """Return the last lines of a log, in which the guard has masked secrets."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _READ))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    # Programs draw bars of progress over each other.
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return [line[:_LONGEST_LINE] for line in lines if line][-_LINES:]


def session_folder(run: str) -> Path:
    """Return the folder of a run's sockets, whose paths may not be long."""
    folder = Path(tempfile.gettempdir()) / f"lmgate-{run[:16]}"
    return folder if len(str(folder)) + 21 < _LONGEST_SOCKET else Path("/tmp") / folder.name


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if need be; guards remove it."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if folder.exists() and os.path.samestat(folder.stat(), os.fstat(handle)):
                yield
                return
        finally:
            os.close(handle)


def _connected(path: Path) -> socket.socket | None:
    """Return a connection to a guard; None if there is none, after the socket of one that was killed is removed."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        if error.errno == errno.ECONNREFUSED:
            path.unlink(missing_ok=True)
        return None
    return connection


def _listens_alone(port: int, guard: int) -> bool:
    """Return whether all that listens at a port are processes below a guard; True where this cannot be known."""
    if (listeners := sockets_by_port()) is None:
        return True
    sockets: set[str] = set()
    for process in _below(guard):
        try:
            sockets |= _files_of(process)
        except PermissionError:  # it runs as another user
            return True
    return bool(listeners[port]) and listeners[port] <= sockets


def sockets_by_port() -> Mapping[int, set[str]] | None:
    """Return the sockets that listen at each port, named as in /proc/PID/fd; None where this cannot be known.

    Linux lists sockets by inode. Some sandboxes leave the inodes out or list others, which a socket of our own shows.
    """
    listeners = collections.defaultdict[int, set[str]](set)
    with socket.socket() as listener, contextlib.suppress(OSError):  # another system than Linux has no /proc
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        for line in (line for table in _TABLES if table.exists() for line in table.read_text("ascii").splitlines()[1:]):
            row = line.split()
            if row[3] == _LISTENS:
                listeners[int(row[1][-4:], 16)].add(f"socket:[{row[9]}]")
        if str(Path(f"/proc/self/fd/{listener.fileno()}").readlink()) in listeners[listener.getsockname()[1]]:
            return listeners
    return None


def _below(process: int) -> list[int]:
    """Return a process and all that it started, and that these started."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(ValueError, OSError):  # another file, or a process that has ended
            parents[int(folder.name)] = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
    processes = [process]
    for parent in processes:
        processes += [child for child, its in parents.items() if its == parent]
    return processes


def _files_of(process: int) -> set[str]:
    sockets: set[str] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for file in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                sockets.add(str(file.readlink()))
    return sockets


def _free_port() -> int:
    for port in random.sample(_PORTS, 200):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("", port))
            return port
    raise EngineError(f"no free port between {_PORTS[0]} and {_PORTS[-1]}: end some programs on this machine")
