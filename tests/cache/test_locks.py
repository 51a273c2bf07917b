"""Locks where the file system has none: two processes still measure once."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cache.faulty_libc import faulty_libc

_HOLD = """
import sys, time
from pathlib import Path
from pytest_lmgate.cache.files import hold
with hold(Path(sys.argv[1]), lambda: print("waiting", flush=True), lambda text: print(text, flush=True)):
    print("held", time.time(), flush=True)
    sys.stdin.read()
    print("ends", time.time(), flush=True)
"""


@pytest.fixture(scope="module")
def libc(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose system can be told to fail."""
    return faulty_libc(tmp_path_factory.mktemp("libc"))


def start(path: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    """Start a process that holds a lock until its input ends."""
    command = [sys.executable, "-c", _HOLD, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def line(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_where_a_system_has_no_locks_one_process_waits_for_another(tmp_path: Path, libc: dict[str, str], number: int):
    env, path = libc | {"FLOCK_ERRNO": str(number)}, tmp_path / "locks" / "a.lock"
    first = start(path, env)
    said = line(first)
    assert said.startswith(f"the file system of {path.parent} has no locks ({os.strerror(number)})")
    assert said.endswith("if a killed process left one, remove it")
    assert line(first).startswith("held")
    second = start(path, env)
    assert [line(second), line(second)] == [said, "waiting"]
    (ends,), (held, _) = (process.communicate(timeout=120)[0].splitlines() for process in (first, second))
    assert float(ends.removeprefix("ends")) <= float(held.removeprefix("held"))
    assert (first.returncode, second.returncode) == (0, 0)
    assert list(path.parent.iterdir()) == []


def test_another_failure_is_an_error_and_not_taken_for_a_missing_lock(tmp_path: Path, libc: dict[str, str]) -> None:
    process = start(tmp_path / "a.lock", libc | {"FLOCK_ERRNO": str(errno.EIO)})
    process.communicate(timeout=60)
    assert process.returncode == 1
